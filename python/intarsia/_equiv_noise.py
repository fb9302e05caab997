"""How far rounding may move the numbers of a program: it is run again with the rounding error that each op could have made, drawn at random.

A layout changes the order in which sums are added, and nothing else. So the rounding errors of a run on many ranks are others than those of one
rank, of the same size. What that size is, after so many ops, steps and cancellations, no formula says for any program; running it does.

The error of one op follows from the dtype, and from the length of its sums:

- A result is rounded once, to its dtype: relative to itself by u, the unit roundoff (2^-24 in float32, 2^-9 in bfloat16).
- A sum of K products a*b is added up in its accumulation type with K - 1 roundings, each relative to the sum so far. For products of random sign
  these are a random walk of K steps whose last has the size s = sqrt(sum of (a*b)^2): u * s * sqrt(K / 2) in all. A sharded sum is also rounded
  to its dtype once on each rank and in each of log2(ranks) additions.

Ops that are made of others (norms, softmax, attention, losses) are taken apart into those first, as torch's own decompositions do. Ops that
move numbers, or choose between them, make no error.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from . import _C

aten = torch.ops.aten

# Results that are one of their operands' numbers, or no rounded ones.
EXACT = frozenset("""
    abs alias arange argmax argmin as_strided avg_pool_indices bernoulli broadcast_to cat ceil clamp clamp_max clamp_min clone constant_pad_nd
    contiguous copy_ detach diagonal dropout embedding empty empty_like empty_strided expand eye fill fill_ flip floor full full_like gather hardtanh
    index index_put index_put_ index_select is_pinned isnan lift_fresh linspace masked_fill masked_fill_ masked_select max max_pool2d_with_indices
    maximum min minimum native_dropout neg new_empty new_empty_strided new_full new_ones new_zeros nonzero normal_ normal one_hot ones ones_like
    permute rand rand_like randint randint_like randn randn_like random_ randperm relu relu_ repeat reshape roll round scalar_tensor scatter
    select select_backward select_scatter set_ sign slice slice_backward slice_scatter sort split split_with_sizes squeeze stack t threshold_backward
    topk transpose tril triu trunc unbind unfold uniform_ unsqueeze view where zero_ zeros zeros_like _unsafe_view _reshape_alias
    _unsafe_index resize_ bernoulli_ exponential_ equal is_same_size unsafe_split
""".split())  # fmt: skip


def units(dtype: torch.dtype) -> float:
    """The unit roundoff: half the distance of 1 from the next number."""
    return torch.finfo(dtype).eps / 2


def accumulated_in(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


@functools.cache
def _decompositions() -> dict:
    from torch._decomp import core_aten_decompositions, get_decompositions

    more = get_decompositions([aten.native_layer_norm, aten.native_layer_norm_backward, aten._softmax, aten._softmax_backward_data,
                               aten._log_softmax, aten._log_softmax_backward_data, aten.nll_loss_forward, aten.nll_loss_backward,
                               aten.native_batch_norm, aten.native_batch_norm_backward, aten._fused_rms_norm, aten._fused_rms_norm_backward])  # fmt: skip
    return dict(core_aten_decompositions()) | dict(more)


class RoundingNoise(TorchDispatchMode):
    """Inside, results of ops carry the rounding errors that they could have had."""

    def __init__(self, seed: int, ranks: int):
        super().__init__()
        self._random = torch.Generator().manual_seed(seed)
        self._levels = 1 + math.log2(max(ranks, 1))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(t is not torch.Tensor and t is not torch.nn.Parameter for t in types):
            return NotImplemented
        # torch's decompositions are made of ops that distributed tensors do not know.
        if func in _decompositions() and not any(_C.has_layout(a) for a in args if isinstance(a, torch.Tensor)):
            with self:
                out = _decompositions()[func](*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        if func.namespace == "aten" and func.is_view is False and func._schema.name.split("::")[1] not in EXACT:
            self._disturb(func, args, out)
        return out

    def _disturb(self, func, args, out) -> None:
        written = out
        if out is None or (isinstance(out, (list, tuple)) and not out):  # what writes lists of tensors, such as fused optimizers
            written = [args[i] for i, a in enumerate(func._schema.arguments) if i < len(args) and a.alias_info and a.alias_info.is_write]
        sums = _sums_in(func._schema.name.split("::")[1], func, [_on_one_rank(a) if isinstance(a, torch.Tensor) else a for a in args])
        for i, tensor in enumerate(map(_on_one_rank, _flat(written))):
            if tensor.is_floating_point() and tensor.numel() > 0 and not tensor.is_meta:
                self._add_error(tensor, sums[i] if i < len(sums) else None)

    def _add_error(self, tensor: torch.Tensor, sums: Sums | None) -> None:
        unit = units(tensor.dtype)
        exact = tensor.double()
        error = exact.abs() * unit
        if sums is not None and sums.size.shape == tensor.shape:
            walk = units(accumulated_in(tensor.dtype)) * math.sqrt(sums.count / 2)
            error = sums.size * math.hypot(walk, unit * self._levels) + error
        noise = torch.randn(tensor.shape, generator=self._random, dtype=torch.float64).to(tensor.device)
        tensor.copy_((exact + (noise * error).nan_to_num(0.0, 0.0, 0.0)).to(tensor.dtype))  # infinities, such as of masks, stay


def _on_one_rank(tensor: torch.Tensor) -> torch.Tensor:
    """Its memory: a distributed tensor's one piece, where there is one rank."""
    if not _C.has_layout(tensor):
        return tensor
    pieces = _C.locals(tensor.detach())
    if len(pieces) != 1 or _C.world_of(tensor).size() != 1:
        raise ValueError(f"[equiv] a reference runs on one rank, on plain tensors or on a mesh of one rank, not on {_C.layout_of(tensor).mesh()}")
    return pieces[0]


def _flat(out) -> Iterator[torch.Tensor]:
    if isinstance(out, torch.Tensor):
        yield out
    elif isinstance(out, (list, tuple)):
        for each in out:
            yield from _flat(each)


class Sums(NamedTuple):
    """A tensor of sums: for each the root of the sum of squares of what is added, and how many are added."""

    size: torch.Tensor
    count: float


def _sums_in(op: str, func, args) -> list[Sums | None]:
    """What each result of an op adds up: none for one that adds up nothing."""
    given = [a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
    squares = [a.square() if isinstance(a, torch.Tensor) else a for a in given]
    if op in ("mm", "bmm", "addmm", "baddbmm"):
        a, b = squares[-2:] if op in ("mm", "bmm") else squares[1:3]
        return [Sums(torch.matmul(a, b).sqrt(), a.shape[-1])]
    if op in ("sum", "mean") and args[0].is_floating_point() and args[0].dim() > 0:
        dims = args[1] if len(args) > 1 and args[1] else list(range(args[0].dim()))
        count = max(math.prod(args[0].shape[d] for d in dims), 1)
        size = squares[0].sum(dims, keepdim=bool(args[2]) if len(args) > 2 else False).sqrt()
        return [Sums(size / (count if op == "mean" else 1), count)]
    if op == "convolution":
        return [Sums(func(squares[0], squares[1], None, *args[3:]).sqrt(), math.prod(args[1].shape[1:]))]
    if op == "convolution_backward":
        gradient, _, weight = args[:3]
        counts = [gradient.shape[1] * math.prod(weight.shape[2:]), gradient.numel() / gradient.shape[1], gradient.numel() / gradient.shape[1]]
        sizes = func(*squares)
        return [None if size is None else Sums(size.sqrt(), count) for size, count in zip(sizes, counts, strict=True)]
    return []


@contextlib.contextmanager
def rounding_noise(seed: int, ranks: int) -> Iterator[None]:
    # Attention is one op of the device, backward included, that no decomposition takes apart; torch has it as ops too.
    with sdpa_kernel(SDPBackend.MATH), RoundingNoise(seed, ranks):
        yield
