"""Modules whose inputs are sharded along the sequence. See docs/context.md."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from . import _C
from ._context import MaskLike, attention_scope, mask_tensor, to_mask
from ._tensor import distribute, full, redistribute
from ._world import mesh as current_mesh

Order = str | _C.SequenceOrder | Callable[[int], _C.SequenceOrder]

# The names under which Hugging Face's models take what goes along the sequence.
INPUTS = {"input_ids": 1, "inputs_embeds": 1, "labels": 1, "position_ids": 1}


class ContextParallel:
    """What `context_parallel` gives: it lays out the inputs of a module, and describes the mask to its attention.

    `mask` may be set before each call: for packed batches, `handle.mask = "causal+documents(0,700)"`. `order_of(size)` is the
    order in which a sequence of that size is stored; `remove()` takes the hooks away.
    """

    def __init__(
        self, module: torch.nn.Module, mesh: _C.Mesh, axis: str, mask: MaskLike, order: Order, schedule: str, inputs: Mapping[str, int]
    ) -> None:
        self.mask = mask
        self.schedule = schedule
        self._mesh, self._axis, self._order, self._inputs = mesh, axis, order, dict(inputs)
        self._signature = inspect.signature(module.forward)
        self._scopes: list[contextlib.AbstractContextManager[Any]] = []
        self._orders: dict[tuple[int, str], _C.SequenceOrder] = {}
        self._hooks = [
            module.register_forward_pre_hook(self._before, with_kwargs=True),
            module.register_forward_hook(self._after, always_call=True),
        ]

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def order_of(self, size: int, mask: MaskLike = "") -> _C.SequenceOrder:
        mask = to_mask(self.mask if mask == "" else mask)
        key = (size, str(mask))
        if key not in self._orders:
            if len(self._orders) >= 64:
                self._orders.clear()
            self._orders[key] = self._make_order(size, mask)
        return self._orders[key]

    def _make_order(self, size: int, mask: _C.AttentionMask) -> _C.SequenceOrder:
        if isinstance(self._order, _C.SequenceOrder):
            return self._order
        if callable(self._order):
            return self._order(size)
        lengths = _C.shard_lengths(size, self._mesh.size(self._axis))
        if self._order == "head_tail":
            return _C.SequenceOrder.head_tail(lengths)
        if self._order == "balanced":
            return _C.SequenceOrder.balanced(lengths, mask)
        if self._order != "contiguous":
            raise ValueError(f"[context_parallel] there is no order '{self._order}'; there are contiguous, head_tail and balanced")
        return _C.SequenceOrder()

    def _placed(self, name: str, tensor: Tensor, dim: int, order: _C.SequenceOrder) -> Tensor:
        """A full input, in order and sharded. One that is distributed along other axes keeps these."""
        axis = self._mesh.axis_index(self._axis)
        if not _C.has_layout(tensor):
            placements = ["R"] * len(self._mesh.names())
            placements[axis] = f"S({dim})"
            return distribute(_C.in_order(tensor, order, dim), ",".join(placements), mesh=self._mesh)
        layout = _C.layout_of(tensor)
        placements = [str(p) for p in layout.placements()]
        if placements[axis] == f"S({dim})" and order.is_contiguous():
            return tensor
        if placements[axis] != "R":
            raise ValueError(
                f"[context_parallel] {name} is {_C.describe(tensor)}; pass it full, or replicated along {self._axis}, and it is put "
                f"in the order {self._order} and sharded"
            )
        placements[axis] = f"S({dim})"
        return redistribute(_C.in_order(tensor, order, dim), ",".join(placements))

    def _before(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = self._signature.bind(*args, **kwargs)
        arguments = dict(given.arguments)
        for name, parameter in self._signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                arguments.update(arguments.pop(name, {}))
        here = {name: t for name in self._inputs if isinstance(t := arguments.get(name), Tensor)}
        if not here:
            raise ValueError(
                f"[context_parallel] none of {', '.join(self._inputs)} is among the arguments of {type(module).__name__}; say which go "
                "along the sequence, and in which dimension: inputs={'tokens': 1}"
            )
        size = next(t.size(self._inputs[name]) for name, t in here.items())
        mask = to_mask(self.mask)
        starts = starts_of(mask)
        padding = arguments.get("attention_mask")
        if isinstance(padding, Tensor) and padding.dim() == 2:
            mask = masked_padding(mask, padding)
        order = self.order_of(size, mask)
        changed: dict[str, Any] = {}
        for name, t in here.items():
            changed[name] = self._placed(name, t, self._inputs[name], order)
        accepts = self._signature.parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in accepts.values())
        if "labels" in here and takes_any and "shift_labels" not in arguments:
            # Shifted while they are full: shards lack the first label of the next one.
            shifted = _C.next_tokens(here["labels"], starts)
            changed["shift_labels"] = self._placed("labels", shifted, self._inputs["labels"], order)
        if "position_ids" in accepts and "position_ids" not in here:
            positions = _C.positions_in_order(order, size, starts).unsqueeze(0)
            changed["position_ids"] = self._placed("position_ids", positions, 1, _C.SequenceOrder())
        if self._hands_on_masks(module):
            changed["attention_mask"] = mask_tensor(mask, order=order, schedule=self.schedule)
        scope = attention_scope(mask, order=order, schedule=self.schedule)
        scope.__enter__()
        self._scopes.append(scope)
        named = {**arguments, **changed}
        return (), named

    @staticmethod
    def _hands_on_masks(module: torch.nn.Module) -> bool:
        """Whether it is a model of transformers, which gives its layers a mask: also when checkpointing calls them again."""
        attention = getattr(getattr(module, "config", None), "_attn_implementation", None)
        if attention not in (None, "sdpa", "intarsia"):
            raise ValueError(
                f"[context_parallel] the model's attention is '{attention}'; take 'sdpa', or register_hugging_face_attention() and 'intarsia'"
            )
        return attention is not None

    def _after(self, *_: Any) -> None:
        if self._scopes:
            self._scopes.pop().__exit__(None, None, None)


def starts_of(mask: _C.AttentionMask) -> list[int]:
    """Where documents begin, if they are the same in all samples."""
    documents = mask.document_starts()
    if len(documents) > 1:
        raise ValueError(
            "[context_parallel] labels and positions are made for one row of documents, and the mask has documents of "
            f"{len(documents)} samples; pass position_ids and shift_labels"
        )
    return documents[0] if documents else []


def masked_padding(mask: _C.AttentionMask, padding: Tensor) -> _C.AttentionMask:
    """The mask, with padding before or behind each sample as a document of its own: real tokens do not see it."""
    seen = (full(padding) if _C.has_layout(padding) else padding).bool()
    if bool(seen.all()):
        return mask
    if mask.document_starts():
        raise ValueError(f"[context_parallel] attention_mask has padding, and the mask is {mask}; describe padding as documents too")
    starts = []
    for row in seen.tolist():
        changes = [i for i in range(1, len(row)) if row[i] != row[i - 1]]
        if len(changes) > 1 and (len(changes) > 2 or row[0]):
            raise ValueError(
                f"[context_parallel] a row of attention_mask changes at {changes}; real tokens stand together, with padding before or "
                "behind; describe other masks: context_parallel(mask=...)"
            )
        starts.append([0, *changes])
    return mask.documents_of_samples(starts)


def context_parallel(
    module: torch.nn.Module,
    mesh: _C.Mesh | None = None,
    *,
    axis: str = "cp",
    mask: MaskLike = "causal",
    order: Order = "contiguous",
    schedule: str = "auto",
    inputs: Mapping[str, int] = INPUTS,
) -> ContextParallel:
    """Shards the inputs of a module along the sequence, over an axis of the mesh, whenever it is called, and describes the mask
    to its attention (torch's scaled_dot_product_attention, or Hugging Face's "intarsia"). Nothing in the module is replaced.

    `inputs`: the arguments that go along the sequence, and in which dimension. They are passed full, the same on all ranks, or
    distributed along other axes. `order`: "contiguous", "head_tail", "balanced", or one's own. Labels are shifted while they are
    full, and passed on as `shift_labels`; a model that takes position_ids gets them. Parameters are left as they are: lay them
    out with parallelize, fully_shard or both.
    """
    return ContextParallel(module, mesh or current_mesh(), axis, mask, order, schedule, inputs)
