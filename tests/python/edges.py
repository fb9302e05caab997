"""Small programs of users, each with what must come of it: right, as plain torch has it, or an error with these words.

    python tests/python/edges.py            # prints a table, in lockstep and on 2 processes; exit code 0 where all hold

A case that is refused must be so in words that name what to write instead.
"""

import copy
import gc
import pathlib
import sys
import tempfile

import intarsia as it
import museum
import torch
from _harness import on_ranks, launched
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException

CASES = {}
F64 = torch.float64


def case(name, mesh="[dp=2]", refused=None):
    def declare(body):
        CASES[name] = (mesh, refused, body)
        return body

    return declare


def equal(got, wanted):
    got = it.full(got.detach()) if it.has_layout(got) else got.detach()
    torch.testing.assert_close(got, wanted.detach(), rtol=1e-5, atol=1e-6)


# ---- programs of several ops: those of the museum, under the name of what they do -----------------

for _name in [name for name, case_ in museum.CASES.items() if case_.section == "Programs of several ops"]:

    def _in_museum(_name=_name):
        import test_museum

        for ranks in (2, 3, 4):
            getattr(test_museum, f"test_{_name}_{ranks}")()

    CASES[_name.replace("_", " ")] = (None, None, _in_museum)


@case("a dropped model is freed")
def dropped_model():
    def memory():
        gc.collect()
        return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4

    for i in range(60):
        if i == 40:
            before = memory()
        model = nn.Linear(1000, 1000)
        it.fully_shard(model)
        del model
    assert memory() - before < 8 * 1024, f"{memory() - before} KiB more after 20 models of 4 MB"


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError("planned")


@case("training goes on after a backward that failed")
def after_a_failed_backward():
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])
    plain = copy.deepcopy(model)
    it.fully_shard(model)
    x = torch.randn(4, 4)
    d = it.distribute(x, "S(0)")
    model(d).sum().backward()
    try:
        model[2](model[1](Failing.apply(model[0](d)))).sum().backward()
    except RuntimeError as error:
        assert "planned" in str(error)
    for _ in range(2):
        model.zero_grad()
        plain.zero_grad()
        model(d).square().sum().backward()
        plain(x).square().sum().backward()
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            equal(ours.grad, theirs.grad)


# ---- habits -------------------------------------------------------------------------------------


@case("module.to(device), .float(), tied weights to bf16")
def to_where_it_is():
    import test_habits

    test_habits.test_a_tensor_may_be_its_own_data()
    test_habits.test_modules_go_to_where_they_are()


@case("inference_mode")
def inference_mode():
    import test_habits

    test_habits.test_inference_mode()


@case("hooks after the first use", mesh=None)
def hooks():
    import test_habits

    test_habits.test_a_hook_after_the_first_use_leaves_the_layout_of_the_gradient()


@case("random ops draw the same on any number of ranks", mesh=None)
def random_streams():
    import test_habits

    test_habits.test_random_ops_without_a_rule_draw_the_same_on_any_number_of_ranks()
    test_habits.test_bernoulli_draws_from_its_generator()


@case("TransformerEncoder in eval() with a padding mask")
def encoder():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x, mask = torch.randn(8, 6, 32), torch.zeros(8, 6, dtype=torch.bool)
    mask[:, 4:] = True
    with torch.no_grad():
        wanted = model(x, src_key_padding_mask=mask)
        it.parallelize(model, it.mesh(), {})
        got = model(it.distribute(x, "S(0)"), src_key_padding_mask=it.distribute(mask, "S(0)"))
    equal(it.full(got)[:, :4], wanted[:, :4])


@case("GradScaler")
def grad_scaler():
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    plain = copy.deepcopy(model)
    it.fully_shard(model)
    for net, x in ((model, it.distribute(torch.ones(4, 4), "S(0)")), (plain, torch.ones(4, 4))):
        optimizer, scaler = torch.optim.SGD(net.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
        scaler.scale(net(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    equal(model.weight, plain.weight)


@case("adaptive pooling in channels_last")
def adaptive_pooling():
    x = torch.randn(8, 16, 4, 4)
    pool = nn.AdaptiveAvgPool2d(1)
    equal(pool(it.distribute(x, "S(0)").to(memory_format=torch.channels_last)), pool(x))


@case("a plain tensor collects losses")
def collected_losses():
    total = torch.zeros(())
    total += it.distribute(torch.ones(4), "S(0)").mean()
    equal(total, torch.ones(()))


@case("max_pool1d without gradients, trunc_normal_, new_tensor, pixel_unshuffle of no channels")
def small_refusals():
    x = torch.randn(2, 3, 8)
    equal(nn.functional.max_pool1d(it.distribute(x, "S(0)"), 2), nn.functional.max_pool1d(x, 2))
    d = it.distribute(x, "S(0)")
    nn.init.trunc_normal_(d)
    assert it.full(d).abs().max() <= 2
    equal(d.new_tensor(1.0), torch.tensor(1.0))
    equal(d.new_tensor(1.0, device="cpu"), torch.tensor(1.0))
    nn.functional.pixel_unshuffle(it.distribute(torch.zeros(1, 0, 2, 2), "S(0)"), 2)
    equal(it.distribute(torch.randn(4, 3), "S(0)").expand(2, 4, 3).clone().view(-1) * 0, torch.zeros(24))


@case("redistribute_between in a world of one rank", mesh="[a=1]")
def between_in_a_world_of_one():
    equal(it.redistribute_between(it.distribute(torch.ones(4), "S(0)"), "[p=1] R"), torch.ones(4))


@case("packed sequences", refused="pack_padded_sequence")
def packed():
    from torch.nn.utils.rnn import pack_padded_sequence

    lstm = nn.LSTM(8, 16, batch_first=True)
    it.parallelize(lstm, it.mesh(), {})
    lstm(pack_padded_sequence(it.distribute(torch.randn(4, 5, 8), "S(0)"), [5, 4, 4, 1], batch_first=True))


@case("an optimizer that was made before sharding")
def optimizer_before():
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    plain = copy.deepcopy(model)
    optimizer, beside = (torch.optim.AdamW(net.parameters(), lr=0.1) for net in (model, plain))
    it.fully_shard(model)
    model(it.distribute(torch.ones(4, 4), "S(0)")).sum().backward()
    plain(torch.ones(4, 4)).sum().backward()
    optimizer.step()
    beside.step()
    equal(model.weight, plain.weight)
    it.check_optimizer(optimizer, model)


@case("parameters on the meta device that nothing sets", refused="meta")
def meta_parameters():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), Scale())
    it.fully_shard(model)


@case("llama_plan on a model with experts", mesh="[tp=2]")
def plan_with_experts():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.self_attn, self.mlp = nn.Module(), nn.Module()
            for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
                self.self_attn.add_module(name, nn.Linear(8, 8, bias=False))
            self.mlp.experts = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])
            self.mlp.gate = nn.Linear(8, 2)

    model = nn.Module()
    model.model = nn.Module()
    model.model.embed_tokens, model.model.layers = nn.Embedding(16, 8), nn.ModuleList([Block()])
    model.lm_head = nn.Linear(8, 16, bias=False)
    it.parallelize(model, it.mesh(), it.llama_plan())
    assert "S(0)" in str(it.layout_of(model.model.layers[0].self_attn.q_proj.weight))


@case("load_state_dict(assign=True)", refused="assign")
def assigned_state():
    model = nn.Linear(4, 4)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    it.fully_shard(model)
    model.load_state_dict(state, assign=True)


@case("torch.distributed.checkpoint of sharded tensors", refused="full_state_dict")
def distributed_checkpoint():
    import torch.distributed.checkpoint as dcp

    model = nn.Linear(4, 4)
    it.fully_shard(model)
    dcp.save(model.state_dict(), checkpoint_id=tempfile.mkdtemp())


@case("dlpack of a sharded tensor", refused="local(")
def dlpack():
    torch.from_dlpack(it.distribute(torch.ones(4), "S(0)"))


# ---- on processes -------------------------------------------------------------------------------


@on_ranks(2)
def test_pieces_of_one_element():
    it.init({"a": 2}) if it._world._mesh is None else None
    for rows in (1, 2, 3):
        full = torch.arange(rows * 5.0).reshape(rows, 5)
        equal(it.distribute(full, "S(0)")[:, 0], full[:, 0])


@on_ranks(2)
def test_sync_batch_norm_under_replicate():
    mesh = it.mesh() if it._world._mesh is not None else it.init({"a": 2})
    torch.manual_seed(0)
    x, rank = torch.randn(8, 2), it.world().rank()
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(2))
    it.replicate(model)
    equal(model(x.chunk(2)[rank]), nn.BatchNorm1d(2)(x).chunk(2)[rank])
    assert mesh.ranks() == 2 if hasattr(mesh, "ranks") else True


ON_PROCESSES = {
    "pieces of one element or none, on processes": test_pieces_of_one_element,
    "SyncBatchNorm under replicate, on processes": test_sync_batch_norm_under_replicate,
}
# Ranks that hold or call different things are the guard's: tests/guard/faults.py.


def outcome(mesh, refused, body):
    """`right`, `refused: ...`, or what is wrong."""
    try:
        if mesh is None:
            body()
        else:
            with it.lockstep(mesh):
                body()
    except (Exception, CheckpointException) as error:
        text = " ".join(str(error).split())
        if refused is not None and refused in text:
            return True, f"refused: {text[:110]}"
        return False, f"{type(error).__name__}: {text[:300]}"
    return True, "right"


def main():
    rows = [(name, *outcome(*case_)) for name, case_ in CASES.items()]
    for name, test in ON_PROCESSES.items():
        try:
            test()
            rows.append((name, True, "right"))
        except AssertionError as error:
            rows.append((name, False, " ".join(str(error).split())[-400:]))
    for name, holds, text in rows:
        print(f"{'ok  ' if holds else 'FAIL'} {name}: {text}")
    good = sum(holds for _, holds, _ in rows)
    print(f"{good} of {len(rows)} cases right or refused in words")
    return 0 if good == len(rows) else 1


if __name__ == "__main__":
    from _harness import AS_RANK, run

    run(globals()) if AS_RANK in sys.argv else sys.exit(main())
