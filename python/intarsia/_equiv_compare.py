"""Two runs, value by value: pieces put together, differences beside what rounding explains, and the first one that it does not."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Iterator

import torch

from ._equiv_noise import units
from ._equiv_record import GRADIENT, LOSS, OUTPUT, OUTPUT_GRADIENT, PARAMETER, Key, Piece, Record

FALSE_ALARMS = 1e-6  # how probable it is that a run that is equal is taken for one that is not: of all its values together


@dataclasses.dataclass
class Assembled:
    """A full tensor in one way in which pieces may make it. Where ranks hold the same, one for each of them. `partial`: plain tensors are taken for
    partial values, which nothing but their numbers says."""

    how: str
    full: list[torch.Tensor]
    partial: bool = False


def assembled(pieces: list[Piece], key: Key, shape: tuple[int, ...], ranks: int) -> Iterator[Assembled]:
    """All ways in which pieces make a tensor of this shape: none, where a rank has not made its own."""
    if pieces and pieces[0].runs is not None:
        if len(pieces) == pieces[0].holders and all(piece.shape == shape for piece in pieces):
            yield _laid_out(pieces)
    elif ranks == 1:
        if tuple(pieces[0].value.shape) == shape:
            yield Assembled("", [pieces[0].value])
    elif len(pieces) == ranks:
        yield from _plain([p.value for p in sorted(pieces, key=lambda p: p.rank)], key, shape)


def _laid_out(pieces: list[Piece]) -> Assembled:
    places: dict[tuple, list[Piece]] = {}  # what holds the same
    for piece in pieces:
        places.setdefault((piece.share, tuple(map(tuple, piece.runs))), []).append(piece)
    full = []
    for replica in range(max(map(len, places.values()))):
        shares: dict[tuple[int, ...], torch.Tensor] = {}
        for (share, runs), held in places.items():
            piece = held[replica % len(held)]
            into = shares.setdefault(share, torch.zeros(piece.shape, dtype=piece.value.dtype))
            at = [torch.cat([torch.arange(b, e) for b, e in run] or [torch.arange(0)]) for run in runs]
            into[torch.meshgrid(*at, indexing="ij") if at else ()] = piece.value
        full.append(_reduced(list(shares.values()), pieces[0].reduction))
    return Assembled(pieces[0].reduction, full)


def _reduced(shares: list[torch.Tensor], reduction: str) -> torch.Tensor:
    if len(shares) == 1:
        return shares[0]
    stacked = torch.stack([s.double() for s in shares])
    if "avg" in reduction:
        return stacked.mean(0)
    if "max" in reduction or "min" in reduction:
        return stacked.amax(0) if "max" in reduction else stacked.amin(0)
    return stacked.prod(0) if "product" in reduction else stacked.sum(0)


def _plain(values: list[torch.Tensor], key: Key, shape: tuple[int, ...]) -> Iterator[Assembled]:
    """Plain tensors do not say how they are laid out. So each way is tried that gives the shape: the ranks as a mesh of one axis or of two."""
    n = len(values)
    if key.kind == LOSS:
        yield Assembled("R", values)
        yield Assembled("the mean of all ranks", [torch.stack([v.double() for v in values]).mean(0)])
        yield Assembled("the sum of all ranks", [torch.stack([v.double() for v in values]).sum(0)])
        return
    meshes = [(n,)] + [(a, n // a) for a in range(2, n) if n % a == 0]
    ways = ["R"] if key.kind in (GRADIENT, PARAMETER) else ["R", "P(sum)"]
    ways += [f"S({d})" for d in range(len(shape))]
    if key.kind == OUTPUT_GRADIENT:  # each rank's loss may be the mean of its own batch
        ways += [f"S({d})/n" for d in range(len(shape))]
    seen = set()
    for mesh in meshes:
        for layout in itertools.product(ways, repeat=len(mesh)):
            text = ", ".join(layout)
            full = _joined(values, mesh, layout)
            if text not in seen and full is not None and tuple(full[0].shape) == shape:
                seen.add(text)
                yield Assembled(text, full, "P(sum)" in layout)


def _joined(values: list[torch.Tensor], mesh: tuple[int, ...], layout: tuple[str, ...]) -> list[torch.Tensor] | None:
    """Ranks as a mesh, its last axis first; None where pieces do not fit."""
    if not mesh:
        return values
    size, way = mesh[-1], layout[-1]
    groups = [values[i : i + size] for i in range(0, len(values), size)]
    joined = [_join(group, way) for group in groups]
    if any(each is None for each in joined):
        return None
    # `R` leaves one for each replica: the k-th of each group goes on together.
    through = [_joined([each[k] for each in joined], mesh[:-1], layout[:-1]) for k in range(len(joined[0]))]
    return None if any(t is None for t in through) else list(itertools.chain.from_iterable(through))


def _join(values: list[torch.Tensor], way: str) -> list[torch.Tensor] | None:
    shapes = [v.shape for v in values]
    if way == "R":
        return values if len(set(shapes)) == 1 else None
    if way == "P(sum)":
        return [torch.stack([v.double() for v in values]).sum(0)] if len(set(shapes)) == 1 else None
    dim = int(way[2])
    if any(len(s) <= dim or (*s[:dim], *s[dim + 1 :]) != (*shapes[0][:dim], *shapes[0][dim + 1 :]) for s in shapes):
        return None
    return [torch.cat(values, dim) / (len(values) if way.endswith("/n") else 1)]


def difference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """In float64; where both are the same, infinities and NaNs too, none."""
    a, b = (torch.view_as_real(t).double() if t.is_complex() else t.double() for t in (a, b))
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0.0, a - b).abs().nan_to_num(nan=math.inf)


def norms(off: torch.Tensor) -> tuple[float, float]:
    """The root mean square of a difference, and its largest element."""
    return (off.square().mean().sqrt().item(), off.max().item()) if off.numel() else (0.0, 0.0)


@functools.cache
def quantile(samples: int, probability: float) -> float:
    """Of Student's t distribution with an even number of degrees of freedom, two-sided: what a normal error, divided by the root mean square of
    that many others, exceeds with this probability."""

    def beyond(t: float) -> float:
        angle = math.atan2(t, math.sqrt(samples))
        part = total = 1.0
        for i in range(1, samples // 2):
            part *= (2 * i - 1) / (2 * i) * math.cos(angle) ** 2
            total += part
        return 1.0 - math.sin(angle) * total

    low, high = 0.0, 1e4
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle) > probability else (low, middle)
    return high


@dataclasses.dataclass
class Finding:
    """A value that rounding does not explain."""

    key: Key
    text: str


@dataclasses.dataclass
class Compared:
    """What came of one value."""

    how: str
    ratio: float  # the difference over what rounding explains; above 1 it is not explained
    partial: bool
    text: str


class Rounding:
    """The values of a reference, and how far rounding moves each: the root mean square of some disturbed runs, which are looked at one by one."""

    def __init__(self, reference: Record, disturbed: Iterable[Record]):
        self.values = {key: _only(pieces, key) for key, pieces in reference.values.items()}
        squares: dict[Key, list[tuple[float, float]]] = {}
        self._samples = 0
        for run in disturbed:
            self._samples += 1
            for key in self.values.keys() & run.values.keys():
                found = norms(difference(_only(run.values[key], key), self.values[key]))
                squares.setdefault(key, []).append((found[0] ** 2, found[1] ** 2))
        # What is not there in all of them, as where values decide what a program does, is not compared.
        self._spread = {
            key: tuple(max(math.sqrt(sum(column) / self._samples), least) for column, least in zip(zip(*found, strict=True), self._least(key), strict=True))
            for key, found in squares.items()
            if len(found) == self._samples
        }

    def _least(self, key: Key) -> tuple[float, float]:
        """Its own last rounding, which a few draws may miss in a small value. Outputs may be exact, as those of an embedding are."""
        value = self.values[key]
        if key.kind in (OUTPUT, OUTPUT_GRADIENT) or not value.is_floating_point():
            return 0.0, 0.0
        return tuple(units(value.dtype) * norm for norm in norms(difference(value, torch.zeros_like(value))))

    def has(self, key: Key) -> bool:
        return key in self._spread

    def allowed(self, key: Key) -> tuple[float, float]:
        """What a difference may be: its root mean square, and its largest element."""
        factor = quantile(self._samples, FALSE_ALARMS / (2 * len(self.values)))
        return tuple(factor * spread for spread in self._spread[key])

    def compare(self, key: Key, pieces: list[Piece], ranks: int) -> Compared:
        """The nearest of all ways in which the pieces make the value."""
        value, allowed = self.values[key], self.allowed(key)
        best: Compared | None = None
        for way in assembled(pieces, key, tuple(value.shape), ranks):
            off = max((difference(full, value) for full in way.full), key=lambda d: norms(d)[0])
            ratio = max(_over(n, a) for n, a in zip(norms(off), allowed, strict=True))
            if best is None or ratio < best.ratio:
                best = Compared(way.how, ratio, way.partial, _worst_element(way, value, off, allowed))
        if best is None:
            held = ", ".join(f"rank {p.rank} {list(p.value.shape)}" for p in pieces)
            return Compared("", math.inf, False, f"is {list(value.shape)} in the reference; no layout makes that of {held or 'nothing'} alone")
        return best


def _only(pieces: list[Piece], key: Key) -> torch.Tensor:
    """The value in a run whose pieces say where they are, or which has one rank."""
    return next(assembled(pieces, key, pieces[0].shape or tuple(pieces[0].value.shape), 1)).full[0]


def _over(difference: float, allowed: float) -> float:
    return 0.0 if difference == 0 else difference / allowed if 0 < allowed < math.inf else math.inf


def _worst_element(way: Assembled, value: torch.Tensor, off: torch.Tensor, allowed: tuple[float, float]) -> str:
    if off.numel() == 0:
        return ""
    at = torch.unravel_index(off.argmax(), off.shape)
    found = max((full[at].item() for full in way.full), key=lambda x: abs(x - value[at].item()))
    place = f"element ({', '.join(str(int(i)) for i in at)})" if at else "it"
    how = f", taken as {way.how}" if way.how else ""
    return (f"{place} is {found:.9g} and {value[at].item():.9g} in the reference{how}; root mean square of the difference {norms(off)[0]:.2g}, "
            f"of which rounding explains {allowed[0]:.2g}")  # fmt: skip
