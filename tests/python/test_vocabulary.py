"""Embedding and cross entropy over a cut vocabulary: values, gradients, and what is sent."""

import itertools

import intarsia as it
import torch
import torch.nn.functional as F
from _harness import refuses, run

MESH = "[dp=2,tp=2]"
IGNORED = 3


def scores(shape):
    torch.manual_seed(0)
    target = torch.randint(0, shape[1], (shape[0], *shape[2:]))
    target.view(-1)[1] = IGNORED
    return torch.randn(shape, dtype=torch.float64), target


def test_plain_targets():
    """Targets that all ranks hold alike need not be distributed."""
    x, target = scores((6, 10))
    weight = torch.rand(10, dtype=torch.float64)
    plain = x.clone().requires_grad_()
    expected = F.cross_entropy(plain, target, weight=weight, ignore_index=IGNORED)
    expected.backward()
    with it.lockstep(MESH):
        for layout in ("R,S(1)", "S(0),S(1)", "S(0),R", "R,R"):
            d = it.distribute(x, layout).requires_grad_()
            loss = F.cross_entropy(d, target, weight=weight, ignore_index=IGNORED)
            loss.backward()
            torch.testing.assert_close(it.full(loss), expected)
            torch.testing.assert_close(it.full(d.grad), plain.grad)


def test_cross_entropy_in_every_layout():
    shapes = [(6, 10), (5, 7), (2, 6, 3, 4)]
    layouts = ["R,S(1)", "S(0),S(1)", "S(1),S(1)", "S(0),R", "S(1),R", "S(1),S(0)"]
    for shape, layout, reduction, weighted in itertools.product(shapes, layouts, ("mean", "sum", "none"), (False, True)):
        x, target = scores(shape)
        weight = torch.rand(shape[1], dtype=torch.float64) if weighted else None
        options = {"reduction": reduction, "ignore_index": IGNORED}
        plain = x.clone().requires_grad_()
        expected = F.cross_entropy(plain, target, weight=weight, **options)
        (expected * 1.5).sum().backward()
        with it.lockstep(MESH):
            d = it.distribute(x, layout).requires_grad_()
            where = "S(0),R" if layout.startswith("S(0)") else "R,R"
            w = None if weight is None else it.distribute(weight, "R,R")
            loss = F.cross_entropy(d, it.distribute(target, where), weight=w, **options)
            (loss * 1.5).sum().backward()
            torch.testing.assert_close(it.full(loss), expected)
            torch.testing.assert_close(it.full(d.grad), plain.grad)


def test_cut_classes_send_two_numbers_a_sample_and_nothing_in_backward():
    x, target = scores((6, 10))
    with it.lockstep(MESH):
        d, t = it.distribute(x, "S(0),S(1)").requires_grad_(), it.distribute(target, "S(0),R")
        forward = it.Budget()
        loss = F.cross_entropy(d, t, ignore_index=IGNORED)
        forward.expect("3 P->R")  # the maximum and the sum of each sample, and the number of samples
        backward = it.Budget()
        loss.backward()
        backward.expect("")
        assert str(it.layout_of(d.grad)) == f"{MESH} S(0),S(1)", it.layout_of(d.grad)


def test_all_ignored():
    x, _ = scores((4, 6))
    with it.lockstep(MESH):
        d = it.distribute(x, "R,S(1)").requires_grad_()
        loss = F.cross_entropy(d, it.distribute(torch.full((4,), IGNORED), "R,R"), ignore_index=IGNORED)
        loss.backward()
        assert it.full(loss).isnan()
        assert not it.full(d.grad).any()


def test_cross_entropy_differentiated_twice():
    x, target = scores((4, 6))

    def second(x, target):
        (first,) = torch.autograd.grad(F.cross_entropy(x, target), x, create_graph=True)
        return torch.autograd.grad((first**2).sum(), x)[0]

    expected = second(x.clone().requires_grad_(), target)
    with it.lockstep(MESH):
        got = second(it.distribute(x, "S(0),S(1)").requires_grad_(), it.distribute(target, "S(0),R"))
        torch.testing.assert_close(it.full(got), expected)


def test_embedding_gradient_is_cut_from_the_start():
    torch.manual_seed(0)
    table, index = torch.randn(11, 3, dtype=torch.float64), torch.randint(0, 11, (4, 5))
    for padding in (None, int(index[0, 0])):
        plain = table.clone().requires_grad_()
        (F.embedding(index, plain, padding) ** 2).sum().backward()
        with it.lockstep(MESH):
            d = it.distribute(table, "R,S(0)").requires_grad_()
            budget = it.Budget()
            (F.embedding(it.distribute(index, "S(0),R"), d, padding) ** 2).sum().backward()
            budget.expect("2 P->R")  # the rows looked up, over tp; the gradient, over dp
            torch.testing.assert_close(it.full(d.grad), plain.grad)


def test_an_index_outside_is_refused_though_every_rank_has_a_part():
    with it.lockstep(MESH):
        table = it.distribute(torch.randn(11, 3), "R,S(0)")
        index = it.distribute(torch.tensor([3, 11]), "R,R")
        refuses(IndexError, "from 3 to 11 in a dimension of 11", lambda: F.embedding(index, table))


if __name__ == "__main__":
    run(globals())
