"""The names that lines of programs may use, besides Python's own.

The same words on both sides: `move` changes a layout where there is one, and else only copies.
"""

import re

import intarsia as it
import torch
from torch.nn import functional
from torch.utils import checkpoint


def w(tensor, k=0):
    """A fixed plain tensor to multiply a value with, before it is summed into a loss."""
    real = tensor.dtype.to_real() if tensor.is_complex() else tensor.dtype
    angles = torch.arange(tensor.numel(), dtype=torch.float64) * 1.37 + k
    return torch.cos(angles).reshape(tuple(tensor.shape)).to(real)


def weight(*sizes):
    """A fixed plain tensor of this size: a kernel, a mean."""
    return torch.sin(torch.arange(torch.Size(sizes).numel(), dtype=torch.float64) * 0.71 + 0.3).reshape(sizes)


def loss(tensor, k=0):
    """A number to which all elements of a value contribute."""
    value = tensor.abs() if tensor.is_complex() else tensor
    return (value * w(value, k)).sum()


def move(tensor, layout):
    """The same values in another layout, in memory of their own."""
    if not it.has_layout(tensor):
        return tensor.clone()
    terms = set(re.findall(r"P\([\w:]+\)", f"{it.layout_of(tensor)} {layout}"))
    if len(terms) > 1:  # no exact way leads from one kind of partial values to another
        tensor = it.redistribute(tensor, re.sub(r"P\([\w:]+\)", "R", str(it.layout_of(tensor))))
    moved = it.redistribute(tensor, layout)
    return tensor.clone() if moved is tensor else moved


def recompute(body, *tensors):
    return checkpoint.checkpoint(body, *tensors, use_reentrant=False)


def with_no_grad(call):
    """Calls with gradients off: ops with out= take no operands that need them."""
    with torch.no_grad():
        call()


class Product(torch.autograd.Function):
    """a * b + a, by formulas of its own."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b + a

    @staticmethod
    def backward(ctx, gradient):
        a, b = ctx.saved_tensors
        return gradient * (b + 1), gradient * a


class Exponential(torch.autograd.Function):
    """Saves its result, and gives a second one that has no gradient."""

    @staticmethod
    def forward(ctx, a):
        result = a.exp()
        positive = a > 0
        ctx.save_for_backward(result)
        ctx.mark_non_differentiable(positive)
        return result, positive

    @staticmethod
    def backward(ctx, gradient, _):
        (result,) = ctx.saved_tensors
        return gradient * result


class Doubled(torch.autograd.Function):
    """Writes in place."""

    @staticmethod
    def forward(ctx, a):
        ctx.mark_dirty(a)
        return a.mul_(2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


WORDS = {
    "torch": torch,
    "aten": torch.ops.aten,
    "nn": functional,
    "inf": float("inf"),
    "nan": float("nan"),
    **{each.__name__: each for each in (w, weight, loss, move, recompute, with_no_grad, Product, Exponential, Doubled)},
}


def own_generator():
    """The generator `own` of programs that draw from one."""
    return torch.Generator().manual_seed(5)
