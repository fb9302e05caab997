"""Whether ranks that should hold the same do: parameters and the states of their optimizer, of distributed, DTensor and plain models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from . import _C, _world
from ._dtensor import as_ours

Checked = Tensor | torch.nn.Module | Mapping[str, Tensor]


def assert_replicas(tensors: Checked, optimizer: torch.optim.Optimizer | None = None, name: str = "", *, buffers: bool = False) -> None:
    """Checks that ranks which should hold the same values do; a WorldError names the tensor, the rank that differs from most, and the first element.

    `tensors`: a module, tensors by name, or one tensor, whose name may be given; `optimizer`: its states too. What must be the same follows from the
    layout: distributed tensors and DTensors along axes on which they are R. Plain tensors, as of a model in DistributedDataParallel or `replicate`, on
    all ranks. Buffers are left out if not asked for, as ranks may have their own. Sends a few bytes, and more only where something differs.
    COLLECTIVE: all ranks.
    """
    if isinstance(optimizer, str):
        raise TypeError(f"[assert_replicas] the second argument is an optimizer, not {optimizer!r}; write name={optimizer!r}")
    if isinstance(tensors, torch.nn.Module):
        named = [(n, p) for n, p in tensors.named_parameters()] + [(n, b) for n, b in tensors.named_buffers() if buffers]
    elif isinstance(tensors, Tensor):
        named = [(name, tensors)]
    else:
        named = list(tensors.items())
    if optimizer is not None:
        named += _states(optimizer, {id(p): n for n, p in named})
    _C.assert_replicas([(n, laid_out) for n, t in named if (laid_out := _laid_out(n, t)) is not None])


def watch_replicas(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, every: int = 100, buffers: bool = False
) -> torch.utils.hooks.RemovableHandle:
    """Calls assert_replicas(model, optimizer) after each `every`-th step of the optimizer; `remove()` of what it returns ends that.

    COLLECTIVE: all ranks, whose steps are the same in number.
    """
    if every < 1:
        raise ValueError(f"[watch_replicas] every must be at least 1, not {every}")
    steps = 0

    def after_step(*_) -> None:
        nonlocal steps
        steps += 1
        if steps % every == 0:
            assert_replicas(model, optimizer, buffers=buffers)

    return optimizer.register_step_post_hook(after_step)


def _states(optimizer: torch.optim.Optimizer, names: dict[int, str]) -> Iterator[tuple[str, Tensor]]:
    for g, group in enumerate(optimizer.param_groups):
        for i, parameter in enumerate(group["params"]):
            of = names.get(id(parameter), f"parameter {i} of group {g}")
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    yield f"{key} of {of}", value


def _laid_out(name: str, tensor: Tensor) -> Tensor | None:
    """The tensor as a distributed one; None for a plain one of which there is only one."""
    tensor = as_ours(tensor.detach())
    if _C.has_layout(tensor):
        return tensor
    world = _world.world()
    if world.in_lockstep() or world.size() == 1:
        return None
    mesh = _C.Mesh({"rank": world.size()})
    return _C.from_local(tensor.to(world.device()), _C.Layout.replicated(mesh), world, list(tensor.shape))
