"""Modules on torch.device("meta"), whose values do not exist yet: who sets them, and whether all are set."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from . import _C

# By which modules set their own values; torch's MultiheadAttention and Transformer have the second.
_RESETS = ("reset_parameters", "_reset_parameters")


def _own(part: nn.Module) -> list[Tensor]:
    return [t for table in (part._parameters, part._buffers) for t in table.values() if t is not None]


def _children_first(part: nn.Module, init: Callable | None = None) -> Iterator[tuple[nn.Module, Callable | None]]:
    """The modules inside, each once, in the order in which constructors end, with the `_init_weights` that counts for
    it: that of the innermost module around it which has one."""
    seen = set()

    def walk(part: nn.Module, init: Callable | None) -> Iterator[tuple[nn.Module, Callable | None]]:
        if part in seen:
            return
        seen.add(part)
        init = getattr(part, "_init_weights", init)
        for child in part.children():
            yield from walk(child, init)
        yield part, init if callable(init) else None

    return walk(part, init)


def _takes_a_module(init: Callable) -> bool:
    try:
        inspect.signature(init).bind(None)
    except TypeError:
        return False
    return True


def unset_parts(module: nn.Module) -> set[nn.Module]:
    """The modules that must set values: those with tensors on meta, and those with nothing else inside."""
    out = set()
    for part in module.modules():
        inside = [*part.parameters(), *part.buffers()]
        if any(t.is_meta for t in _own(part)) or (inside and all(t.is_meta for t in inside)):
            out.add(part)
    return out


def _memory_of(tensor: Tensor) -> int:
    """What stands for its memory: views and `.data` share it."""
    if not _C.has_layout(tensor):
        return tensor.untyped_storage()._cdata
    with torch.no_grad():
        pieces = _C.locals(tensor)
    return pieces[0].untyped_storage()._cdata if pieces else 0  # none outside the mesh


class _Writes(TorchDispatchMode):
    """Whose memory is written to."""

    def __init__(self):
        super().__init__()
        self.memory: set[int] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # else torch.compile is loaded, which takes seconds
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        for i, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            for tensor in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(tensor, Tensor):
                    self.memory.add(_memory_of(tensor))
        return out


@torch.no_grad()
def set_values(
    module: nn.Module, parts: set[nn.Module], init: Callable[[nn.Module], object] | None, where: str
) -> None:
    """Lets these modules set their values, and then `init` all. ValueError, which begins with `where`, that names all
    tensors of these modules that nothing was written to."""
    if not parts:
        return
    listed = [(part, of_model) for part, of_model in _children_first(module) if part in parts]
    with _Writes() as writes:
        for part, _ in listed:
            reset = next((getattr(part, name) for name in _RESETS if hasattr(part, name)), None)
            if reset is not None:
                reset()
        for part, of_model in listed:
            if of_model is None:
                continue
            if _takes_a_module(of_model):
                of_model(part)
            elif of_model == getattr(part, "_init_weights", None):  # the one for all that is inside
                of_model()
        if init is not None:
            module.apply(init)
    theirs = {id(tensor) for part in parts for tensor in _own(part)}
    raw = [
        f"{name!r}"
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]
        if id(tensor) in theirs
        and tensor.numel() > 0
        and (tensor.is_meta if not _C.has_layout(tensor) else _memory_of(tensor) not in writes.memory)
    ]
    if raw:
        raise ValueError(
            f"[{where}] the module is on the meta device, and nothing sets the values of {', '.join(raw)}: no "
            "reset_parameters() or _init_weights() writes to them. Pass init=, a function that is called with every "
            "module and sets them, or make the module with values, without torch.device('meta')"
        )
