"""Where plain torch differs from itself, so that a difference says nothing about layouts: one list.

An entry names the ops, and what programs do not do with them. It has calls in plain torch that ought to agree and do
not, which test_programs.py runs: an entry that torch has mended must go. Nothing else is kept from programs.
"""

import dataclasses
from collections.abc import Callable

import torch

STRIDED, OUT, STRIDED_OUT = "strided operands", "out=", "out= that is not contiguous"
SHARED = "operands that share memory with what is written"
BITS = "the same bits again"


@dataclasses.dataclass(frozen=True)
class TorchDifference:
    ops: tuple[str, ...]  # names of ATen without overload; empty: all
    avoided: str
    why: str
    shows: Callable[[], bool]  # whether plain torch differs from itself


LIST: list[TorchDifference] = []


def version(text):
    return tuple(int(part) for part in text.split(".")[:2])


def difference(*ops, avoided, mended=None, unseen=None):
    """Declares an entry; the function returns two results that ought to be equal, and its docstring says why not. `mended`: the
    version of torch from which on they are. `unseen`: that from which on these calls do not show it, though others may."""
    now = version(torch.__version__)

    def declare(results):
        if mended and now >= version(mended):
            return results
        is_seen = not unseen or now < version(unseen)
        LIST.append(TorchDifference(ops, avoided, results.__doc__, lambda: not is_seen or not alike(*results())))
        return results

    return declare


def alike(a, b):
    return a.shape == b.shape and torch.equal(a, b)


def avoids(op, what):
    """Whether programs do not do this with an op, given by its name without overload."""
    return any(what == each.avoided and op in each.ops for each in LIST)


def has_own_bits(program):
    """Whether a program calls an op that may give other bits each time."""
    ops = [op for each in LIST if each.avoided == BITS for op in each.ops]
    return any(op in line for line in program.lines for op in ops)


def values(*sizes):
    return torch.linspace(0.1, 0.9, torch.Size(sizes).numel(), dtype=torch.float64).reshape(sizes)


@difference("native_layer_norm_backward", avoided=STRIDED)
def layer_norm_statistics():
    """Mean and deviation are read as if they were contiguous."""
    x = values(3, 4)
    mean = values(3, 2)[:, :1]
    return [
        torch.ops.aten.native_layer_norm_backward(x, x, [4], m, mean.contiguous(), None, None, [True, False, False])[0]
        for m in (mean, mean.contiguous())
    ]


@difference("native_group_norm_backward", avoided=STRIDED, mended="2.14")
def group_norm_statistics():
    """The same of groups."""
    x = values(2, 3, 4)
    mean = values(2, 4)[:, :3]
    return [
        torch.ops.aten.native_group_norm_backward(x, x, m, values(2, 3), None, 2, 3, 4, 3, [True, False, False])[0]
        for m in (mean, mean.contiguous())
    ]


@difference("native_group_norm", avoided=STRIDED, mended="2.14")
def group_norm_weight():
    """Weight and bias are read as if they were contiguous."""
    x, weight = values(2, 4, 3), values(4, 4)[:, 3]
    return [torch.ops.aten.native_group_norm(x, w, w, 2, 4, 3, 2, 1e-5)[0] for w in (weight, weight.contiguous())]


@difference("linalg_lstsq", avoided=BITS, unseen="2.14")
def least_squares_again():
    """The last bits of a solution depend on what its workspace held."""
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(5, 3, k, dtype=torch.float64, generator=generator) for k in (3, 1))
    first, kept = torch.linalg.lstsq(a, b).solution, []
    for k in range(500):
        kept.append(values(1 + k * 37 % 301))
        again = torch.linalg.lstsq(a.clone(), b.clone()).solution
        if not torch.equal(first, again):
            break
    return first, again


@difference("binary_cross_entropy", avoided=OUT)
def binary_cross_entropy_into_a_number():
    """A reduction into a tensor of the right size gives a part of the sum; into one of another size, all of it."""
    x = values(4, 6)
    small, large = torch.zeros([], dtype=torch.float64), torch.zeros(4, 6, dtype=torch.float64)
    return [torch.ops.aten.binary_cross_entropy.out(x, x, None, 2, out=out) for out in (small, large)]


@difference("_softmax", "_log_softmax", avoided=STRIDED_OUT)
def softmax_into_strides():
    """The result is written as if it were contiguous."""
    x = values(2, 1, 2).permute(1, 2, 0)
    return torch.ops.aten._softmax.out(x, 1, False, out=torch.zeros_like(x)), torch.ops.aten._softmax(x, 1, False)


@difference(avoided=SHARED)
def reduction_into_its_operand():
    """A result is written while what is in its memory is still read; but for pointwise ops on the very same tensor."""
    x = torch.tensor([[True, True, False]])
    apart = torch.ops.aten.all.dims(x, [])
    return torch.ops.aten.all.dims_out(x, [], out=x), apart


@difference(avoided=SHARED)
def pointwise_into_part_of_an_operand():
    """The same for a pointwise op, one operand of which is a part of the result that is broadcast."""
    x = values(3, 3)
    apart = torch.atan2(x, x[:, :1])
    return torch.atan2(x, x[:, :1], out=x), apart
