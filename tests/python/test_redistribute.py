"""Moves from Python: plans explained, moves under way, many at once, between meshes."""

import torch
from _harness import on_ranks, run

import intarsia as it


def test_explain_says_what_would_be_sent():
    with it.lockstep("[dp=2,tp=2]"):
        x = it.distribute(torch.arange(48.0).view(8, 6), "S(0),R")
        text = it.explain(x, "R,S(1)")
        assert "all_gather" in text and "lower bound" in text and "f32[8, 6]" in text
        assert it.bill().count() == 0


def test_many_at_once():
    with it.lockstep("[dp=2,tp=2]"):
        full = [torch.arange(float(n * 6)).view(n, 6) for n in (8, 5, 3)]
        xs = [it.distribute(f, "S(0),R") for f in full]
        moved = it.redistribute_together(xs, ["R,R", "R,S(1)", "S(1),S(0)"])
        for f, m in zip(full, moved):
            assert torch.equal(it.full(m), f)


def test_between_meshes():
    with it.lockstep("[all=4]"):
        full = torch.arange(35.0).view(7, 5)
        x = it.distribute(full, "[a=4] S(0)")
        for target in ("[b=3]+1 S(1)", "[b=2,c=2] S(0),R", "[b=2]{3,0} S(0)"):
            moved = it.redistribute_between(x, target)
            assert it.layout_of(moved) == it.to_layout(target)
            assert torch.equal(it.full(moved), full)
        try:
            it.redistribute(x, it.to_layout("[b=2] S(0)"))
            raise AssertionError("another mesh was taken")
        except ValueError as error:
            assert "redistribute_between" in str(error)


def test_many_between_meshes():
    with it.lockstep("[all=4]"):
        full = [torch.arange(float(n * 6)).view(n, 6) for n in (8, 5, 3)]
        xs = [it.distribute(f, layout) for f, layout in zip(full, ("[a=4] S(0)", "[b=2,c=2] S(1),R", "[d=2]+1 S(0)"))]
        targets = ["[owner=1]+2 R", "[a=4] S(0)", "[b=2,c=2] R,R"]
        moved = it.redistribute_between(xs, targets)
        for f, m, target in zip(full, moved, targets):
            assert it.layout_of(m) == it.to_layout(target) and torch.equal(it.full(m), f)


def test_relabelled_meshes_send_less():
    old, new = it.to_layout("[a=4] S(0)"), it.to_layout("[a=4]{3,2,1,0} S(0)")
    assert it.traffic_between(old, new, (8, 8)).missing_by_all == 4 * 64
    better = it.relabelled(old, new, (8, 8))
    assert str(better) == "[a=4]"
    assert it.traffic_between(old, it.to_layout("S(0)", better), (8, 8)).missing_by_all == 0


def test_moves_under_way():
    with it.lockstep("[a=3]"):
        full = torch.arange(21.0).view(7, 3)
        moving = it.start_redistribute(it.distribute(full, "S(0)"), "S(1)")
        moved = moving.wait()
        assert str(it.layout_of(moved)) == "[a=3] S(1)" and torch.equal(it.full(moved), full)


def check_writes_meanwhile():
    """What arrives is what was there when the move began, whatever is written afterwards."""
    ranks = it.world().size()
    full = torch.arange(float(ranks * 4 * 6)).view(ranks * 4, 6)
    for before in ("S(0)", "S(1)", "R", "P(sum)", "SS(0,2)"):
        for after in ("S(0)", "S(1)", "R", "SS(0,2)"):
            x = it.redistribute(it.distribute(full, "R"), before)
            moving = it.start_redistribute(x, after)
            x.zero_()
            x.add_(7)
            moved = moving.wait()
            assert torch.equal(it.full(moved), full), f"{before} to {after} on {ranks} ranks"
            moved.zero_()  # nor does a write to the result reach the source
            assert it.full(x).eq(7).all(), f"{before} to {after} on {ranks} ranks"
            stays = it.start_redistribute(it.distribute(full, "S(0)"), after, source_stays=True)
            assert torch.equal(it.full(stays.wait()), full)


def test_writes_while_a_move_is_under_way():
    for mesh in ("[a=1]", "[a=2]", "[a=3]"):
        with it.lockstep(mesh):
            check_writes_meanwhile()


@on_ranks(2)
def test_writes_while_a_move_is_under_way_between_processes():
    for backend in ("gloo", "shm"):
        it.init(backend=backend)
        check_writes_meanwhile()
        it.close()


def test_between_meshes_in_a_world_of_one():
    with it.lockstep("[a=1]"):
        for layout in ("S(0)", "R", "P(sum)"):
            x = it.redistribute(it.distribute(torch.arange(4.0), "R"), layout)
            moved = it.redistribute_between(x, "[p=1,q=1] S(0),R")
            assert str(it.layout_of(moved)) == "[p=1,q=1] S(0),R" and torch.equal(it.full(moved), torch.arange(4.0))
            moved.zero_()
            assert torch.equal(it.full(x), torch.arange(4.0))


if __name__ == "__main__":
    run(globals())
