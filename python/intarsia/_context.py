"""Attention over sequences that are sharded. See docs/context.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _C

MaskLike = _C.AttentionMask | str | Tensor | None
Kernel = tuple[Callable[..., Any], Callable[..., Any]]


def to_mask(given: MaskLike) -> _C.AttentionMask:
    """A mask from what stands for one: its text, a mask tensor, or None for all keys."""
    if given is None:
        return _C.AttentionMask.all()
    if isinstance(given, str):
        return _C.AttentionMask.parse(given)
    return _C.AttentionMask.of(given) if isinstance(given, Tensor) else given


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    mask: MaskLike = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    slopes: Tensor | None = None,
    schedule: str = "auto",
    order: _C.SequenceOrder | None = None,
    key_order: _C.SequenceOrder | None = None,
    kernel: Kernel | None = None,
    value_in_key: int = 0,
) -> Tensor:
    """Attention of queries to the keys that a mask lets them see; [batch, heads, sequence, head size], of which the first
    three may be sharded. A query that sees no key gives 0. Keys may have fewer heads, which queries then share.

    `mask`: an AttentionMask, its text such as "causal+documents(0,700)", or a tensor that can be described by one. `slopes`:
    one for each head (ALiBi). `schedule`: "gather", "ring", "heads", "ring+heads(u)" or "auto", the cheapest by the world's
    topology. `order`: in which the sequences are stored; `key_order`, where keys are another sequence. `kernel`: two
    functions in the place of the device's op: of an AttentionBlock, which gives the output and the logsumexp; and of a
    block, the gradient, output and logsumexp, which gives the gradients of query, key and value. `value_in_key`: values are the
    first so many numbers of each key, and `value` is None: for latent attention, in which only latents travel.
    COLLECTIVE: all ranks of the mesh, where keys are sharded along the sequence.
    """
    options = _options(scale, dropout, slopes, schedule, order, key_order, kernel)
    return _C.attention(query, key, value, to_mask(mask), *options, value_in_key)


class AttentionCost(NamedTuple):
    """What a schedule would cost: seconds by the world's topology, with backward if gradients are wanted, and the bytes that the
    rank which receives most receives in forward."""

    schedule: str
    seconds: float
    bytes: int


def attention_costs(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    mask: MaskLike = None,
    *,
    order: _C.SequenceOrder | None = None,
    value_in_key: int = 0,
) -> list[AttentionCost]:
    """Every schedule that the layouts allow, the cheapest first: that is the one that "auto" takes. Sends nothing."""
    found = _C.attention_costs(query, key, value, to_mask(mask), order or _C.SequenceOrder(), value_in_key)
    return [AttentionCost(*each) for each in found]


def attention_scope(
    mask: MaskLike,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    slopes: Tensor | None = None,
    schedule: str = "auto",
    order: _C.SequenceOrder | None = None,
    key_order: _C.SequenceOrder | None = None,
    kernel: Kernel | None = None,
) -> _C.AttentionScope:
    """In a `with`, torch's scaled_dot_product_attention of this thread uses this mask, in the place of its `is_causal`, and
    these options, on distributed tensors:

        with it.attention_scope("causal+documents(0,700,1500)"):
            loss = model(tokens)
    """
    return _C.AttentionScope(to_mask(mask), *_options(scale, dropout, slopes, schedule, order, key_order, kernel))


def mask_tensor(mask: MaskLike, *, order: _C.SequenceOrder | None = None, schedule: str = "auto") -> Tensor:
    """A mask as a small tensor that torch's scaled_dot_product_attention takes as `attn_mask` of distributed tensors. It goes
    where masks go: through models that hand them on, and into functions that checkpointing calls again in backward."""
    return _C.mask_tensor(to_mask(mask), order or _C.SequenceOrder(), schedule)


def _options(scale, dropout, slopes, schedule, order, key_order, kernel) -> tuple[Any, ...]:  # type: ignore[no-untyped-def]
    return scale, dropout, slopes, schedule, order or _C.SequenceOrder(), key_order, (*kernel, 0, 0) if kernel else None


class ScanLayer(NamedTuple):
    """A layer that carries a state along a sequence, by what it does to lists of plain tensors: a run of positions of those
    that go along the sequence, and the pieces of the others. They must use no tensor that wants a gradient besides.

    `summary(along, others)`: the state that stands for the run, and what `outputs` can use again: two lists.
    `combine(before, after)`: the state of two runs, the second right behind the first; associative.
    `outputs(along, others, kept, before)`: the outputs for the run; `before`: what stands for all positions before it, or None.
    """

    summary: Callable[[list[Tensor], list[Tensor]], tuple[list[Tensor], list[Tensor]]]
    combine: Callable[[list[Tensor], list[Tensor]], list[Tensor]]
    outputs: Callable[[list[Tensor], list[Tensor], list[Tensor], list[Tensor] | None], list[Tensor]]


def scan(
    layer: ScanLayer,
    along: Sequence[Tensor],
    others: Sequence[Tensor] = (),
    *,
    dim: int = 1,
    schedule: str = "auto",
    order: _C.SequenceOrder | None = None,
) -> list[Tensor]:
    """Runs a layer over a sequence that ranks shard: each makes the state of its positions, and states are exchanged, whose
    sizes do not depend on the length. `along`: tensors with the sequence in `dim`; `others`: parameters. `schedule`: "gather",
    "doubling" or "auto", the cheaper. `order`: in which the sequence is stored. Outputs are laid out as the first tensor.
    COLLECTIVE: all ranks of the mesh, where the sequence is sharded.
    """
    return _C.scan(tuple(layer), list(along), list(others), dim, schedule, order or _C.SequenceOrder())


def linear_recurrence(
    decay: Tensor, input: Tensor, *, dim: int = 1, schedule: str = "auto", order: _C.SequenceOrder | None = None
) -> Tensor:
    """h[t] = decay[t] * h[t - 1] + input[t] along a dimension, with 0 before the first position: that of state-space layers."""
    return _C.linear_recurrence(decay, input, dim, schedule, order or _C.SequenceOrder())
