"""A program that is being written: what it has so far, and the choices that kinds of lines share.

Kinds of lines are functions of a draft that return a line, or raise Unfit where it has nothing for them:

    @kind(weight=2)
    def outer(d):
        return f"{d.new()} = torch.outer({d.real(1, 1)}, {d.real(1, 1)})"
"""

import random
import re

import torch

import inputs
from program import Input, Program, made_by
from words import WORDS, own_generator

KINDS = {}
MOST_ELEMENTS, MOST_DIMS, LARGEST = 600, 5, 1e4
RECENT = 12
F64 = torch.float64

SHAPES = [
    (), (1,), (3,), (4,), (5,), (6,), (7,), (0,), (2, 3), (4, 3), (3, 4), (5, 4), (4, 5), (6, 4), (1, 5), (5, 1),
    (0, 3), (3, 3), (4, 4), (7, 2), (2, 7), (4, 6), (2, 3, 4), (3, 4, 3), (4, 1, 5), (2, 5, 3), (2, 0, 3), (1, 2, 3, 4),
    (2, 3, 5, 4), (2, 4, 3, 3), (3, 1, 4, 2), (2, 1, 4, 3),
]  # fmt: skip
SMALL_MESHES = [(2,)] * 6 + [(3,)] * 3 + [(2, 2)] * 4 + [(2, 3), (3, 2)] + [(2, 2, 2), (4,), (5,), (1,), (1, 2)]


class Unfit(Exception):
    """The draft has nothing for this kind of line."""


def kind(weight=1.0, random=False):
    """Declares a kind of line. `random`: it draws random numbers."""

    def declare(write):
        assert write.__name__ not in KINDS, write.__name__
        write.weight, write.random = weight, random
        KINDS[write.__name__] = write
        return write

    return declare


class Draft:
    def __init__(self, seed, ranks=None):
        self.chance = random.Random(seed)
        self.seed, self.count = seed, 0
        self.inputs, self.lines = [], []
        self.names = dict(WORDS) | {"own": own_generator()}
        self.values = []  # names of tensors, oldest first
        meshes = [m for m in SMALL_MESHES + [(4,)] * 2 if ranks is None or product(m) == ranks]
        self.mesh = tuple(zip("abc", self.chance.choice(meshes)))
        self.low = self.chance.random() < 0.12  # whether dtypes of few bits occur
        draw = self.chance.random()
        self.random = "default" if draw < 0.05 else "own" if draw < 0.07 else ""

    def program(self):
        return Program(self.mesh, tuple(self.inputs), tuple(self.lines), self.random)

    # ---- choices -----------------------------------------------------------------------------

    def one(self, *options):
        return self.chance.choice(options)

    def often(self, share):
        return self.chance.random() < share

    def value(self, fits=lambda t: True):
        """The name of a value that fits, mostly a recent one."""
        found = [name for name in self.values if fits(self.names[name])]
        if not found:
            raise Unfit
        return self.chance.choice(found[-RECENT:] if self.often(0.8) else found)

    def real(self, least=0, most=9, fits=lambda t: True):
        """A value of float64 with so many dimensions."""
        return self.value(lambda t: t.dtype == F64 and least <= t.dim() <= most and fits(t))

    def like(self, tensor):
        """A value of the same dtype and sizes."""
        return self.value(lambda t: t.dtype == tensor.dtype and t.shape == tensor.shape)

    def broadcast_with(self, tensor, into=False):
        """A value of the same dtype that broadcasts with another; `into`: to its sizes."""

        def fits(t):
            if t.dtype != tensor.dtype:
                return False
            try:
                sizes = torch.broadcast_shapes(t.shape, tensor.shape)
            except RuntimeError:
                return False
            return not into or sizes == tensor.shape

        return self.value(fits)

    def apart(self, least=1):
        """A value no two elements of which are close: an order among them is sure."""

        def fits(t):
            if t.dtype != F64 or t.dim() < least or t.numel() == 0:
                return False
            ordered = t.detach().flatten().sort().values
            return t.numel() == 1 or bool((ordered.diff() > 1e-6 * (1 + ordered.abs().max())).all())

        return self.value(fits)

    def writable(self, fits=lambda t: True, dtype=F64):
        """A value that may be written in place."""
        return self.value(lambda t: t.dtype == dtype and not (t.is_leaf and t.requires_grad) and fits(t))

    def shares(self, one, other):
        """Whether two expressions are views of the same memory."""
        tensors = [eval(each, self.names) for each in (one, other)]  # both live: memory that was freed is used again
        memory = [tensor.untyped_storage().data_ptr() for tensor in tensors]
        return memory[0] == memory[1]

    def at(self, name):
        return self.names[name]

    def dim(self, tensor):
        if tensor.dim() == 0:
            raise Unfit
        return self.chance.randrange(-tensor.dim(), tensor.dim())

    def new(self):
        self.count += 1
        return f"v{self.count}"

    def number(self):
        return self.one(2, 0.5, -1.25, 3, 0.75)

    def layout(self, tensor):
        """A layout for a tensor, with terms of at most one kind."""
        dims, places = tensor.dim(), []
        term = self.one("sum", "sum", "sum", "avg", "max", "min")
        if not tensor.is_floating_point():
            term = "sum" if tensor.is_complex() else self.one("sum", "max")
        partial = tensor.dtype not in (torch.bool, torch.uint8)
        if tensor.is_floating_point() and ((tensor == 0).any() or not tensor.isfinite().all()):
            # Terms that cancel leave what they are rounded by, which a division by nearly nothing makes large. Others
            # of an infinite value are 0, and 0 times infinity is no number.
            term = self.one("max", "min")
        for _ in self.mesh:
            draw = self.chance.random()
            if dims and draw < 0.5:
                places.append(f"S({self.chance.randrange(dims)})")
            elif dims and draw < 0.57:
                places.append(f"SS({self.chance.randrange(dims)},{self.one(2, 2, 3)})")
            elif partial and draw < 0.75:
                places.append(f"P({term})")
            else:
                places.append("R")
        return ",".join(places) + self.order(places)

    def order(self, places):
        """Sometimes, which of several axes that shard a dimension comes first."""
        by_dim = {}
        for (name, _), place in zip(self.mesh, places):
            if found := re.match(r"SS?\((\d+)", place):
                by_dim.setdefault(found[1], []).append(name)
        orders = []
        for dim, names in by_dim.items():
            if len(names) > 1 and self.often(0.5):
                orders.append(f"{dim}:" + ">".join(self.chance.sample(names, len(names))))
        return f" | {', '.join(orders)}" if orders else ""

    # ---- growth -------------------------------------------------------------------------------

    def input(self, code, grad=None):
        """Adds an input and gives its name. Floats need gradients more often than not, unless it is said."""
        name, seed = f"x{len(self.inputs)}", self.seed * 31 + len(self.inputs)
        full = inputs.make_plain(code, seed)
        wants = (full.is_floating_point() and self.often(0.7)) if grad is None else grad
        self.inputs.append(Input(name, code, seed, self.layout(full), wants))
        self.names[name] = full.requires_grad_() if wants else full
        self.values.append(name)
        return name

    def add(self, write):
        """Draws a line of a kind and runs it on plain tensors. False where that fails, or gives too much."""
        state = len(self.inputs), len(self.values), self.count
        try:
            line = write(self)
            exec(inputs.compiled(line, "exec"), self.names)
            made = [name for name in sorted(made_by(line)) if isinstance(self.names[name], torch.Tensor)]
            if not all(self.is_usable(self.names[name]) for name in made):
                raise Unfit
        except Exception:
            self.forget(*state)
            return False
        self.lines.append(line)
        self.values += sorted(made, key=lambda name: int(name[1:].split("_")[0]) if name[1:2].isdigit() else 0)
        return True

    def forget(self, inputs_before, values_before, count_before):
        """Takes back what a line that failed has added. What it has written stays, which is no harm: the program
        itself runs anew."""
        del self.inputs[inputs_before:], self.values[values_before:]
        self.count = count_before

    def is_usable(self, tensor):
        if tensor.numel() > MOST_ELEMENTS or tensor.dim() > MOST_DIMS:
            return False
        if not tensor.dtype.is_floating_point or tensor.numel() == 0:
            return True
        largest = tensor.detach().abs().max().item()
        return largest < LARGEST or (largest != largest and self.often(0.05))


def product(sizes):
    return torch.Size(sizes).numel()
