"""The methods of torch.Tensor that C++ has no way to override: __repr__, __deepcopy__, __reduce_ex__, tolist, numpy,
new_tensor, register_hook, __dlpack__, data_ptr; what torch.distributed.checkpoint asks of a tensor before it writes; calls of
TransformerEncoder, which makes nested tensors; and load_state_dict of torch.nn.Module, which could put plain tensors in the
place of distributed ones.

For plain tensors, and for all classes that have their own, they do what they did before.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from . import _C, _world


PRINTED_PIECES = 8  # of more, the first and the last


def pieces_here(tensor: Tensor) -> list[tuple[int, Tensor]]:
    """The pieces here, without their history, and their ranks: one; all in lockstep; none outside the mesh."""
    mesh = _C.layout_of(tensor).mesh()
    with torch.no_grad():
        pieces = _C.locals(tensor)
    return list(zip((rank for rank in _C.world_of(tensor).hosted() if mesh.contains(rank)), pieces, strict=True))


def _whose(ranks: tuple[int, ...], size: int) -> str:
    """The ranks that a process hosts, in words."""
    return f"rank {ranks[0]} of {size}" if len(ranks) == 1 else f"{size} ranks in lockstep"


def describe_with_pieces(tensor: Tensor) -> str:
    """For printing: what the tensor is, and the pieces of this process. Any rank may do it alone."""
    history = ""
    if tensor.grad_fn is not None:
        history = f", grad_fn=<{tensor.grad_fn.name()}>"
    elif tensor.requires_grad:
        history = ", requires_grad=True"
    head = f"distributed {_C.describe(tensor)}{history}"
    layout, pieces = _C.layout_of(tensor), pieces_here(tensor)

    def piece_text(rank: int, piece: Tensor) -> str:
        held = _C.boxes(layout, list(tensor.shape), layout.mesh().coordinate_of(rank))
        return f"rank {rank} holds {held}:\n{piece!r}"

    if not pieces:
        return f"{head}; rank {_C.world_of(tensor).rank()} is outside the mesh"
    if len(pieces) == 1:
        return f"{head}; {piece_text(*pieces[0])}"
    shown, left_out = pieces, []
    if len(pieces) > PRINTED_PIECES:
        half = PRINTED_PIECES // 2
        shown, left_out = pieces[:half] + pieces[-half:], [f"... {len(pieces) - 2 * half} more ranks ..."]
    texts = [piece_text(*each) for each in shown]
    return "\n".join([head, *texts[: len(texts) // 2], *left_out, *texts[len(texts) // 2 :]])


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
    pieces: list[Tensor],
    layout: str,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    ranks: tuple[int, ...],
    size: int,
    requires_grad: bool,
) -> Tensor:
    """What pickling leaves: the pieces of a process, to be taken up by the same ranks of an equal world."""
    world = _world.world()
    if (world.hosted(), world.size()) != (ranks, size):
        raise ValueError(
            f"[restore] the tensor was pickled by {_whose(ranks, size)}, and this is "
            f"{_whose(world.hosted(), world.size())}; to read a tensor anywhere, pickle full(tensor)"
        )
    tensor = _C.from_locals(pieces, _C.Layout.parse(layout), world, list(shape), None, list(strides))
    return tensor.requires_grad_(requires_grad)


def reduce(tensor: Tensor) -> tuple:
    """For pickling: the pieces, and where they belong."""
    world = _C.world_of(tensor)
    # A view is pickled as a tensor of its own, without gaps.
    dense = tensor if tensor.is_contiguous() else tensor.detach().contiguous()
    pieces = [piece for _, piece in pieces_here(dense)]
    if not pieces:
        raise ValueError(f"[pickle] rank {world.rank()} holds no piece of {_C.describe(tensor)}")
    layout, shape, strides = str(_C.layout_of(dense)), tuple(dense.shape), tuple(dense.stride())
    args = (pieces, layout, shape, strides, world.hosted(), world.size(), tensor.requires_grad)
    state = torch._utils._get_obj_state(tensor)
    if state or type(tensor) is not Tensor:
        return torch._tensor._rebuild_from_type_v2, (restore, type(tensor), args, state)
    return restore, args


def new_beside(tensor: Tensor, data, *, dtype=None, device=None, requires_grad=False) -> Tensor:
    """What new_tensor makes: replicated, as new_zeros of other sizes is, and on the world's device."""
    value = data.detach().clone() if isinstance(data, Tensor) else torch.tensor(data)
    value = value.to(dtype or tensor.dtype)
    if not _C.has_layout(value):
        layout = _C.Layout.replicated(_C.layout_of(tensor).mesh())
        value = _C.distribute(value, layout, _C.world_of(tensor))
    return value.requires_grad_(requires_grad)


def _is_distributed(module: torch.nn.Module, *given) -> bool:
    """Whether a module has distributed parameters, or is given distributed tensors."""
    return any(isinstance(t, Tensor) and _C.has_layout(t) for t in (*given, *module.parameters()))


def check_assignment(module: nn.Module, state: Mapping[str, object]) -> None:
    """Refuses to put tensors in the place of distributed ones, as load_state_dict(assign=True) does."""
    for name, tensor in [*module.named_parameters(remove_duplicate=False), *module.named_buffers()]:
        if name in state and _C.has_layout(tensor):
            raise ValueError(
                f"[load_state_dict] assign=True would put another tensor in the place of {name!r}, "
                f"{_C.describe(tensor)}; leave it out: module.load_state_dict(state) copies the values into the layouts"
            )


def _refuse_memory(where: str, tensor: Tensor):
    raise TypeError(
        f"[{where}] {_C.describe(tensor)} is stored in pieces and has no memory of its own; take intarsia.full(tensor) or "
        "intarsia.local(tensor), and to save a model intarsia.full_state_dict(module)"
    )


def _refuse_checkpoint(tensor: Tensor):
    """A property that plain tensors do not have, so that torch goes on as before."""
    if not _C.has_layout(tensor):
        raise AttributeError
    raise NotImplementedError(
        f"[checkpoint] torch.distributed.checkpoint does not know the layout of {_C.describe(tensor)}; save "
        "intarsia.full_state_dict(module), and load with intarsia.load_full_state_dict(module, state)"
    )


def install() -> None:
    """Puts the methods in place, once."""
    if hasattr(Tensor.__repr__, "_intarsia"):
        return
    plain_repr, plain_deepcopy, plain_reduce = Tensor.__repr__, Tensor.__deepcopy__, Tensor.__reduce_ex__
    plain_tolist, plain_numpy, plain_register_hook = Tensor.tolist, Tensor.numpy, Tensor.register_hook
    plain_new_tensor = Tensor.new_tensor
    plain_load, plain_dlpack, plain_data_ptr = nn.Module.load_state_dict, Tensor.__dlpack__, Tensor.data_ptr
    has_layout = _C.has_layout

    @functools.wraps(plain_repr)
    def __repr__(self, *, tensor_contents=None):
        if has_layout(self):
            return describe_with_pieces(self)
        return plain_repr(self, tensor_contents=tensor_contents)

    @functools.wraps(plain_deepcopy)
    def __deepcopy__(self, memo):
        return copy_deeply(self, memo) if has_layout(self) else plain_deepcopy(self, memo)

    @functools.wraps(plain_reduce)
    def __reduce_ex__(self, proto):
        return reduce(self) if has_layout(self) else plain_reduce(self, proto)

    @functools.wraps(plain_tolist)
    def tolist(self):
        return plain_tolist(_C.full(self.detach()) if has_layout(self) else self)

    @functools.wraps(plain_numpy)
    def numpy(self, *, force=False):
        if has_layout(self):
            _refuse_memory("numpy", self)
        return plain_numpy(self, force=force)

    @functools.wraps(plain_register_hook)
    def register_hook(self, hook):
        handle = plain_register_hook(self, hook)
        if has_layout(self):
            _C.keep_gradient_layout(self)
        return handle

    @functools.wraps(plain_new_tensor)
    def new_tensor(self, *args, **options):
        make = new_beside if has_layout(self) else plain_new_tensor
        return make(self, *args, **options)

    def call_encoder(self, *args, **options):
        # In evaluation torch makes nested tensors of padded ones, which have no layout: a copy of the module
        # that shares its parameters keeps them padded. Its forward stays as it is, for what reads its source.
        given = (*args, *options.values())
        if getattr(self, "use_nested_tensor", False) and _is_distributed(self, *given):
            self = copy.copy(self)
            self.use_nested_tensor = False
        return torch.nn.Module.__call__(self, *args, **options)

    @functools.wraps(plain_load)
    def load_state_dict(self, state_dict, strict=True, assign=False):
        if assign:
            check_assignment(self, state_dict)
        return plain_load(self, state_dict, strict, assign)

    @functools.wraps(plain_dlpack)
    def __dlpack__(self, *args, **kwargs):
        if has_layout(self):
            _refuse_memory("dlpack", self)
        return plain_dlpack(self, *args, **kwargs)

    @functools.wraps(plain_data_ptr)
    def data_ptr(self):
        if has_layout(self):
            _refuse_memory("data_ptr", self)
        return plain_data_ptr(self)

    nn.Module.load_state_dict = load_state_dict
    Tensor.__dlpack__, Tensor.data_ptr = __dlpack__, data_ptr
    Tensor.__create_write_items__ = Tensor.__create_chunk_list__ = property(_refuse_checkpoint)
    __repr__._intarsia = True
    Tensor.__repr__, Tensor.__deepcopy__, Tensor.__reduce_ex__ = __repr__, __deepcopy__, __reduce_ex__
    Tensor.tolist, Tensor.numpy, Tensor.register_hook = tolist, numpy, register_hook
    Tensor.new_tensor, torch.nn.TransformerEncoder.__call__ = new_tensor, call_encoder
    torch.serialization.add_safe_globals([restore])  # for torch.load with weights_only
