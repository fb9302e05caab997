"""Simulated worlds and predictions: no values, no other process; bytes and bills are those of real runs."""

import functools
import pathlib
import sys

import intarsia as it
import torch
from _harness import on_ranks, refuses, run
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench/training"))
import llama_model  # noqa: E402

SMALL = llama_model.Config(dim=128, layers=3, heads=8, kv_heads=4, hidden=352, vocab=768, sequence=64)
TENSOR_PARALLEL = {name: "R," + text.split(",")[1] for name, text in llama_model.layouts().items()}


def train(layouts, entry, *, batch=8, steps=1, **adamw):
    """A program for `predict` that also runs in a real world: the default one."""

    def program():
        torch.manual_seed(0)
        with torch.device("meta"):
            model = llama_model.Llama(SMALL)
        it.parallelize(model, it.mesh(), layouts)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **adamw)
        cos, sin = llama_model.rotary_table(SMALL.sequence, SMALL.dim // SMALL.heads)
        for _ in range(steps):
            optimizer.zero_grad()
            tokens = it.randint(0, SMALL.vocab, (batch, SMALL.sequence), entry)
            logits = model(tokens, cos, sin)
            loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
            loss.backward()
            del logits, loss
            optimizer.step()
        return model, optimizer

    return program


def entries(bill):
    names = ("op", "tensor", "module", "axis", "transition", "implicit", "backward", "fallback", "count", "bytes")
    return [tuple(getattr(e, name) for name in names) for e in bill.entries]


def check_against_real(mesh, layouts, entry, **options):
    """The same program in the real world of this process, and simulated."""
    it.close()
    it.init(mesh)
    meter = it.MemoryMeter()
    program = train(layouts, entry, **options)
    kept = program()
    real_peak, real_bill = meter.peak(), it.bill()
    del kept
    predicted = it.predict(program, it.mesh(), rank=it.world().rank())
    assert entries(predicted.bill) == entries(real_bill), f"{predicted.bill}\n{real_bill}"
    ratio = predicted.peak / real_peak
    print(f"{mesh} {options}: predicted {predicted.peak}, real {real_peak}, ratio {ratio:.4f}", flush=True)
    print(predicted, flush=True)
    assert 0.98 <= ratio <= 1.02, f"{ratio} on {mesh}"
    assert predicted.parameters == it._C.held_bytes(list(program()[0].parameters()))


@on_ranks(2)
def test_two_ranks():
    check_against_real("[dp=2]", {"*": "S(0)"}, "S(0)")
    check_against_real("[tp=2]", {k: v.split(",")[1] for k, v in TENSOR_PARALLEL.items()}, "R")


@on_ranks(4)
def test_four_ranks():
    check_against_real("[dp=4]", {"*": "S(0)"}, "S(0)")
    check_against_real("[dp=2,tp=2]", TENSOR_PARALLEL, "S(0),R", foreach=True)
    check_against_real("[dp=2,tp=2]", llama_model.layouts(), "S(0),R", fused=True)
    check_against_real("[dp=2,tp=2]", TENSOR_PARALLEL, "S(0),R", foreach=False, steps=2)


def test_a_world_of_16384_ranks():
    prediction = it.predict(train(llama_model.layouts(), "S(0),R", batch=4096), "[dp=4096,tp=4]", rank=16383)
    assert str(prediction).startswith("rank 16383 of [dp=4096,tp=4]: parameters "), str(prediction)
    assert prediction.peak > prediction.parameters and prediction.bill.bytes() > 0


def test_the_time_of_a_step():
    def program(steps=True):
        model = torch.nn.Linear(64, 64)
        it.fully_shard(model)
        optimizer = torch.optim.SGD(model.parameters())

        def step():
            optimizer.zero_grad()
            model(it.ones((128, 64), "S(0)")).square().mean().backward()
            optimizer.step()

        step()
        return (model, optimizer, functools.partial(step)) if steps else (model, optimizer)

    prediction = it.predict(program, "[dp=4]")
    told = it.explain_step(program, "[dp=4]", costs=it.StepCosts())
    assert all(part in told for part in (str(prediction), str(prediction.bill), prediction.schedule(), ": computes ")), told
    costs = it.StepCosts.parse(
        """{"levels": [{"overhead_us": 10, "gigabytes_per_s": 1}], "gigaflops": 1, "compute": {"call_us": 1000}}"""
    )
    time = prediction.time(costs)
    lines = prediction.schedule().splitlines()
    assert lines[0].startswith(("begins   #1  all_gather", "computes")) and any(line.startswith("waits    #1") for line in lines), lines
    names = [name for name, *_ in time.parts]
    # On each rank 32 rows: forward, and the gradient of the weight.
    products = [(end - begin) * 1e9 for name, sends, begin, end in time.parts if name in ("mm", "addmm")]
    assert [round(p) for p in products if p < 1e6 - 1] == [2 * 32 * 64 * 64] * 2, time.parts
    assert "all_gather" in names and time.sends > 0 and time.computes > 1e-3 * len(set(names)), str(time)
    assert abs(time.total - time.computes - time.waits) < 1e-12
    assert it.StepCosts.parse(costs.to_json()).to_json() == costs.to_json()
    assert prediction.peak == it.predict(lambda: program(steps=False), "[dp=4]").peak, "the step that is timed counts for no more"
    refuses(ValueError, "returned no step to be timed", lambda: it.predict(lambda: program(steps=False), "[dp=4]").time(costs))


def test_tensors_say_where_they_are_and_have_no_values():
    with it.simulate("[dp=64]", rank=3) as world:
        assert world.simulated() and world.rank() == 3 and world.size() == 64
        x = it.randn((256, 8), "S(0)")
        assert x.device.type == "cpu" and it.local(x).is_meta and it.local(x).shape == (4, 8)
        y = (x @ it.ones((8, 8), "R")).sum()
        assert y.shape == () and str(it.layout_of(y)) == "[dp=64] P(sum)"
        refuses(ValueError, "depends on values, and a simulated world has none", y.item)
        refuses(ValueError, "depends on values", lambda: x.nonzero())
        assert it.full(x).is_meta and it.full(x).shape == (256, 8)
        assert [e.transition for e in it.bill().entries] == ["S->R"]
        it.check_plain_tensors(), it.assert_replicas(it.ones((2,), "R"))
        state = torch.get_rng_state()
        it.rand((5, 5), "R")
        assert torch.equal(state, torch.get_rng_state())


def test_wrong_arguments_are_refused():
    refuses(ValueError, "rank 4 is not in a world of size 4", lambda: it.simulate("[a=4]", rank=4).__enter__())
    refuses(ValueError, "the ways of 'mpi' are not known", lambda: it.simulate("[a=4]", backend="mpi").__enter__())
    refuses(ValueError, "takes a mesh or a size", lambda: it.predict(lambda: None))
    refuses(ValueError, "cannot count memory of 'cuda'", lambda: it.MemoryMeter("cuda"))


def test_meter_counts_tensors_of_anyone():
    old = torch.ones(77)
    meter = it.MemoryMeter()
    assert meter.live() == 0
    x = torch.ones(1000)
    assert meter.live() == 4000
    y = -x
    del y, old
    assert meter.live() == 4000 and meter.peak() == 8000
    meter.reset()
    assert meter.peak() == meter.live()
    w = torch.randn(100, 100, requires_grad=True)
    (w @ w).sum().backward()
    assert meter.live() == 4000 + 2 * 40000
    with it.simulate("[x=2]"):
        abstract = it.MemoryMeter("meta")
        t = it.zeros((6, 5), "S(0)")
        assert abstract.live() == 60
        own = torch.empty(1000, device="meta")  # a program's own takes no memory
        assert abstract.peak() == 60 and own.is_meta
        del t
        assert abstract.live() == 0


@on_ranks(2, launcher="torchrun")
def test_meter_counts_fsdp_of_pytorch():
    torch.distributed.init_process_group("gloo")
    meter = it.MemoryMeter()
    torch.manual_seed(0)
    model = llama_model.Llama(SMALL)
    for part in [*model.blocks, model]:
        fully_shard(part)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, SMALL.vocab, (4, SMALL.sequence))
    logits = model(tokens, *llama_model.rotary_table(SMALL.sequence, SMALL.dim // SMALL.heads))
    F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
    del logits
    optimizer.step()
    kept = 4 * sum(p.to_local().nbytes for p in model.parameters())  # with gradients and two moments
    assert kept <= meter.live() <= 1.02 * kept and meter.peak() > 1.5 * kept, (kept, meter.live(), meter.peak())
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    run(globals())
