"""Distributed tensors from Python: on one process, and on two over Gloo."""

import threading
import time

import intarsia as it
import torch
from _harness import on_ranks, refuses, run
from torch.nn import functional as F


def whole(*sizes, seed=0):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def ready():
    """The default mesh over all ranks, made on first use."""
    return it.mesh() if it._world._mesh is not None else it.init()


def cut_and_join():
    ready()
    x, w = whole(5, 4), whole(3, 4, seed=1).requires_grad_()
    dx, dw = it.distribute(x, "S(0)"), it.distribute(w, "R")
    assert it.has_layout(dx) and not it.has_layout(x) and dx.shape == x.shape
    y = F.linear(dx, dw).relu()
    torch.testing.assert_close(it.full(y), F.linear(x, w).relu())
    y.sum().backward()
    expected = torch.autograd.grad(F.linear(x, w).relu().sum(), w)[0]
    torch.testing.assert_close(w.grad, expected)
    assert it.world_of(dx) is it.world() and it.layout_of(dx) == it.to_layout("S(0)")


def test_one_process_cuts_and_joins():
    cut_and_join()


@on_ranks(2)
def test_two_processes_cut_and_join():
    cut_and_join()


@on_ranks(2)
def test_two_processes_share_pieces():
    ready()
    rank = it.world().rank()
    x = whole(5, 4)
    dx = it.distribute(x, "S(0)")
    piece = it.local(dx)
    assert torch.equal(piece, x[3 * rank : 3 + 2 * rank])
    piece.fill_(rank)
    assert torch.equal(it.full(dx)[:, 0], torch.tensor([0.0, 0, 0, 1, 1]))
    again = it.from_local(piece, "S(0)", shape=(5, 4))
    assert it.local(again).data_ptr() == piece.data_ptr()
    moved = it.redistribute(dx, "S(-1)")
    assert it.layout_of(moved) == it.to_layout("S(1)") and torch.equal(it.full(moved), it.full(dx))


@on_ranks(2)
def test_factories_give_the_values_of_one_rank():
    ready()
    torch.manual_seed(3)
    split = [it.randn((6, 2), "S(0)"), it.rand(5, "S(0)"), it.randint(0, 9, (4, 4), "S(1)"), it.randperm(7, "S(0)")]
    torch.manual_seed(3)
    same = [it.randn((6, 2), "R"), it.rand(5, "R"), it.randint(0, 9, (4, 4), "R"), it.randperm(7, "R")]
    for a, b in zip(split, same):
        assert torch.equal(it.full(a), it.full(b)), it.describe(a)
    assert torch.equal(it.full(it.arange(0, 7, 2, "S(0)")), torch.arange(0, 7, 2))
    assert torch.equal(it.full(it.full_of((3, 2), 4, "S(0)")), torch.full((3, 2), 4))
    z = it.zeros((4, 2), "S(0)", dtype=torch.float64, requires_grad=True)
    assert z.dtype is torch.float64 and z.requires_grad and z.is_leaf
    assert it.ones((2, 2), "R").sum().item() == 4 and it.empty((4,), "S(0)", dtype=torch.int8).shape == (4,)


@on_ranks(2)
def test_local_region_calls_python_and_differentiates():
    ready()
    x, w = whole(4, 3), whole(3, 2, seed=1)
    dx, dw = it.distribute(x, "S(0)").requires_grad_(), it.distribute(w, "R").requires_grad_()

    def body(a, b):
        assert not it.has_layout(a) and a.shape == (2, 3)
        return a @ b

    y = it.local_region(body, [dx, dw], ["S(0)", "R"], "S(0)", grads=[None, "P(sum)"])
    y.square().sum().backward()
    px, pw = x.clone().requires_grad_(), w.clone().requires_grad_()
    (px @ pw).square().sum().backward()
    torch.testing.assert_close(it.full(y), x @ w)
    torch.testing.assert_close(it.full(dx.grad), px.grad)
    torch.testing.assert_close(it.full(dw.grad), pw.grad)
    two = it.local_region(lambda a: (a + 1, a.sum(0)), [dx.detach()], ["S(0)"], ["S(0)", "P(sum)"])
    torch.testing.assert_close(it.full(two[1]), x.sum(0))

    def wrong(a):
        raise KeyError("from the body")

    refuses(KeyError, "from the body", lambda: it.local_region(wrong, [dx.detach()], ["S(0)"], "S(0)"))


@on_ranks(2)
def test_other_threads_run_while_one_communicates():
    ready()
    t = it.distribute(whole(4, 4), "S(0)")
    it.full(t)  # the group is made
    count, done = [0], threading.Event()

    def tick():
        while not done.is_set():
            count[0] += 1
            time.sleep(0.005)

    thread = threading.Thread(target=tick)
    thread.start()
    if it.world().rank() == 1:
        time.sleep(0.6)
    before = count[0]
    it.full(t)
    waited = count[0] - before
    done.set()
    thread.join()
    assert it.world().rank() == 1 or waited > 20, waited


@on_ranks(2)
def test_gradients_may_be_computed_in_another_thread():
    ready()
    x = it.distribute(whole(4, 4), "S(0)").requires_grad_()
    loss = it.redistribute(x * 2, "R").sum()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    assert torch.equal(it.full(x.grad), torch.full((4, 4), 2.0))


@on_ranks(2)
def test_communication_is_visible():
    ready()
    t = it.distribute(whole(4, 4), "S(0)")
    with it.Budget("1 S->R"):
        it.full(t)
    budget = it.Budget()
    assert budget.spent() == ""
    budget.expect("")
    refuses(ValueError, "", lambda: budget.expect("1 P->R"))
    partial = it.from_local(torch.ones(2), "P(sum)")
    with it.CommunicationScope("explicit_only"):
        assert it.communication() is it.Communication.explicit_only
        refuses(ValueError, "aten::", lambda: partial.relu())
    assert it.communication() is it.Communication.automatic
    it.clear_bill()
    with it.ModuleScope("block"), it.ModuleScope("inner"):
        assert torch.equal(it.full(partial.relu()), torch.full((2,), 2.0))
    entry = it.bill().entries[0]
    assert (entry.module, entry.implicit, entry.transition) == ("block.inner", True, "P->R"), str(it.bill())
    refuses(ValueError, "no mode", lambda: it.set_communication("loud"))
    ledger = it.world().ledger()
    assert ledger.totals().calls >= len(ledger.entries()) > 0 and "all_gather" in ledger.dump()


def test_cache_counters():
    ready()
    t = it.distribute(whole(4, 4), "S(0)")
    it.clear_cache()
    t + 1, t + 1
    counters = it.cache_counters()
    assert counters.entries >= 1 and counters.limit == 4096
    it.set_cache_limit(10)
    assert it.cache_counters().limit == 10
    it.set_cache_limit(4096)


def test_errors_name_the_function_and_are_pythons():
    ready()
    t = it.distribute(whole(4, 4), "S(0)")
    refuses(ValueError, "[distribute]", lambda: it.distribute(t, "R"))
    refuses(ValueError, "[layout_of]", lambda: it.layout_of(whole(2)))
    refuses(ValueError, "", lambda: it.distribute(whole(4), "S(1)"))
    refuses(ValueError, "[from_local]", lambda: it.from_local(whole(4), "S(0)", shape=(9,)))
    refuses(ValueError, "[local_region]", lambda: it.local_region(lambda: None, [], [], "R"))


def test_layout_texts_may_bring_their_mesh():
    ready()
    t = it.distribute(whole(4, 4), "[solo=1] S(0)")
    assert it.layout_of(t).mesh().names() == ["solo"]
    assert it.layout_of(it.redistribute(t, "S(1)")).mesh().names() == ["solo"]
    u = it.distribute(whole(4, 4), "S(0)", mesh={"other": 1}, world=it.world())
    assert it.layout_of(u).mesh().names() == ["other"]


def test_blocks_come_apart_without_a_message():
    """Gates that one matrix computes, cut so that each rank has its part of every gate."""
    x = torch.randn(4, 12)

    def gated(x):
        a, b, c, d = x.chunk(4, 1)
        return a.sigmoid() * b.tanh() + c * d

    plain = x.clone().requires_grad_()
    gated(plain).sum().backward()
    with it.lockstep("[dp=2,tp=2]"):
        d = it.distribute(x, "S(0),SS(1,4)").requires_grad_()
        with it.Budget(""):
            y = gated(d)
            y.sum().backward()
        assert str(it.layout_of(y)) == "[dp=2,tp=2] S(0),S(1)", it.layout_of(y)
        torch.testing.assert_close(it.full(y), gated(x))
        torch.testing.assert_close(it.full(d.grad), plain.grad)


if __name__ == "__main__":
    run(globals())
