"""The three methods of torch.Tensor that import replaces: printing, copying, pickling."""

import copy
import io
import pickle
import timeit

import intarsia as it
import torch
from _harness import on_ranks, refuses, run
from torch import nn


def ready():
    return it.mesh() if it._world._mesh is not None else it.init()


@on_ranks(2)
def test_one_rank_alone_may_print():
    ready()
    t = it.distribute(torch.arange(6.0).reshape(3, 2), "S(0)")
    partial = it.from_local(torch.ones(2), "P(sum)")
    if it.world().rank() == 1:
        with it.Budget(""):
            assert repr(t) == "distributed f32[3@x, 2] on [x=2]; rank 1 holds [2,3)x[0,2):\ntensor([[4., 5.]])"
            assert "P(sum)@x" in str(partial) and "tensor([1., 1.])" in f"{partial}"
            p = nn.Parameter(t)
            assert repr(p).startswith("Parameter containing:\ndistributed f32[3@x, 2] on [x=2], requires_grad=True")
            assert "grad_fn=<MulBackward0>" in repr(p * 2)
            assert "[2,3)" in it.show(t)
    it.full(t)


@on_ranks(2)
def test_deepcopy_makes_new_pieces_in_the_same_layout():
    ready()
    t = it.distribute(torch.arange(6.0).reshape(3, 2), "S(0)")
    t.note = ["kept"]
    partial = it.from_local(torch.ones(2), "P(sum)")
    for original in (t, t.detach().requires_grad_(), nn.Parameter(t.detach()), partial):
        new = copy.deepcopy(original)
        assert it.layout_of(new) == it.layout_of(original) and new.requires_grad == original.requires_grad
        assert type(new) is type(original) and new.stride() == original.stride()
        with torch.no_grad():
            assert it.local(new).data_ptr() != it.local(original).data_ptr()
        assert torch.equal(it.full(new), it.full(original))
    assert copy.deepcopy(t).note == ["kept"] and copy.deepcopy(t).note is not t.note
    a, b = copy.deepcopy([t, t])
    assert a is b
    leaf = t.detach().requires_grad_()
    (leaf * 2).sum().backward()
    assert torch.equal(it.full(copy.deepcopy(leaf).grad), torch.full((3, 2), 2.0))
    refuses(RuntimeError, "detach", lambda: copy.deepcopy(leaf * 2))


@on_ranks(2)
def test_modules_with_buffers_copy():
    ready()
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    it.parallelize(module, it.mesh(), {"0.weight": "S(0)"})
    new = copy.deepcopy(module)
    before, after = module.state_dict(), new.state_dict()
    assert [it.describe(t) for t in after.values()] == [it.describe(t) for t in before.values()]
    with torch.no_grad():
        new[0].weight.zero_()
        assert it.full(module[0].weight).abs().sum() > 0


@on_ranks(2)
def test_pickle_keeps_the_piece_and_its_place():
    ready()
    t = it.distribute(torch.arange(6.0).reshape(3, 2), "S(0)")
    partial = it.from_local(torch.ones(2), "P(sum)")
    for original in (t, partial, t.detach().requires_grad_(), nn.Parameter(t.detach())):
        new = pickle.loads(pickle.dumps(original))
        assert type(new) is type(original) and it.layout_of(new) == it.layout_of(original)
        assert new.requires_grad == original.requires_grad and torch.equal(it.full(new), it.full(original))
    assert it.local(copy.copy(t)).data_ptr() == it.local(t).data_ptr()
    file = io.BytesIO()
    torch.save({"t": t, "p": nn.Parameter(t)}, file)
    file.seek(0)
    assert torch.equal(it.full(torch.load(file)["p"]), it.full(t))
    other = (1 - it.world().rank(),)
    kind, arguments = t.__reduce_ex__(2)
    refuses(ValueError, "full(tensor)", lambda: kind(*arguments[:4], other, *arguments[5:]))


def test_plain_tensors_are_as_before():
    ready()
    t = torch.arange(3.0, requires_grad=True)
    assert repr(t) == "tensor([0., 1., 2.], requires_grad=True)" and str(t * 2) == repr(t * 2)
    assert torch.equal(copy.deepcopy(t), t) and torch.equal(pickle.loads(pickle.dumps(t)), t)
    assert torch.Tensor.__repr__(t) == repr(t) and "1.0000" in torch.Tensor.__repr__(t, tensor_contents="1.0000")
    refuses(RuntimeError, "graph leaves", lambda: copy.deepcopy(t * 2))


def test_hooks_of_users_leave_gradients_in_their_layout():
    """Adding the first hook makes torch drop what C++ had added, before use or between forward and backward."""
    world = it.lockstep_world(2)
    x = it.distribute(torch.randn(4, 4), "[dp=2] S(0)", world=world)
    for when in ("before", "after", "between"):
        p = it.distribute(torch.randn(4, 4), "[dp=2] R", world=world).requires_grad_()
        seen = []
        for _ in range(2):
            p.grad = None
            if when == "before" and not seen:
                p.register_hook(lambda grad: seen.append(it.describe(grad)))
            loss = (x @ p).sum()
            if when == "between" and not p._backward_hooks:
                p.register_hook(lambda grad: seen.append(it.describe(grad)))
            loss.backward()
            if when == "after" and not p._backward_hooks:
                p.register_hook(lambda grad: seen.append(it.describe(grad)))
            assert it.describe(p.grad) == "f32[4, 4] on [dp=2]", when
        assert seen, when


def test_importing_twice_patches_once():
    before = torch.Tensor.__repr__
    it._patches.install()
    it._compile.install()
    assert torch.Tensor.__repr__ is before


def test_what_the_check_costs_plain_tensors():
    t = torch.ones(2)
    best = min(timeit.repeat(lambda: it.has_layout(t), number=20000, repeat=5)) / 20000
    whole = min(timeit.repeat(lambda: copy.deepcopy(t), number=500, repeat=5)) / 500
    print(f"{best * 1e9:.0f} ns of {whole * 1e9:.0f} ns for a copy")
    assert best < whole / 10


if __name__ == "__main__":
    run(globals())
