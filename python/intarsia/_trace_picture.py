"""A trace as a drawing: for each rank what it computes, which collectives are under way, and when it waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

WIDTH, LEFT, RIGHT, TOP = 900, 70, 20, 56  # of the drawing; beside the time axis, above the first rank
LANE, BETWEEN = 14, 12  # heights
LANES = ("computes", "sends", "waits")
COLORS = {"computes": "#bcd7f0", "sends": "#f0b46c", "waits": "#c0392b"}
WAIT = "intarsia::wait "
NARROWEST = 0.4  # of a bar, in pixels
TICKS = 8

Span = tuple[float, float, str]


def drawn(events: list[dict], begin: float, end: float) -> str:
    """The spans of time between two moments, in microseconds, as SVG. `events`: those of a chrome trace."""
    ranks = sorted({e["pid"] for e in events})
    height = TOP + len(ranks) * (len(LANES) * LANE + BETWEEN) + 40
    scale = (WIDTH - LEFT - RIGHT) / max(end - begin, 1e-9)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        *_legend(),
        *_axis(begin, end, scale, height - 30),
    ]
    y = TOP
    for rank in ranks:
        out.append(_text(LEFT - 10, y + 1.5 * LANE, f"rank {rank}", "end"))
        for lane, spans in zip(LANES, _lanes([e for e in events if e["pid"] == rank]), strict=True):
            out += _bars(spans, begin, end, scale, y, COLORS[lane])
            y += LANE
        y += BETWEEN
    return "\n".join([*out, "</svg>", ""])


def _lanes(events: list[dict]) -> tuple[list[Span], list[Span], list[Span]]:
    """Ops that are not within others of their thread, but for when it waits within them; collectives; waits."""
    spans = [e for e in events if e["ph"] == "X"]
    waiting = sorted((e for e in spans if e["name"].startswith(WAIT)), key=lambda e: e["ts"])
    waits = [(e["ts"], e["ts"] + e["dur"], e["name"]) for e in waiting]
    ops = [e for e in spans if not e["name"].startswith("intarsia::") and e.get("cat") == "cpu_op"]
    begun = {e["id"]: e for e in events if e["ph"] == "b"}
    sends = [(begun[e["id"]]["ts"], e["ts"], e["name"]) for e in events if e["ph"] == "e" and e["id"] in begun]
    return [span for e in _outermost(ops) for span in _without(e, [w for w in waiting if w["tid"] == e["tid"]])], sends, waits


def _outermost(ops: list[dict]) -> Iterator[dict]:
    reached: dict[int, float] = {}
    for e in sorted(ops, key=lambda e: (e["ts"], -e["dur"])):
        end = e["ts"] + e["dur"]
        if end > reached.get(e["tid"], -float("inf")):
            reached[e["tid"]] = end
            yield e


def _without(op: dict, waits: list[dict]) -> Iterator[Span]:
    begin, end = op["ts"], op["ts"] + op["dur"]
    for wait in waits:
        if begin < wait["ts"] < end:
            yield begin, wait["ts"], op["name"]
            begin = wait["ts"] + wait["dur"]
    if begin < end:
        yield begin, end, op["name"]


def _bars(spans: Iterable[Span], begin: float, end: float, scale: float, y: float, color: str) -> Iterator[str]:
    for first, last, name in spans:
        if last < begin or first > end:
            continue
        x = LEFT + (max(first, begin) - begin) * scale
        width = max((min(last, end) - max(first, begin)) * scale, NARROWEST)
        yield (
            f'<rect x="{x:.1f}" y="{y + 1:.1f}" width="{width:.1f}" height="{LANE - 2}" fill="{color}" fill-opacity="0.85">'
            f"<title>{escape(name)}, {last - first:.0f} us</title></rect>"
        )


def _legend() -> Iterator[str]:
    x = LEFT
    for lane in LANES:
        yield f'<rect x="{x}" y="12" width="12" height="12" fill="{COLORS[lane]}"/>'
        yield _text(x + 17, 22, lane)
        x += 90


def _axis(begin: float, end: float, scale: float, y: float) -> Iterator[str]:
    """Marks at 1, 2 or 5 times a power of ten of milliseconds."""
    length = (end - begin) / 1e3
    step = next((s for p in range(-4, 9) for s in (10.0**p, 2 * 10.0**p, 5 * 10.0**p) if length / s <= TICKS), length)
    for i in range(int(length / step) + 1):
        x = LEFT + i * step * 1e3 * scale
        yield f'<line x1="{x:.1f}" y1="{TOP - 12}" x2="{x:.1f}" y2="{y:.1f}" stroke="#dddddd"/>'
        yield _text(x, y + 14, f"{i * step:g} ms", "middle")


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="#444444" text-anchor="{anchor}">{escape(text)}</text>'
