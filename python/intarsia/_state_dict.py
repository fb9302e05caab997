"""Full state dicts: the values of a model and of its optimizer as plain full tensors. See docs/state_dicts.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from . import _C


class _Filling:
    """Full tensors in memory of their own; what is one tensor under several names stays one."""

    def __init__(self, cpu: bool, only_on_rank_0: bool):
        self._cpu, self._only_on_rank_0 = cpu, only_on_rank_0
        self.keeps = True
        self._made: dict[int, tuple[Tensor, Tensor]] = {}  # with the tensor, whose id must not be used again

    @torch.no_grad()
    def full(self, tensor: Tensor) -> Tensor:
        known = self._made.get(id(tensor))
        if known is not None:
            return known[1]
        if self._only_on_rank_0 and _C.has_layout(tensor):
            self.keeps = self.keeps and 0 in _C.world_of(tensor).hosted()
        value = _C.full(tensor.detach()) if _C.has_layout(tensor) else tensor.detach()
        if not self.keeps:
            value = value.new_empty(0)  # but known, so that all ranks gather the same tensors
        elif self._cpu and value.device.type != "cpu":
            value = value.cpu()
        else:
            value = value.clone()
        self._made[id(tensor)] = tensor, value
        return value


def full_state_dict(
    module: nn.Module, *, cpu: bool = False, only_on_rank_0: bool = False
) -> dict[str, Any]:
    """What `module.state_dict()` gives, with full plain tensors in memory of their own: for torch.save, safetensors,
    save_pretrained(state_dict=...), or `load_full_state_dict` on any other mesh. Tied weights are one tensor.

    `cpu`: each tensor is brought to the CPU before the next is gathered. `only_on_rank_0`: the other ranks take part,
    and get an empty dict. COLLECTIVE: all ranks of the meshes.
    """
    filling = _Filling(cpu, only_on_rank_0)
    state = module.state_dict(keep_vars=True)  # the tensors themselves, so that shared ones are known
    for name, value in state.items():
        if isinstance(value, Tensor):
            state[name] = filling.full(value)
    return state if filling.keeps else {}


def _fault(name: str, value: Any, shape: torch.Size) -> str | None:
    if not isinstance(value, Tensor):
        return f"{name!r} is of type {type(value).__name__}, where a tensor is due"
    if _C.has_layout(value):
        return f"{name!r} is {_C.describe(value)}, where a plain one is due"
    if value.shape != shape:
        return f"{name!r} has sizes {tuple(value.shape)}, where {tuple(shape)} are due"
    return None


def _refuse(where: str, missing: list[str], unexpected: list[str], others: list[str]) -> None:
    parts = []
    if missing:
        parts.append("it lacks " + ", ".join(missing))
    if unexpected:
        parts.append("nothing is called " + ", ".join(unexpected))
    if parts or others:
        raise ValueError(f"[{where}] the dict does not fit: {'; '.join(parts + others)}; nothing was changed")


def load_full_state_dict(module: nn.Module, state: Mapping[str, Any], *, strict: bool = True) -> None:
    """Gives a module, plain or distributed, the values of a full state dict, which must be the same on all ranks. They
    are cast to its dtypes and laid out as its tensors are, which keep their identity.

    ValueError that names all tensors that are missing, unexpected, of another size, or distributed, before anything is
    changed. Not `strict`: missing and unexpected ones are left out. Communicates nothing.
    """
    ours = module.state_dict(keep_vars=True)
    missing = [name for name in ours if name not in state] if strict else []
    unexpected = [name for name in state if name not in ours] if strict else []
    faults = [
        _fault(name, state[name], tensor.shape)
        for name, tensor in ours.items()
        if isinstance(tensor, Tensor) and name in state
    ]
    _refuse("load_full_state_dict", missing, unexpected, [fault for fault in faults if fault])
    module.load_state_dict(state, strict=strict)


def _mapped(optimizer: torch.optim.Optimizer, state: Mapping[str, Any], change: Callable[..., Any]) -> dict[str, Any]:
    """An optimizer's state dict with `change(number, parameter, key, tensor)` for each tensor of a parameter's state."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    mapped = {
        number: {
            key: change(number, parameters[number], key, value) if isinstance(value, Tensor) else value
            for key, value in parts.items()
        }
        for number, parts in state["state"].items()
    }
    return {**state, "state": mapped}


def full_optimizer_state_dict(
    optimizer: torch.optim.Optimizer,
    module: nn.Module | None = None,
    *,
    cpu: bool = False,
    only_on_rank_0: bool = False,
) -> dict[str, Any]:
    """What `optimizer.state_dict()` gives, with full plain tensors in memory of their own: a plain optimizer loads it by
    `load_state_dict`, any other by `load_full_optimizer_state_dict`.

    `module`: then groups also have the parameters' names, as `param_names`, and loading compares them. Other options as
    for full_state_dict. COLLECTIVE: all ranks of the meshes.
    """
    filling = _Filling(cpu, only_on_rank_0)
    state = _mapped(optimizer, optimizer.state_dict(), lambda number, p, key, value: filling.full(value))
    names = _names(optimizer, module, "full_optimizer_state_dict")
    groups = []
    for group, named in zip(state["param_groups"], names, strict=True):
        entries = {key: filling.full(value) if isinstance(value, Tensor) else value for key, value in group.items()}
        groups.append(entries if named is None else {**entries, "param_names": named})
    # Parameters without a state yet say who keeps what, too.
    for group in optimizer.param_groups:
        for p in group["params"]:
            if only_on_rank_0 and _C.has_layout(p):
                filling.keeps = filling.keeps and 0 in _C.world_of(p).hosted()
    return {**state, "param_groups": groups} if filling.keeps else {}


def _names(optimizer: torch.optim.Optimizer, module: nn.Module | None, where: str) -> list[list[str] | None]:
    """The parameters' names by group: as the optimizer has them, or the module."""
    known = {} if module is None else {p: name for name, p in module.named_parameters()}
    out: list[list[str] | None] = []
    for g, group in enumerate(optimizer.param_groups):
        named = group.get("param_names")
        if named is None and module is not None:
            for i, p in enumerate(group["params"]):
                if p not in known:
                    raise ValueError(
                        f"[{where}] parameter {i} of group {g}, {_C.describe(p)}, is none of the module's; pass the "
                        "module that the optimizer trains"
                    )
            named = [known[p] for p in group["params"]]
        out.append(named)
    return out


def load_full_optimizer_state_dict(
    optimizer: torch.optim.Optimizer, state: Mapping[str, Any], module: nn.Module | None = None
) -> None:
    """Gives an optimizer a full state: of `full_optimizer_state_dict`, or of a plain optimizer's `state_dict()`. Tensors
    are laid out as their parameters are.

    ValueError that names everything that does not fit, before anything is changed: groups of other lengths, states of
    other sizes, and, where both have names (see `module` there), other parameters. Communicates nothing.
    """
    where = "load_full_optimizer_state_dict"
    given, ours = state["param_groups"], optimizer.param_groups
    faults = []
    if len(given) != len(ours):
        faults.append(f"it has {len(given)} groups of parameters, where {len(ours)} are due")
    names = _names(optimizer, module, where)
    for g, (theirs, mine, named) in enumerate(zip(given, ours, names)):
        if len(theirs["params"]) != len(mine["params"]):
            faults.append(
                f"group {g} has {len(theirs['params'])} parameters, where {len(mine['params'])} are due"
            )
        elif named is not None and theirs.get("param_names", named) != named:
            i = next(i for i, name in enumerate(named) if theirs["param_names"][i] != name)
            faults.append(f"parameter {i} of group {g} is {theirs['param_names'][i]!r}, where {named[i]!r} is due")
    _refuse(where, [], [], faults)

    def fits(value: Tensor, p: Tensor) -> bool:
        # A number, as the parameter, or reduced along some dimensions, as factored states are.
        return value.dim() == 0 or (
            value.dim() == p.dim() and all(v in (1, s) for v, s in zip(value.shape, p.shape))
        )

    def check(number: int, p: Tensor, key: str, value: Tensor) -> Tensor:
        if _C.has_layout(value):
            faults.append(f"{key!r} of parameter {number} is {_C.describe(value)}, where a plain one is due")
        elif not fits(value, p):
            faults.append(
                f"{key!r} of parameter {number} has sizes {tuple(value.shape)}, where {tuple(p.shape)} are due"
            )
        return value

    def lay_out(number: int, p: Tensor, key: str, value: Tensor) -> Tensor:
        # Counts of steps and the like are plain for any parameter.
        if not _C.has_layout(p) or key == "step" or value.dim() < p.dim():
            return value.clone()
        layout = _C.layout_of(p) if value.shape == p.shape else _C.Layout.replicated(_C.layout_of(p).mesh())
        return _C.distribute(value.detach().to(p.device), layout, _C.world_of(p))

    _mapped(optimizer, state, check)
    _refuse(where, [], [], faults)
    optimizer.load_state_dict(_mapped(optimizer, state, lay_out))
