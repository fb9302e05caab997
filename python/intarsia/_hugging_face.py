"""Attention of Intarsia for Hugging Face's models, by their own registry. See docs/hugging_face.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import _C
from ._context import attention, mask_tensor, to_mask
from ._context_parallel import masked_padding

NAME = "intarsia"


def register_hugging_face_attention() -> str:
    """Registers attention by description with transformers: `AutoModel.from_pretrained(..., attn_implementation="intarsia")`, or
    model.set_attn_implementation. Masks that a model makes become descriptions, never tensors of queries x keys. Gives the name."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, hugging_face_attention)
    AttentionMaskInterface.register(NAME, hugging_face_mask)
    return NAME


def hugging_face_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What transformers calls for each layer."""
    for name in ("softcap", "position_bias", "s_aux", "head_mask"):
        if kwargs.get(name) is not None:
            raise NotImplementedError(f"[intarsia attention] {type(module).__name__} passes {name}, which it does not have; use sdpa or eager")
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    said = _C.described_attention(attention_mask)
    if said is not None:
        mask, order, schedule = said
    else:
        unmasked = "causal" if causal and query.size(2) > 1 else None
        mask, order, schedule = to_mask(unmasked if attention_mask is None else attention_mask), None, "auto"
    if sliding_window is not None:
        mask = mask.within(sliding_window - 1, 0 if causal else sliding_window - 1)
    out = attention(query, key, value, mask, scale=scaling, dropout=dropout, order=order, schedule=schedule)
    return out.transpose(1, 2), None


def hugging_face_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Tensor] | None = None,
    attention_mask: Tensor | None = None,
    **kwargs: Any,
) -> Tensor | None:
    """What transformers calls once for each kind of layer: the description of a mask, as a small tensor."""
    if _C.described_attention(None) is not None:
        return None  # a scope says it
    assert mask_function is not None
    mask = known(mask_function)
    if mask is None or kv_offset != 0 or (q_offset != 0 and attention_mask is not None):

        def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            seen = mask_function(b, h, q + q_offset, k + kv_offset)
            return seen if attention_mask is None else seen & _plain(attention_mask).bool()[b, k + kv_offset]

        return mask_tensor(_C.AttentionMask.of_function(sees, q_length, kv_length, batch_size, 1))
    if q_offset != 0:
        mask = mask.offset(q_offset)
    return mask_tensor(mask if attention_mask is None else masked_padding(mask, attention_mask))


def _plain(tensor: Tensor) -> Tensor:
    from ._tensor import full

    return full(tensor) if _C.has_layout(tensor) else tensor


def known(function: Callable[..., Tensor]) -> _C.AttentionMask | None:
    """The description of a function that transformers makes for all models; None for others, which are asked key by key."""
    from transformers import masking_utils

    if function is masking_utils.causal_mask_function:
        return to_mask("causal")
    if function is getattr(masking_utils, "bidirectional_mask_function", None):
        return to_mask(None)
    return None
