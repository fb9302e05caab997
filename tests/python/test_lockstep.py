"""One process that hosts every rank: the block, the pieces of all ranks, and what is refused."""

import copy
import io
import pickle

import intarsia as it
import torch
from _harness import on_ranks, refuses, run
from torch import nn

WHOLE = torch.arange(35.0).reshape(5, 7)


def test_the_block_sets_defaults_and_restores_them():
    it.close()
    with it.lockstep("[dp=4,tp=2]") as world:
        assert it.world() is world and it.mesh() == it.Mesh.parse("[dp=4,tp=2]")
        assert world.in_lockstep() and world.hosted() == tuple(range(8)) and world.size() == 8
        assert repr(world) == "<World 8 ranks in lockstep>"
    assert world.closed() and repr(world) == "<World 8 ranks in lockstep, closed>"
    refuses(ValueError, "no default mesh", it.mesh)
    mesh = it.init()
    alone = it.world()
    assert not alone.in_lockstep() and alone.hosted() == (0,)
    with it.lockstep("[x=2]"):
        assert it.world() is not alone
    assert it.world() is alone and it.mesh() is mesh and not alone.closed()
    it.close()


def test_blocks_take_meshes_of_every_kind_and_nest():
    with it.lockstep({"dp": 2}) as outer:
        a = it.distribute(WHOLE, "S(0)")
        with it.lockstep(it.Mesh.parse("[a=3,b=2]")) as inner:
            assert it.world() is inner and inner.size() == 6
            b = it.distribute(WHOLE, "S(1),S(0)")
            assert it.layout_of(a + a) == it.layout_of(a)  # of the block around it
            assert torch.equal(it.full(b), it.full(a))
        assert it.world() is outer and not outer.closed() and inner.closed()
        refuses(it.WorldError, "closed", lambda: it.full(b))
        with it.lockstep([("x", 1)]) as one:
            assert one.rank() == 0 and not one.in_lockstep()
        assert torch.equal(it.full(a), WHOLE)


def test_errors_end_the_block_too():
    kept = []

    def fails():
        with it.lockstep("[x=2]") as world:
            kept.append(world)
            raise KeyError("mine")

    refuses(KeyError, "mine", fails)
    assert kept[0].closed() and it._world._world is not kept[0]
    refuses(ValueError, "", lambda: it.lockstep("[x=0]").__enter__())


def test_a_tensor_has_a_piece_of_every_rank():
    with it.lockstep("[dp=2,tp=3]"):
        t = it.distribute(WHOLE, "S(0),S(1)")
        pieces = it.locals(t)
        assert len(pieces) == 6 and torch.equal(pieces[4], WHOLE[3:, 3:6])
        again = it.from_locals(pieces, "S(0),S(1)", shape=WHOLE.shape)
        assert torch.equal(it.full(again), WHOLE)
        assert torch.equal(it.full(t.t() @ t), WHOLE.t() @ WHOLE)
        assert torch.equal(it.full(it.from_locals([torch.ones(2)] * 6, "P(sum),R")), torch.full((2,), 2.0))
        assert it.from_locals([torch.ones(2, 1)] * 6, "R,S(-1)").shape == (2, 3)


def test_gradients_go_through_pieces():
    with it.lockstep("[dp=3]"):
        x = it.distribute(WHOLE, "S(0)").requires_grad_()
        scaled = [piece * (rank + 1) for rank, piece in enumerate(it.locals(x))]
        it.from_locals(scaled, "S(0)", shape=WHOLE.shape).sum().backward()
        assert it.full(x.grad)[:, 0].tolist() == [1, 1, 2, 2, 3]
        r = it.distribute(WHOLE, "R").requires_grad_()
        refuses(ValueError, "grad_layout", lambda: it.locals(r))
        sum(piece.sum() for piece in it.locals(r, "P(sum)")).backward()
        assert torch.equal(it.full(r.grad), torch.full((5, 7), 3.0))


def test_refusals_say_what_works():
    with it.lockstep("[dp=2]") as world:
        t = it.distribute(WHOLE, "S(0)")
        refuses(ValueError, "locals() gives them all", lambda: it.local(t))
        refuses(ValueError, "hosts 2 ranks", world.rank)
        refuses(ValueError, "from_locals", lambda: it.from_local(WHOLE, "S(0)"))
        refuses(ValueError, "2 ranks of [dp=2], but 1 pieces", lambda: it.from_locals([WHOLE], "S(0)"))


def test_regions_run_once_for_each_rank():
    with it.lockstep("[dp=2,tp=2]"):
        x = it.distribute(WHOLE, "S(0),R").requires_grad_()
        sizes = []

        def body(a):
            sizes.append(a.shape[0])
            return a / 2

        y = it.local_region(
            body, [x], ["S(0),R"], "S(0),P(sum)", grads=["S(0),P(sum)"], shapes=[WHOLE.shape]
        )
        assert sizes == [3, 3, 2, 2] and torch.equal(it.full(y), WHOLE)
        y.sum().backward()
        assert torch.equal(it.full(x.grad), torch.ones(5, 7))
        refuses(ZeroDivisionError, "", lambda: it.local_region(lambda a: 1 / 0, [x], ["S(0),R"], "R,R", grads=["S(0),R"]))


def test_replicas_that_differ_are_named():
    with it.lockstep("[dp=2,tp=2]"):
        t = it.distribute(torch.tensor([1.0, float("nan")]), "R,S(0)")
        it.assert_replicas(t)
        it.locals(t)[2][0] = 7
        refuses(it.WorldError, "'w'", lambda: it.assert_replicas(t, name="w"))
        refuses(it.WorldError, "rank 2 differs from rank 0", lambda: it.assert_replicas(t))


@on_ranks(2)
def test_replicas_are_compared_between_processes_too():
    it.init()
    piece = torch.zeros(3)
    t = it.from_locals([piece], "R")
    assert it.locals(t)[0].data_ptr() == piece.data_ptr() and not it.world().in_lockstep()
    it.assert_replicas(t)
    piece[1] = it.world().rank()
    refuses(it.WorldError, "rank 1 differs from rank 0", lambda: it.assert_replicas(t, name="t"))
    with it.lockstep("[x=3]"):  # beside the processes
        assert torch.equal(it.full(it.distribute(WHOLE, "S(1)")), WHOLE)
    assert it.world().size() == 2 and it.full(it.ones((2,), "S(0)")).sum() == 2


def test_printing_shows_the_pieces_of_all_ranks():
    with it.lockstep("[x=2]"):
        t = it.distribute(torch.arange(3.0), "S(0)")
        assert repr(t) == (
            "distributed f32[3@x] on [x=2]\n"
            "rank 0 holds [0,2):\ntensor([0., 1.])\n"
            "rank 1 holds [2,3):\ntensor([2.])"
        )
        assert str(t) == repr(t) == f"{t}"
        parameter = nn.Parameter(t)
        assert "requires_grad=True\nrank 0" in repr(parameter) and "MulBackward0" in repr(parameter * 2)
        assert "rank 1 holds" in it.show(t)
    with it.lockstep("[x=256]"):
        text = repr(it.distribute(torch.arange(256.0), "S(0)"))
        assert text.count("holds") == 8 and "\n... 248 more ranks ...\nrank 252 holds" in text
    assert "f32[3@x] on [x=2]" in repr(t)  # the block has ended


def test_copies_are_new_pieces():
    with it.lockstep("[x=3]"):
        t = it.distribute(WHOLE, "S(0)")
        t.note = ["kept"]
        for original in (t, t.detach().requires_grad_(), nn.Parameter(t.detach()), it.from_locals([WHOLE] * 3, "P(sum)")):
            new = copy.deepcopy(original)
            assert type(new) is type(original) and it.layout_of(new) == it.layout_of(original)
            assert new.requires_grad == original.requires_grad
            for a, b in zip(it.locals(new.detach()), it.locals(original.detach())):
                assert a.data_ptr() != b.data_ptr() and torch.equal(a, b)
        assert copy.deepcopy(t).note == ["kept"]
        module = it.parallelize(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), it.mesh(), {"0.weight": "S(0)"})
        assert [it.describe(a) for a in copy.deepcopy(module).state_dict().values()] == [
            it.describe(a) for a in module.state_dict().values()
        ]


def test_pickles_hold_the_pieces_of_all_ranks():
    with it.lockstep("[x=3]"):
        t = it.distribute(WHOLE, "S(0)")
        partial = it.from_locals([WHOLE, -WHOLE, WHOLE], "P(sum)")
        for original in (t, partial, t.detach().requires_grad_(), nn.Parameter(t.detach()), t.t()):
            new = pickle.loads(pickle.dumps(original))
            assert type(new) is type(original) and it.layout_of(new) == it.layout_of(original)
            assert new.requires_grad == original.requires_grad and torch.equal(it.full(new), it.full(original))
        assert it.locals(copy.copy(t))[2].data_ptr() == it.locals(t)[2].data_ptr()
        file = io.BytesIO()
        torch.save({"t": t, "p": nn.Parameter(t)}, file)
        file.seek(0)
        assert torch.equal(it.full(torch.load(file)["p"]), WHOLE)
        written = pickle.dumps(t)
    with it.lockstep("[x=3]"):
        assert torch.equal(it.full(pickle.loads(written)), WHOLE)
    with it.lockstep("[x=2]"):
        refuses(ValueError, "pickled by 3 ranks in lockstep, and this is 2", lambda: pickle.loads(written))
    it.init()
    refuses(ValueError, "this is rank 0 of 1; to read", lambda: pickle.loads(written))
    it.close()


def test_training_is_that_of_one_rank():
    def trained(distribute):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(7, 6), nn.GELU(), nn.Linear(6, 5), nn.LayerNorm(5)).double()
        x, y = torch.randn(5, 7).double(), torch.arange(5)
        if distribute:
            it.parallelize(net, it.mesh(), {"0.*": "R,S(0)", "2.weight": "R,S(1)"})
            x, y = it.distribute(x, "S(0),R"), it.distribute(y, "S(0),R")
        optimizer = torch.optim.AdamW(net.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
        return [(p, p.grad) for p in net.parameters()]

    alone = trained(False)
    with it.lockstep("[dp=3,tp=4]"):
        for plain, ours in zip(alone, trained(True), strict=True):
            for a, b in zip(plain, ours):
                torch.testing.assert_close(it.full(b.detach()), a.detach(), rtol=1e-9, atol=1e-12)


def test_random_numbers_are_those_of_one_rank():
    seen = []
    for mesh in ("[a=1,b=1]", "[a=3,b=2]"):
        with it.lockstep(mesh):
            torch.manual_seed(3)
            seen.append(it.full(nn.functional.dropout(it.randn((5, 4), "S(1),S(0)"), 0.5)))
    assert torch.equal(*seen)


def test_bills_and_plain_tensors():
    with it.lockstep("[dp=4,tp=2]"):
        t = it.distribute(WHOLE, "S(0),R")
        with it.Budget("1 S->R"):
            it.redistribute(t, "R,R")
        it.set_plain_tensors("checked")
        assert torch.equal(it.full(t * torch.ones(7)), WHOLE)
        it.check_plain_tensors()


if __name__ == "__main__":
    run(globals())
