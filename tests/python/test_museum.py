"""Bugs that were seen elsewhere: here each is the right value, or an error that says what to do instead.

The cases are in museum.py, and docs/museum.md shows them. They run in lockstep on 2, 3 and 4 ranks, those with two axes
on 6 too, and those whose point is several processes on as many. `name ranks ok` is printed for each that holds.
"""

import functools

import intarsia as it
import museum
import torch
from _harness import HERE, on_ranks, run

PAGE = HERE.parents[1] / "docs" / "museum.md"
REFUSALS = (ValueError, NotImplementedError, torch.distributed.DistError)


SMALL = 512  # bytes, of operands of at least twice that


class Ours:
    """Intarsia, on all the ranks that this process hosts."""

    def __init__(self, ranks, axes, rows):
        self.ranks, self.rows, self.mesh = ranks, rows, museum.MESHES[axes][ranks]

    def put(self, full, layout):
        return it.distribute(full, layout)

    def replicated(self, tensor):
        return it.distribute(tensor, it.Layout.replicated(it.mesh()))

    def put_b_first(self, full):
        return it.distribute(full, museum.ORDERED)

    def parts(self, pieces, layout, shape=None):
        return it.from_locals([pieces[rank] for rank in it.world().hosted()], layout, shape=shape)

    def full(self, tensor):
        if not it.has_layout(tensor):
            return tensor
        check_pieces(tensor)
        return it.full(tensor)

    def move(self, tensor, layout):
        return it.redistribute(tensor, layout)

    def claimed(self, tensor):
        layout = it.layout_of(tensor)
        mesh = layout.mesh()
        boxes = [it.boxes(layout, tensor.shape, mesh.coordinate_of(rank)) for rank in range(self.ranks)]
        return torch.cat([torch.arange(r.begin, r.end, dtype=tensor.dtype) for box in boxes for r in box.runs(0)])

    def held(self, tensor):
        return torch.cat(it.locals(tensor))

    def by_hand(self, tensor, piecewise, layout, on_one_rank, grad=None):
        pieces = zip(it.locals(tensor, grad), it.world().hosted())
        return it.from_locals([piecewise(piece, rank) for piece, rank in pieces], layout)

    def region(self, body, inputs, in_, out, on_one_rank, grads=(), shapes=()):
        return it.local_region(body, inputs, in_, out, grads=grads, shapes=shapes)

    def rand(self, size, layout):
        return it.rand(size, layout, dtype=torch.float64)

    def seed(self, by_rank=False):
        torch.manual_seed(1 + it.world().rank() if by_rank else 1)

    def by_rank(self, make):
        return make(it.world().rank())

    def same_layout(self, a, b):
        return it.layout_of(a) == it.layout_of(b)

    def check_replicas(self, tensor):
        it.assert_replicas(tensor.detach(), name="router")

    def check_plain(self):
        it.check_plain_tensors()

    def cached(self):
        return it.cache_counters().entries

    def as_others_have_it(self, tensor):
        return it.full(tensor)  # only rank 0 comes here, whose seed the others should have had

    def on_first_two(self, program):
        if it.world().rank() > 1:
            return program(lambda full, _: full)
        return program(lambda full, layout: it.distribute(full, layout, mesh={"a": 2}))

    def flatten_mesh(self):
        pass

    def sends(self, bill):
        return it.Budget(bill)

    def explicit(self):
        return it.CommunicationScope("explicit_only")

    def announced(self, op):
        """What an op sends is refused in explicit mode, or is no move of its operands: the small thing that it reduces."""
        it.clear_bill()
        with self.explicit():
            try:
                op()
            except REFUSALS as error:
                assert "redistribute" in str(error), error
                return
        moved = [e for e in it.bill().entries if e.implicit or e.transition in ("S->R", "S->S")]
        assert not moved, it.bill()
        assert it.bill().bytes() <= SMALL * it.world().size(), it.bill()


def check_pieces(tensor):
    """Ranks that should hold the same do, and every piece has the sizes that its layout says."""
    layout = it.layout_of(tensor)
    if it.world().in_lockstep():
        it.assert_replicas(tensor)
    for rank, piece in zip(it.world().hosted(), it.locals(tensor)):
        wanted = it.local_shape(layout, tensor.shape, layout.mesh().coordinate_of(rank))
        assert tuple(piece.shape) == wanted, f"rank {rank} has {tuple(piece.shape)} of {it.describe(tensor)}"


def check_case(case, ranks):
    """Runs a case on the current world."""
    for rows in case.sizes():
        ours = Ours(ranks, case.axes, rows)
        if not case.refused:
            case.check(museum.results(case, ours), museum.results(case, museum.Plain(ranks, case.axes, rows)))
            continue
        try:
            museum.results(case, ours)
        except REFUSALS as error:
            said = case.refused in str(error) and not (case.unsaid and case.unsaid in str(error))
            assert said, f"the message is: {error}"
        else:
            assert case.processes and it.world().rank() == 0, f"{case.name} was not refused"


def in_lockstep(case, ranks, axes):
    def test():
        with it.lockstep(axes):
            check_case(case, ranks)
        print(f"{case.name} {ranks} ok")

    return test


def on_processes(case, ranks, axes):
    def test():
        it.init(axes, timeout=30)
        check_case(case, ranks)
        it.close()

    test.__name__ = f"test_{case.name}_{ranks}"
    in_parent = on_ranks(ranks)(test)

    @functools.wraps(in_parent)
    def printing():
        in_parent()
        print(f"{case.name} {ranks} ok")

    printing.body, printing.key = in_parent.body, in_parent.key
    return printing


def make_tests():
    """A test for each case and number of ranks: test_<case>_<ranks>."""
    for case in museum.CASES.values():
        for ranks, sizes in museum.MESHES[case.axes].items():
            make = on_processes if case.processes else in_lockstep
            test = make(case, ranks, dict(zip("ab", sizes)))
            test.__name__ = f"test_{case.name}_{ranks}"
            yield test.__name__, test


globals().update(make_tests())


def test_the_page_shows_every_case():
    """To write it: bench/museum/dtensor.py --update docs/museum.md"""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and line.endswith("` |")]
    shown = [line.split(" | ") for line in lines]
    rows = {cells[-1].strip("` |"): (cells[0][2:], cells[1], cells[-2]) for cells in shown}
    wanted = {c.name: (c.bug, c.source, museum.intarsia_answers(c)) for c in museum.CASES.values()}
    assert rows == wanted, set(rows.items()) ^ set(wanted.items())


if __name__ == "__main__":
    run(globals())
