"""Code as it is written for one device: losses collected in plain tensors, scaled gradients, evaluation on torch's quick
ways, packed sequences, formats of memory. Each equals plain torch, or says what to do instead.
"""

import copy
import math

import intarsia as it
import torch
import torch.nn.functional as F
from _harness import on_ranks, refuses, run
from torch import nn
from torch.nn.utils import rnn

MESH = "[dp=2]"


def numbers(*sizes, seed=0):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def on_both(test):
    """The test in lockstep on 2 ranks; `test_..._on_processes` runs it on as many processes."""

    def in_lockstep():
        with it.lockstep(MESH):
            test()

    in_lockstep.__name__ = test.__name__

    @on_ranks(2)
    def on_processes():
        it.init(MESH)
        test()

    on_processes.__name__ = on_processes.body.__name__ = f"{test.__name__}_on_processes"
    globals()[on_processes.__name__] = on_processes
    return in_lockstep


# ---- plain tensors that are written ----------------------------------------------------------


@on_both
def test_a_plain_tensor_collects_losses():
    x = numbers(5, 4)
    for layout in ("S(0)", "S(1)", "R"):
        d = it.distribute(x, layout)
        total, same = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        before = total
        it.clear_bill()
        for t, of in ((total, d), (same, x)):
            t += of.mean()
            t += of.square().sum()
            t.mul_(of.max())
            t.lerp_(of.sum(), 0.3)
        assert total is before and not it.has_layout(total) and total._version == same._version
        torch.testing.assert_close(total, same)
        # What it needed is in the bill, as any hidden move.
        assert layout == "R" or "P->R dp  16 bytes" in str(it.bill()) or "P->R dp  8 bytes" in str(it.bill()), it.bill()


@on_both
def test_plain_tensors_are_written_in_full():
    x = numbers(5, 4)
    rows = torch.tensor([6, 0, 2, 4, 5])
    d = it.distribute(x, "S(0)")

    def written(of):
        out = [torch.zeros(5, 4, dtype=torch.float64) for _ in range(3)]
        out[0].copy_(of)
        out[1][of > 0] = 7.0
        out[2].addcmul_(of, of)
        big = torch.zeros(7, 4, dtype=torch.float64)
        big[1:6] = of
        indexed = torch.zeros(7, 4, dtype=torch.float64)
        indexed[rows] = of
        indexed.index_add_(0, rows, of)
        lists = [torch.ones(5, 4, dtype=torch.float64) for _ in range(2)]
        torch._foreach_add_(lists, [of, of * 2])
        torch._foreach_lerp_(lists, [of, of], 0.5)
        half = torch.zeros(5, 4)
        half.copy_(of)
        return [*out, big, indexed, *lists, half]

    for got, want in zip(written(d), written(x), strict=True):
        assert not it.has_layout(got)
        torch.testing.assert_close(got, want)


@on_both
def test_out_may_be_plain():
    x = numbers(4, 4)
    d = it.distribute(x, "S(0)")

    def given(of):
        outs = [torch.empty(0, dtype=torch.float64) for _ in range(5)]
        right = torch.empty(4, 4, dtype=torch.float64)
        places = torch.empty(0, dtype=torch.long)
        assert torch.add(of, of, out=right) is right
        torch.mm(of, of.t(), out=outs[0])
        torch.logsumexp(of, 0, out=outs[1])  # by formula, where the dimension is cut
        torch.sum(of, 0, out=outs[2])
        values = torch.sort(of, 0, out=(outs[3], places))
        assert values[0] is outs[3] and values[1] is places
        torch.linalg.matrix_norm(of, out=outs[4])
        return [right, *outs, places]

    for got, want in zip(given(d), given(x), strict=True):
        torch.testing.assert_close(got, want)


@on_both
def test_gradients_flow_through_plain_tensors_that_are_written():
    x = numbers(5, 4)

    def gradient(whole):
        a = whole.requires_grad_()
        total = torch.zeros((), dtype=torch.float64)
        total += a.square().sum()
        total += a.mean()
        buffer = torch.zeros(7, 4, dtype=torch.float64)
        buffer[1:6] = a * 3
        (total * 2 + buffer.square().sum()).backward()
        return a.grad

    got = gradient(it.distribute(x.clone(), "S(0)"))
    assert it.layout_of(got) == it.layout_of(it.distribute(x, "S(0)"))
    torch.testing.assert_close(it.full(got), gradient(x.clone()))
    leaf = torch.zeros(5, 4, dtype=torch.float64, requires_grad=True)
    refuses(RuntimeError, "a leaf Variable that requires grad", lambda: leaf.add_(it.distribute(x, "S(0)")))


@on_both
def test_explicit_mode_refuses_hidden_moves_into_plain_tensors():
    d = it.distribute(numbers(4, 4), "S(0)")
    plain = torch.zeros(4, 4, dtype=torch.float64)
    with it.CommunicationScope("explicit_only"):
        for write in (lambda: plain.copy_(d), lambda: plain.add_(d), lambda: torch.add(d, d, out=plain)):
            refuses(ValueError, "explicit", write)
        assert plain.abs().sum() == 0
        plain.add_(it.redistribute(d, "R"))
    torch.testing.assert_close(plain, numbers(4, 4))


@on_ranks(2)
def test_what_a_plain_tensor_held_before_it_is_overwritten_is_not_compared():
    it.init(MESH)
    d = it.distribute(numbers(4, 4), "S(0)")
    it.check_plain_tensors()
    plain = torch.full((4, 4), float(it.world().rank()), dtype=torch.float64)
    plain.copy_(d)
    torch.add(d, d, out=torch.full((4, 4), float(it.world().rank()), dtype=torch.float64))
    it.check_plain_tensors()
    plain.fill_(it.world().rank()).add_(d)
    refuses(torch.distributed.DistError, "differs on ranks 1", it.check_plain_tensors)


if __name__ == "__main__":
    run(globals())
