"""Traces of what ranks do, merged on one clock."""

import json
import os
import pathlib
import tempfile
import time

import intarsia as it
import torch
from _harness import on_ranks, run
from torch import nn

FOLDER = pathlib.Path(tempfile.gettempdir())


def check_schema(trace):
    """What readers of the format need: numbers, known phases, spans of one thread inside of each other, and bars that begin and end."""
    assert trace.keys() == {"displayTimeUnit", "traceEvents"}
    open_bars, spans = {}, {}
    for e in trace["traceEvents"]:
        assert e["ph"] in "XMbe" and isinstance(e["pid"], int) and isinstance(e["tid"], int) and e["name"], e
        assert e["ts"] >= 0, e
        if e["ph"] == "X":
            assert e["dur"] >= 0, e
            spans.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
        elif e["ph"] in "be":
            key = (e["cat"], e["id"])
            assert (e["ph"] == "b") == (key not in open_bars), e
            open_bars[key] = e["ts"] if e["ph"] == "b" else None
    assert all(end is None for end in open_bars.values())
    for thread in spans.values():
        stack = []
        for begin, end in sorted(thread, key=lambda s: (s[0], -s[1])):
            while stack and stack[-1] <= begin + 1e-3:
                stack.pop()
            assert not stack or end <= stack[-1] + 1e-2, "spans of a thread overlap"
            stack.append(end)


def train(steps, late=lambda step: False):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 4))
    it.fully_shard(model, mesh=it.mesh(), shard="x")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        if late(step):
            time.sleep(0.3)  # the others wait
        x = it.distribute(torch.randn(8, 8), "S(0)")
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_one_process_has_ops_and_steps():
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "one.json")
        with it.lockstep("[x=2]"), it.trace(file) as t:
            train(2)
        trace = json.loads(file.read_text())
    check_schema(trace)
    assert len(t.steps) == 2 and all(s.rank == 0 and s.total > 0 and s.communicating == 0 and s.hidden == 1 for s in t.steps)
    assert any(e["name"] == "aten::addmm" or e["name"] == "aten::linear" for e in t.events)


@on_ranks(4)
def test_ranks_are_merged_and_all_know_it():
    it.init()
    rank, ranks = it.world().rank(), range(it.world().size())
    file = FOLDER / f"trace-{os.environ['MASTER_PORT']}.json"
    with it.trace(file) as t:
        train(3, lambda step: rank == 1 and step == 1)
    assert len(t.steps) == 3 * len(ranks)
    second = {s.rank: s for s in t.steps if s.step == 1}
    assert all(second[r].waiting > max(0.2, second[1].waiting) and second[r].hidden < 0.9 for r in ranks if r != 1), str(t)
    it.full(it.from_local(torch.zeros(1), "S(0)"))  # until the first has written it
    trace = json.loads(file.read_text())
    it.full(it.from_local(torch.zeros(1), "S(0)"))  # until all have read it
    check_schema(trace)
    assert trace["traceEvents"] == json.loads(json.dumps(t.events))
    names = [{e["name"] for e in t.events if e["pid"] == r and e["ph"] == "b" and "#" in e["name"]} for r in ranks]
    assert all(n == names[0] for n in names) and len(names[0]) > 6, "collectives go by the same names on all ranks"
    assert any(n.startswith("all_gather [g=4]") for n in names[0]), names[0]
    if rank == 0:
        file.unlink()
    # They are of one time: none ends on a rank before all have begun it.
    for name in names[0]:
        begun = [min(e["ts"] for e in t.events if e["ph"] == "b" and e["pid"] == r and e["name"] == name) for r in ranks]
        ended = [max(e["ts"] for e in t.events if e["ph"] == "e" and e["pid"] == r and e["name"] == name) for r in ranks]
        if "all_gather" in name or "all_reduce" in name:
            assert min(ended) >= max(begun) - 1000, (name, begun, ended)  # a millisecond of clocks


@on_ranks(2)
def test_torchs_profiler_sees_the_same_names():
    it.init()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        train(1)
    names = {e.key for e in profiler.key_averages()}
    assert any(n.startswith("intarsia::all_gather [g=2]") for n in names) and any(n.startswith("intarsia::wait [g=2]") for n in names), names


if __name__ == "__main__":
    run(globals())
