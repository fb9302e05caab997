"""The three methods of torch.Tensor that C++ has no way to override: __repr__, __deepcopy__, __reduce_ex__.

For plain tensors, and for all classes that have their own, they do what they did before.
"""

from __future__ import annotations

import copy
import functools

import torch
from torch import Tensor

from . import _C, _world


def _piece(tensor: Tensor) -> Tensor | None:
    """This rank's piece, without its history; None outside the mesh."""
    here = _C.world_of(tensor).rank()
    if not _C.layout_of(tensor).mesh().contains(here):
        return None
    with torch.no_grad():
        return _C.local(tensor)


def describe_with_piece(tensor: Tensor) -> str:
    """For printing: what the tensor is, and the piece of this rank. Any rank may do it alone."""
    history = ""
    if tensor.grad_fn is not None:
        history = f", grad_fn=<{tensor.grad_fn.name()}>"
    elif tensor.requires_grad:
        history = ", requires_grad=True"
    head = f"distributed {_C.describe(tensor)}{history}"
    rank, piece = _C.world_of(tensor).rank(), _piece(tensor)
    if piece is None:
        return f"{head}; rank {rank} is outside the mesh"
    lies = _C.layout_of(tensor)
    held = _C.boxes(lies, list(tensor.shape), lies.mesh().coordinate_of(rank))
    return f"{head}; rank {rank} holds {held}:\n{piece!r}"


def copy_deeply(tensor: Tensor, memo: dict) -> Tensor:
    """New pieces in the same layout, with what else torch copies: gradient and attributes."""
    if not tensor.is_leaf:
        raise RuntimeError(
            f"[deepcopy] {_C.describe(tensor)} is a result, not a leaf of the graph; copy tensor.detach()"
        )
    if id(tensor) in memo:
        return memo[id(tensor)]
    with torch.no_grad():
        new = tensor.detach().clone()
    new.requires_grad_(tensor.requires_grad)
    memo[id(tensor)] = new
    if tensor.grad is not None:
        new.grad = copy.deepcopy(tensor.grad, memo)
    new.__dict__ = copy.deepcopy(tensor.__dict__, memo)
    return new


def restore(
    piece: Tensor,
    layout: str,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    rank: int,
    size: int,
    requires_grad: bool,
) -> Tensor:
    """What pickling leaves: the piece of one rank, to be taken up by the same rank of an equal world."""
    world = _world.world()
    if (world.rank(), world.size()) != (rank, size):
        raise ValueError(
            f"[restore] the tensor was pickled by rank {rank} of {size}, and this is rank {world.rank()} of "
            f"{world.size()}; to read a tensor anywhere, pickle full(tensor)"
        )
    tensor = _C.from_local(piece, _C.Layout.parse(layout), world, list(shape), None, list(strides))
    return tensor.requires_grad_(requires_grad)


def reduce(tensor: Tensor) -> tuple:
    """For pickling: the piece, and where it belongs."""
    world, piece = _C.world_of(tensor), _piece(tensor)
    if piece is None:
        raise ValueError(f"[pickle] rank {world.rank()} holds no piece of {_C.describe(tensor)}")
    # A view is pickled as a tensor of its own, without gaps.
    whole = tensor if tensor.is_contiguous() else tensor.detach().contiguous()
    piece = _piece(whole)
    layout, shape, strides = str(_C.layout_of(whole)), tuple(whole.shape), tuple(whole.stride())
    args = (piece, layout, shape, strides, world.rank(), world.size(), tensor.requires_grad)
    state = torch._utils._get_obj_state(tensor)
    if state or type(tensor) is not Tensor:
        return torch._tensor._rebuild_from_type_v2, (restore, type(tensor), args, state)
    return restore, args


def install() -> None:
    """Puts the three methods in place, once."""
    if hasattr(Tensor.__repr__, "_intarsia"):
        return
    plain_repr, plain_deepcopy, plain_reduce = Tensor.__repr__, Tensor.__deepcopy__, Tensor.__reduce_ex__
    has_layout = _C.has_layout

    @functools.wraps(plain_repr)
    def __repr__(self, *, tensor_contents=None):
        if has_layout(self):
            return describe_with_piece(self)
        return plain_repr(self, tensor_contents=tensor_contents)

    @functools.wraps(plain_deepcopy)
    def __deepcopy__(self, memo):
        return copy_deeply(self, memo) if has_layout(self) else plain_deepcopy(self, memo)

    @functools.wraps(plain_reduce)
    def __reduce_ex__(self, proto):
        return reduce(self) if has_layout(self) else plain_reduce(self, proto)

    __repr__._intarsia = True
    Tensor.__repr__, Tensor.__deepcopy__, Tensor.__reduce_ex__ = __repr__, __deepcopy__, __reduce_ex__
    torch.serialization.add_safe_globals([restore])  # for torch.load with weights_only
