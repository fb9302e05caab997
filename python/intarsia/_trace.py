"""What each rank did and when, on one clock: ops, collectives and waits, as a trace that chrome://tracing and ui.perfetto.dev read."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator

import torch
from torch.profiler import ProfilerActivity, profile

from ._gather import gather, here
from ._trace_picture import drawn

# As src/world/collectives/wire.cpp names what it does: `intarsia::all_gather [g=2] #182 of w for aten::mm in blocks.0`.
CALL = re.compile(r"intarsia::(?P<what>\w+) (?P<group>.+?) #(?P<number>\d+)(?P<rest>.*)")
STEP = "Optimizer.step#"
OF_BACKENDS = ("gloo:", "nccl:")  # their threads note spans that overlap
CLOCK_ROUNDS = 9


@dataclasses.dataclass
class StepTimes:
    """Of one step of one rank, in seconds. `begin`: since the first event of the trace; `communicating`: from when a collective was begun until it was waited for, where several are under way
    at a time counted once; `waiting`: the part of it in which the rank did nothing else."""

    rank: int
    step: int
    total: float
    communicating: float
    waiting: float
    begin: float = 0.0

    @property
    def hidden(self) -> float:
        """The share of communication that is behind other work; 1 where there is none."""
        return 1 - self.waiting / self.communicating if self.communicating else 1.0


class Trace:
    """What trace() gives; complete when its block has ended, and the same on all ranks."""

    def __init__(self):
        self.events: list[dict] = []
        self.steps: list[StepTimes] = []

    def __str__(self) -> str:
        return "\n".join(
            f"rank {s.rank}, step {s.step}: {s.total * 1e3:.2f} ms, communicating {s.communicating * 1e3:.2f} ms, of which waiting "
            f"{s.waiting * 1e3:.2f} ms: {s.hidden:.0%} hidden"
            for s in self.steps
        )

    def picture(self, step: int | None = None) -> str:
        """An SVG: for each rank what it computes, which collectives are under way, and when it waits; of one step, or of all. Bars have names where
        a reader shows titles."""
        spans = [e for e in self.events if e["ph"] != "M"]
        begin, end = min((e["ts"] for e in spans), default=0.0), max((e["ts"] + e.get("dur", 0.0) for e in spans), default=0.0)
        if step is not None:
            of_step = [(s.begin, s.begin + s.total) for s in self.steps if s.step == step]
            if not of_step:
                raise ValueError(f"[trace] there is no step {step}; the trace has {len({s.step for s in self.steps})}")
            begin, end = (1e6 * at for at in (min(b for b, _ in of_step), max(e for _, e in of_step)))
        return drawn(spans, begin, end)

    def _repr_svg_(self) -> str:
        return self.picture()


@contextlib.contextmanager
def trace(path: str | os.PathLike) -> Iterator[Trace]:
    """Records what all ranks do in the block, and writes one file: `with intarsia.trace("steps.json") as t: ...; print(t)`.

    A process for each rank, with its ops, those of autograd and of optimizers as torch.profiler sees them, and the collectives and waits of distributed
    tensors; each collective is also an arrow-less bar from its begin to the end of the wait for it. Clocks of several hosts are compared by meeting
    a few times. The first rank writes the file. COLLECTIVE: all ranks, at the end of the block.
    """
    out = Trace()
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])
    with profile(activities=activities) as profiler:
        yield out
    rank, _ = here()
    mine = _events_of(profiler)
    ranks = gather((socket.gethostname(), mine))
    late = _clock_offsets([host for host, _ in ranks])
    begin = min((e["ts"] - late[r] for r, (_, events) in enumerate(ranks) for e in events), default=0)
    for r, (host, events) in enumerate(ranks):
        events = [e | {"ts": (e["ts"] - late[r] - begin) / 1e3, "pid": r} for e in events]
        shifted = [e for e in events if not e["name"].startswith(OF_BACKENDS)]
        backends = [e for e in events if e["name"].startswith(OF_BACKENDS)]
        bars = list(_bars(shifted, backends, r))
        out.events += [{"ph": "M", "name": "process_name", "pid": r, "tid": 0, "ts": 0, "args": {"name": f"rank {r} on {host}"}}, *shifted, *bars]
        out.steps += _steps_of(shifted, r)
    if rank == 0:
        pathlib.Path(path).write_text(json.dumps({"displayTimeUnit": "ms", "traceEvents": out.events}))


def _events_of(profiler: profile) -> list[dict]:
    """What took a span of time: `ts` in nanoseconds since 1970 as an integer, as floating point has too few digits; `dur` in microseconds."""
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(file)
        text = json.loads(pathlib.Path(file).read_text())
    base = text.get("baseTimeNanoseconds", 0)
    kept = ("ph", "name", "cat", "tid", "dur")
    return [
        {k: e[k] for k in kept if k in e} | {"ts": round(float(e["ts"]) * 1e3) + base, "tid": int(e["tid"])}
        for e in text["traceEvents"]
        if e.get("ph") == "X" and e.get("cat") != "Trace" and str(e.get("tid", "")).lstrip("-").isdigit()
    ]


def _clock_offsets(hosts: list[str]) -> list[int]:
    """By how many nanoseconds each rank's clock is ahead of the first's. COLLECTIVE: all ranks, where there are several hosts."""
    if len(set(hosts)) == 1:
        return [0] * len(hosts)
    rounds = []
    for _ in range(CLOCK_ROUNDS):
        gather(None)  # all leave it at about the same time
        rounds.append(time.time_ns())
    all_rounds = gather(rounds)
    return [round(statistics.median(a - b for a, b in zip(mine, all_rounds[0], strict=True))) for mine in all_rounds]


def _calls(events: list[dict]) -> Iterator[tuple[dict, dict]]:
    """Collectives, each with the wait for it: the next of its group and number."""
    begun: dict[tuple[str, str], list[dict]] = {}
    for event in sorted(events, key=lambda e: e["ts"]):
        found = CALL.fullmatch(event["name"])
        if found is None:
            continue
        key = (found["group"], found["number"])
        if found["what"] != "wait":
            begun.setdefault(key, []).append(event)
        else:
            for call in begun.pop(key, []):  # a permutation is two calls with one wait
                yield call, event


def _bars(events: list[dict], backends: list[dict], rank: int) -> Iterator[dict]:
    """What may overlap on a thread: collectives, and what backends say of theirs."""
    spans = [(call["name"].removeprefix("intarsia::"), call["tid"], call["ts"], wait["ts"] + wait["dur"]) for call, wait in _calls(events)]
    spans += [(e["name"], e["tid"], e["ts"], e["ts"] + e["dur"]) for e in backends]
    for i, (name, thread, begin, end) in enumerate(spans):
        common = {"cat": "collective", "id": f"{rank}.{i}", "name": name, "pid": rank, "tid": thread}
        yield common | {"ph": "b", "ts": begin}
        yield common | {"ph": "e", "ts": end}


def _steps_of(events: list[dict], rank: int) -> list[StepTimes]:
    """Steps end with that of an optimizer; the first begins with the first event."""
    ends = sorted(e["ts"] + e["dur"] for e in events if e["name"].startswith(STEP))
    calls = list(_calls(events))
    begin = min((e["ts"] for e in events), default=0.0)
    out = []
    for step, end in enumerate(ends):
        span = (begin, end)
        under_way = _length(_clipped([(call["ts"], wait["ts"] + wait["dur"]) for call, wait in calls], span))
        waiting = _length(_clipped([(wait["ts"], wait["ts"] + wait["dur"]) for _, wait in calls], span))
        out.append(StepTimes(rank, step, (end - begin) / 1e6, under_way / 1e6, waiting / 1e6, begin / 1e6))
        begin = end
    return out


def _clipped(spans: list[tuple[float, float]], to: tuple[float, float]) -> list[tuple[float, float]]:
    return [(max(a, to[0]), min(b, to[1])) for a, b in spans if a < to[1] and b > to[0]]


def _length(spans: list[tuple[float, float]]) -> float:
    """Of the time in any of them."""
    total, reached = 0.0, -float("inf")
    for a, b in sorted(spans):
        total += max(0.0, b - max(a, reached))
        reached = max(reached, b)
    return total
