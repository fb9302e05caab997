"""Equiv: programs on layouts beside the serial one, from Python."""

import contextlib
import functools
import random
import subprocess
import sys

import intarsia as it
import torch
from _harness import on_ranks, refuses, run
from torch import nn


def plain(value):
    return value


def train(wrap=plain, place=plain, *, steps=2, before_step=plain, scale=1.0, model=None):
    torch.manual_seed(0)
    net = wrap(nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)) if model is None else model())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for step in range(steps):
        torch.manual_seed(100 + step)
        inputs, labels = place(torch.randn(6, 5)), place(torch.randint(0, 3, (6,)))
        (nn.functional.cross_entropy(net(inputs), labels) * scale).backward()
        before_step(net)
        optimizer.step()
        optimizer.zero_grad()


def sharded(net):
    it.fully_shard(net, mesh=it.mesh(), shard="x")
    return net


def rows(tensor):
    return it.distribute(tensor, "S(0)")


def drop_a_bias(net):
    net[3].bias.grad.zero_()


@functools.cache
def reference(samples=8):
    return it.EquivReference(train, samples=samples)


def test_layouts_in_lockstep_are_equal():
    for ranks in (1, 2, 4, 7):  # the last with empty pieces
        with it.lockstep(f"[x={ranks}]"):
            report = reference().compare(lambda: train(sharded, rows))
            assert report.equal and report.compared > 40 and report.ratio < 0.5, str(report)
            assert ranks == 1 or report.ratio > 0, "sums are added in another order"


def test_a_fault_is_named_with_module_element_and_values():
    with it.lockstep("[x=2]"):
        report = reference().compare(lambda: train(sharded, rows, before_step=drop_a_bias))
        assert not report.equal and report.module == "3" and report.first.key.step == 0
        for word in ("gradient of 3.bias", "element (", "in the reference", "rounding explains"):
            assert word in str(report), str(report)
        refuses(AssertionError, "the runs part in 3, in step 0", report.check)
        wrong = reference().compare(lambda: train(sharded, rows, scale=0.5))
        assert wrong.module == "" and "loss" in str(wrong.first.key)


def test_tolerances_follow_the_dtype():
    def narrow(net):
        for p in net.parameters():
            p.grad = p.grad.bfloat16().to(p.grad.dtype)

    assert not reference().compare(lambda: train(before_step=narrow)).equal
    low = it.EquivReference(lambda: train(lambda net: net.bfloat16(), lambda t: t.bfloat16() if t.is_floating_point() else t), samples=8)
    with it.lockstep("[x=2]"):
        placed = lambda t: rows(t.bfloat16() if t.is_floating_point() else t)  # noqa: E731
        report = low.compare(lambda: train(lambda net: sharded(net.bfloat16()), placed))
    assert report.equal, str(report)
    assert low._rounding.allowed(report_key(low))[0] > 1000 * reference()._rounding.allowed(report_key(reference()))[0]


def report_key(of):
    return next(key for key in of._rounding.values if key.kind == "gradient")


def test_what_proves_nothing_is_refused():
    def dead(net):
        net[0].weight.grad.zero_()

    class Detached(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x[:, :3] * (self.weight * 0.0)

    refuses(ValueError, "gradients that are zero in all steps of the reference prove nothing: 0.weight", lambda: it.EquivReference(lambda: train(before_step=dead)))
    refuses(ValueError, "it learns nothing", lambda: it.EquivReference(lambda: train(model=Detached)))
    refuses(ValueError, "no backward of a loss", lambda: it.EquivReference(lambda: None))
    refuses(ValueError, "samples must be even", lambda: it.EquivReference(train, samples=3))
    seeds = iter(range(100))

    def unseeded(net):
        torch.manual_seed(next(seeds))
        net[0].weight.grad += torch.randn(8, 5)

    refuses(ValueError, "not the same when it is run again: gradient of 0.weight", lambda: it.EquivReference(lambda: train(before_step=unseeded)))


def test_programs_of_another_shape():
    report = reference().compare(lambda: train(steps=1))
    assert not report.equal and "the run has none" in str(report)

    def frozen(net):
        net[0].requires_grad_(False)
        return net

    report = reference().compare(lambda: train(frozen))
    assert not report.equal and "gradient of 0.weight: the run has none" in str(report)
    wide = reference().compare(lambda: train(model=lambda: nn.Sequential(nn.Linear(5, 9), nn.LayerNorm(9), nn.GELU(), nn.Linear(9, 3))))
    assert "no layout makes that of rank 0 [6, 9]" in str(wide), str(wide)


def test_accumulation_adds_up():
    def accumulated(scale):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        for step in range(2):
            torch.manual_seed(100 + step)
            inputs, labels = torch.randn(6, 5), torch.randint(0, 3, (6,))
            for x, y in zip(inputs.chunk(3), labels.chunk(3), strict=True):
                (nn.functional.cross_entropy(net(x), y) * scale).backward()
            optimizer.step()
            optimizer.zero_grad()

    report = reference().compare(lambda: accumulated(1 / 3))
    assert report.equal, str(report)
    assert report.not_compared == ["outputs of 0, 1, 2, 3, the model: 2 calls in the reference, 6 in the run"], str(report)
    assert not reference().compare(lambda: accumulated(1.0)).equal


def test_hooks_are_gone_after_an_error():
    def fails():
        train(steps=1)
        raise KeyError("here")

    before = torch.autograd.backward
    refuses(KeyError, "here", lambda: reference().compare(fails))
    assert torch.autograd.backward is before
    assert not torch.nn.modules.module._global_forward_hooks and reference().compare(train).equal


def test_checkpointed_outputs_count_once():
    from torch.utils.checkpoint import checkpoint

    class Again(nn.Sequential):
        def forward(self, x):
            for part in self:
                x = checkpoint(part, x, use_reentrant=False)
            return x

    report = reference().compare(lambda: train(model=lambda: Again(nn.Linear(5, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))))
    assert report.equal and not report.not_compared, str(report)


def check_random_layouts(mesh, seeds):
    """Any layout of any parameter and of the batch, on any mesh, is equal; one gradient that is off by a hundredth is not."""
    axes = mesh.count("=")
    for seed in seeds:
        draw = random.Random(seed)

        def layout(dims, draw=draw):
            return ",".join(draw.choice(["R", *(f"S({d})" for d in range(dims))]) for _ in range(axes))

        names = {"0.weight": 2, "0.bias": 1, "1.weight": 1, "1.bias": 1, "3.weight": 2, "3.bias": 1}
        layouts = {name: layout(dims) for name, dims in names.items()}
        batch = layout(1)
        wrong = draw.choice(list(names))

        def parallel(net, layouts=layouts):
            it.parallelize(net, it.mesh(), layouts)
            return net

        def off(net, wrong=wrong):
            net.get_parameter(wrong).grad.mul_(1.01)

        report = reference().compare(lambda: train(parallel, lambda t: it.distribute(t, batch)))
        assert report.equal and report.ratio < 1 / 3, f"seed {seed}, {batch}, {layouts}: {report}"
        report = reference().compare(lambda: train(parallel, lambda t: it.distribute(t, batch), before_step=off))
        assert report.module == wrong.partition(".")[0] and wrong in str(report.first.key), f"seed {seed}, {batch}, {layouts}: {report}"


def test_random_layouts_in_lockstep():
    for i, mesh in enumerate(("[x=2]", "[x=3]", "[a=2,b=2]", "[a=2,b=3]")):
        with it.lockstep(mesh):
            check_random_layouts(mesh, range(6 * i, 6 * i + 6))


@on_ranks(2)
def test_random_layouts_on_processes():
    it.init("[x=2]")
    check_random_layouts("[x=2]", range(100, 106))


@on_ranks(4)
def test_random_layouts_on_two_axes():
    it.init("[a=2,b=2]")
    check_random_layouts("[a=2,b=2]", range(200, 204))


def test_dropout_is_compared_with_a_mesh_of_one_rank():
    def model():
        return nn.Sequential(nn.Linear(5, 16), nn.Dropout(0.5), nn.LayerNorm(16), nn.Linear(16, 3))

    with it.lockstep("[x=1]"):
        of_one = it.EquivReference(lambda: train(sharded, rows, model=model))
    with it.lockstep("[x=2]"):
        report = of_one.compare(lambda: train(sharded, rows, model=model))
        assert report.equal and 0 < report.ratio < 0.5, str(report)
        assert of_one.compare(lambda: train(sharded, rows, model=model, before_step=lambda net: net[0].weight.grad[0].zero_())).module == "0"
        refuses(ValueError, "a reference runs on one rank", lambda: it.EquivReference(lambda: train(sharded, rows)))


def test_replay_finds_a_machine_that_computes_otherwise():
    it.replay(train)
    times = iter(range(10))

    def flips(net):
        if next(times) == 3:  # the second step of the second run
            net[0].bias.grad[1] *= 1 + 1e-6

    refuses(AssertionError, "rank 0 computed other bits the second time: gradient of 0.bias of step 1", lambda: it.replay(lambda: train(before_step=flips)))


@on_ranks(2)
def test_on_processes_all_ranks_have_the_report():
    it.init()
    assert reference().compare(lambda: train(sharded, rows)).equal
    report = it.equiv(train, lambda: train(sharded, rows, before_step=drop_a_bias), samples=8)
    assert report.module == "3", str(report)
    # Plain modules, whose gradients nobody averages.
    mine = lambda t: t.chunk(2)[it.world().rank()]  # noqa: E731
    assert reference().compare(lambda: train(lambda net: (it.replicate(net), net)[1], mine)).equal
    assert reference().compare(lambda: train(place=mine)).module == "3"


@on_ranks(2)
def test_a_rank_that_fails_is_told_to_all():
    it.init()

    def program():
        if it.world().rank() == 1:
            raise IndexError("row 9")
        train()

    error, text = (IndexError, "row 9") if it.world().rank() == 1 else (RuntimeError, "rank 1 failed: IndexError: row 9")
    refuses(error, text, lambda: reference().compare(program))


@on_ranks(2)
def test_a_rank_that_skips_a_step_is_not_equal():
    it.init()

    def program(wrap, place):
        steps = iter(range(2))

        def leave(net):
            if next(steps) == 1 and it.world().rank() == 1:
                raise StopIteration

        with contextlib.suppress(StopIteration):  # before the last step of its optimizer
            train(wrap, place, before_step=leave)

    def parallel(net):
        it.parallelize(net, it.mesh(), {})
        return net

    for wrap, place in ((parallel, rows), (plain, plain)):
        report = reference().compare(lambda: program(wrap, place))
        assert not report.equal and "no layout makes that of rank 0" in str(report), str(report)


SCRIPT = """
import os, sys, torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Linear(8, 3)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(2):
    torch.manual_seed(step)
    x, y = torch.randn(6, 5), torch.randint(0, 3, (6,))
    x, y = (t[:6 // ranks] if "wrong" in sys.argv else t.chunk(ranks)[rank] for t in (x, y))
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def test_the_command():
    def equiv(*arguments):
        command = [sys.executable, "-m", "intarsia", "equiv", "--samples", "2", "--timeout", "100", "--", sys.executable, "-c", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)

    done = equiv(SCRIPT)
    assert done.returncode == 0 and "[equiv] equal" in done.stdout, done.stdout + done.stderr
    failed = equiv("raise SystemExit(3)")
    assert failed.returncode == 2 and "rank 0 of 1 ended with 3" in failed.stderr, failed.stderr
    nothing = equiv("import torch")
    assert nothing.returncode == 2 and "trained nothing" in nothing.stderr, nothing.stderr


if __name__ == "__main__":
    run(globals())
