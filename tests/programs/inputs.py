"""The inputs of programs: plain values from an expression and a seed, and the same laid out on a mesh.

Values are multiples of a power of two and small, so that sums of a few of them are exact in any order: what is equal
on one rank is equal on all, and a comparison or a maximum has one answer. Some rows are zero.
"""

import functools
import itertools
import re

import intarsia as it
import torch

GRID = 2.0**-12
COARSE = 2.0**-3
PLACEMENT = re.compile(r"SS\(\d+,\d+\)|S\(\d+\)|P\([\w:]+\)|R")


class Makers:
    """What the expression of an input may call. Sizes come last."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def randn(self, *sizes):
        return (torch.randn(sizes, generator=self.generator, dtype=torch.float64) / GRID).round_().mul_(GRID)

    def coarse(self, *sizes):
        """Few bits, for dtypes that have few."""
        return (torch.randn(sizes, generator=self.generator, dtype=torch.float64) / COARSE).round_().mul_(COARSE)

    def zero_rows(self, *sizes):
        """Every second row along the first dimension is zero."""
        values = self.randn(*sizes)
        values[::2] = 0
        return values

    def positive(self, *sizes):
        return self.between(0.5, 2, *sizes)

    def between(self, low, high, *sizes):
        steps = torch.randint(1, 255, sizes, generator=self.generator).to(torch.float64)
        return low + (high - low) * steps / 256

    def distinct(self, *sizes):
        """Values well apart from each other and from zero, of both signs."""
        count = torch.Size(sizes).numel()
        order = torch.randperm(count, generator=self.generator).to(torch.float64)
        return ((order + 1) / 4 * torch.where(order % 2 == 0, 1, -1)).reshape(sizes)

    def listed(self, values, *sizes):
        count = torch.Size(sizes).numel()
        return torch.tensor((list(values) * count)[:count], dtype=torch.float64).reshape(sizes)

    def ints(self, low, high, *sizes):
        return torch.randint(low, high, sizes, generator=self.generator)

    def bools(self, *sizes):
        return torch.randint(0, 2, sizes, generator=self.generator).bool()

    def cplx(self, *sizes):
        return torch.complex(self.randn(*sizes), self.randn(*sizes))


MAKERS = tuple(name for name in vars(Makers) if not name.startswith("_"))


@functools.lru_cache(maxsize=4096)
def compiled(code, mode):
    return compile(code, "<program>", mode)


def make_plain(code, seed):
    """The plain tensor of an input's expression, dense in memory; the same in every process."""
    makers = Makers(seed)
    made = eval(compiled(code, "eval"), {"torch": torch} | {name: getattr(makers, name) for name in MAKERS})
    return made.clone(memory_format=torch.preserve_format)


# ---- layouts ---------------------------------------------------------------------------------


def placements(layout):
    """The placements of a layout's text, one for each axis."""
    return PLACEMENT.findall(layout.split("|")[0])


def distribute(full, layout, mesh, seed, world):
    """The tensor in this layout. Terms of partial values differ between ranks, and add up exactly."""
    text = f"{mesh} {layout}"
    places = placements(layout)
    axes = [axis for axis, place in enumerate(places) if place.startswith("P")]
    if not axes:
        return it.distribute(full, text, world=world)
    layout_of_terms = f"{mesh} " + ",".join("R" if place.startswith("P") else place for place in places)
    layout_of_terms += "".join(f" |{order}" for order in layout.split("|")[1:])
    kind = places[axes[0]][2:-1]
    grid = it.Mesh(mesh)
    coordinates = list(itertools.product(*[range(grid.size(axis)) for axis in axes]))
    each = terms(full, kind, len(coordinates), seed)
    laid = [it.distribute(in_strides_of(full, term), layout_of_terms, world=world) for term in each]
    pieces_of = [it.locals(term) for term in laid]
    pieces = []
    for hosted, rank in enumerate(world.hosted()):
        place = grid.coordinate_of(rank)
        which = coordinates.index(tuple(place[axis] for axis in axes))
        pieces.append(in_strides_of(pieces_of[which][hosted], pieces_of[which][hosted].detach()))
    return it.from_locals(pieces, text, world=world, shape=list(full.shape), strides=list(laid[0].stride()))


def in_strides_of(tensor, values):
    """A copy of values in memory of its own, with the strides of a dense tensor."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(values)


def terms(full, kind, count, seed):
    """Tensors like `full` whose sum, average, maximum or minimum it is, exactly."""
    generator = torch.Generator().manual_seed(seed)

    def noise():
        if full.is_complex():
            parts = torch.randint(-16, 17, (*full.shape, 2), generator=generator).to(torch.float64) / 8
            return torch.view_as_complex(parts).to(full.dtype)
        if full.is_floating_point():
            most = 4 if full.element_size() == 2 else 16
            return (torch.randint(-most, most + 1, full.shape, generator=generator) / 8).to(full.dtype)
        return torch.randint(0, 5, full.shape, generator=generator).to(full.dtype)

    if kind in ("sum", "avg"):
        rest = [noise() for _ in range(count - 1)]
        found = [full - sum(rest, torch.zeros_like(full))] + rest
        # Of an average each term may be divided before it is added.
        return [term * count for term in found] if kind == "avg" else found
    sign = 1 if kind == "max" else -1
    chosen = torch.randint(0, count, full.shape, generator=generator)
    return [torch.where(chosen == i, full, full - sign * noise().abs()) for i in range(count)]
