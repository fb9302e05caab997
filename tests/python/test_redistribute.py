"""Moves from Python: plans explained, moves under way, many at once, between meshes."""

import torch
from _harness import run

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


if __name__ == "__main__":
    run(globals())
