"""Programs from seeds: the same program in every process."""

import contextlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import lines_gradients
import lines_memory  # noqa: F401
import lines_random  # noqa: F401
import lines_rows  # noqa: F401
import lines_values  # noqa: F401
import rows
from draft import KINDS, SHAPES, Draft

SHORTEST, LONGEST = 3, 18


class Calls(TorchDispatchMode):
    """The rows of the op table that were called, below autograd and in backward too."""

    def __init__(self):
        super().__init__()
        self.ops = set()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.ops.add(op)
        return op(*args, **(kwargs or {}))

    def take(self):
        """The rows called since the last time."""
        ops, self.ops = self.ops, set()
        table = rows.table_rows()
        return {name for name in map(rows.row_of, ops) if name in table}


def first_input(d, shape):
    sizes = ", ".join(map(str, shape))
    more = f", {sizes}" if sizes else ""
    draw = d.chance.random()
    maker = "coarse" if d.low and d.often(0.3) else "zero_rows" if shape and d.often(0.2) else "randn"
    if draw < 0.08 and len(shape) >= 2:
        order = d.chance.sample(range(len(shape)), len(shape))
        turned = ", ".join(str(shape[i]) for i in order)
        return f"{maker}({turned}).permute({[order.index(i) for i in range(len(shape))]})"
    if draw < 0.16 and len(shape) == 4:
        return f"{maker}({sizes}).contiguous(memory_format=torch.channels_last)"
    if draw < 0.2 and shape:
        return f"{maker}({', '.join(map(str, (shape[0] * 2, *shape[1:])))})[::2]"
    if draw < 0.24 and shape:
        return f"{maker}({', '.join(map(str, (1, *shape[1:])))}).expand({list(shape)})"
    if draw < 0.78:
        return f"{maker}({sizes})"
    if draw < 0.9:
        return f"ints(0, 4{more})"
    if draw < 0.94:
        return f"bools({sizes})"
    if draw < 0.97 and d.low:
        return f"coarse({sizes}).to({d.one('torch.float32', 'torch.bfloat16')})"
    return f"cplx({sizes})"


def generate(seed, ranks=None, count_rows=True):
    """A program, and the rows of the op table that it calls; counting them takes as long as the rest, and torch itself
    may die of second derivatives that are looked at."""
    d = Draft(seed, ranks)
    torch.manual_seed(seed)
    base = d.one(*SHAPES)
    d.input(f"randn({', '.join(map(str, base))})", grad=d.often(0.75))
    for _ in range(d.one(1, 2, 3)):
        d.input(first_input(d, base if d.often(0.4) else d.one(*SHAPES)))
    kinds = [write for write in KINDS.values() if d.random or not write.random]
    weights = [write.weight for write in kinds]
    length = d.chance.randrange(SHORTEST, LONGEST)
    called, calls = set(), Calls()
    with calls if count_rows else contextlib.nullcontext():
        for _ in range(length * 4):
            if len(d.lines) >= length:
                break
            fits = d.add(d.chance.choices(kinds, weights)[0])
            called |= {row for row in calls.take() if fits}
        calls.take()
        lines_gradients.end(d)
    return d.program(), called | calls.take()
