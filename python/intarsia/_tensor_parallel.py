"""Tensor parallelism by the names of modules: plans, and the hooks that place what flows between modules."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from . import _C
from ._C import (  # noqa: F401
    ModuleStyle,
    TensorParallelPlan,
    llama_plan,
    placed_input,
    placed_output,
    wanted_input,
    wanted_output,
)

PlacementLike = _C.Placement | str


def _placement(given: PlacementLike) -> _C.Placement:
    return _C.Placement.parse(given) if isinstance(given, str) else given


def _maybe(given: PlacementLike | None) -> _C.Placement | None:
    return None if given is None else _placement(given)


def column(
    *, input: PlacementLike | None = None, output: PlacementLike | None = None, heads: int = 0
) -> ModuleStyle:
    """A linear module whose outputs are sharded: weight S(0), bias S(0).

    `input`, `output`: placements along the axis of the tensors that enter and leave the module; None: left as they
    are. `heads`: how many attention heads the sharded dimension holds; the axis must divide them.
    """
    return _C.column(_maybe(input), _maybe(output), heads)


def row(
    *, input: PlacementLike | None = None, output: PlacementLike | None = None, heads: int = 0
) -> ModuleStyle:
    """A linear module whose inputs are sharded: weight S(1), bias R. Its output is partial, P(sum). Options are those of
    column()."""
    return _C.row(_maybe(input), _maybe(output), heads)


def vocabulary(*, input: PlacementLike | None = None, output: PlacementLike | None = None) -> ModuleStyle:
    """An embedding whose vocabulary is sharded: weight S(0). Its output is partial, P(sum)."""
    return _C.vocabulary(_maybe(input), _maybe(output))


def sequence(dim: int = 1) -> ModuleStyle:
    """A norm whose input is sharded along the sequence: parameters R, input S(dim)."""
    return _C.sequence(dim)


def prepare_input(placement: PlacementLike) -> ModuleStyle:
    """Any module, of which only the input is placed."""
    return _C.prepare_input(_placement(placement))


def prepare_output(placement: PlacementLike) -> ModuleStyle:
    """Any module, of which only the output is placed."""
    return _C.prepare_output(_placement(placement))


def placed(x: Tensor, axis: str, placement: PlacementLike) -> Tensor:
    """A tensor with another placement along one axis of its mesh; itself where it is plain.
    COLLECTIVE: all ranks of the mesh, unless nothing has to move."""
    return _C.placed(x, axis, _placement(placement))


def gathered_linears(x: Tensor, linears: Sequence[nn.Linear], axis: str, chunks: int = 0) -> list[Tensor]:
    """Linear layers of one input that is sharded along the sequence: each layer of `placed(x, axis, "R")`. Chunks of `x`
    are sent while others are multiplied. `chunks`: 1, all of it at once; 0, as many as take least time by the topology.
    COLLECTIVE: all ranks of the mesh."""
    return _C.gathered_linears(x, [(linear.weight, linear.bias) for linear in linears], axis, chunks)


def scattered_linear(x: Tensor, linear: nn.Linear, axis: str, dim: int, chunks: int = 0) -> Tensor:
    """A linear layer with a partial result, which is reduced so that each rank keeps a shard:
    `placed(linear(x), axis, S(dim))`. Chunks are sent while others are multiplied. `chunks`: as in gathered_linears.
    COLLECTIVE: all ranks of the mesh."""
    return _C.scattered_linear(x, (linear.weight, linear.bias), axis, dim, chunks)


def placed_linears(
    x: Tensor, plan: TensorParallelPlan, module: str, linears: Sequence[nn.Linear]
) -> list[Tensor]:
    """Linear layers of the input of the module of this name, placed as the plan says. Where that gathers, it is done
    in `plan.chunks` chunks. On plain tensors, just the layers."""
    return _C.placed_linears(x, plan, module, [(linear.weight, linear.bias) for linear in linears])


def placed_linear(x: Tensor, plan: TensorParallelPlan, module: str, linear: nn.Linear) -> Tensor:
    """A linear layer whose result is placed as the plan says for the output of the module of this name."""
    return _C.placed_linear(x, plan, module, (linear.weight, linear.bias))


def plan_layouts(module: nn.Module, plan: TensorParallelPlan, mesh: _C.Mesh) -> Mapping[str, str]:
    """The layouts that a plan gives to a module's parameters and buffers, by name."""
    modules = [name for name, _ in module.named_modules(remove_duplicate=False) if name]
    tensors = [
        (name, list(tensor.shape))
        for named in (module.named_parameters, module.named_buffers)
        for name, tensor in named(remove_duplicate=False)
    ]
    return dict(_C.layouts(plan, mesh, modules, tensors))


def _first_placed(values: Sequence[Any], axis: str, placement: _C.Placement) -> list[Any] | None:
    """The values with the first distributed tensor placed; None where there is none."""
    for at, value in enumerate(values):
        if isinstance(value, Tensor) and _C.has_layout(value):
            return [*values[:at], _C.placed(value, axis, placement), *values[at + 1 :]]
    return None


def _linear_by_plan(linear: nn.Linear, plan: TensorParallelPlan, name: str, x: Tensor) -> Tensor:
    """The forward of a linear module whose own input or output is sent in chunks."""
    if (wanted := _C.wanted_input(plan, name)) is None or not wanted.is_replicate():
        return placed_linear(placed_input(x, plan, name), plan, name, linear)
    return placed_output(placed_linears(x, plan, name, [linear])[0], plan, name)


def _travels_in_chunks(part: nn.Module, plan: TensorParallelPlan, name: str) -> bool:
    if plan.chunks == 1 or type(part).forward is not nn.Linear.forward:
        return False
    enters, leaves = _C.wanted_input(plan, name), _C.wanted_output(plan, name)
    return (enters is not None and enters.is_replicate()) or (leaves is not None and leaves.is_shard())


def place_by_plan(module: nn.Module, plan: TensorParallelPlan) -> None:
    """Adds hooks that place the first distributed tensor which enters or leaves a module that the plan names. Linear
    modules of a plan with chunks do it themselves."""

    def hook_before(wanted: _C.Placement):
        def place(_: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
            if (given := _first_placed(args, plan.axis, wanted)) is not None:
                return tuple(given), kwargs
            if (named := _first_placed(list(kwargs.values()), plan.axis, wanted)) is not None:
                return args, dict(zip(kwargs, named))
            return None

        return place

    def hook_after(wanted: _C.Placement):
        def place(_: nn.Module, __: tuple, output: Any) -> Any:
            if isinstance(output, Tensor):
                return _C.placed(output, plan.axis, wanted)
            given = _first_placed(output, plan.axis, wanted) if isinstance(output, (tuple, list)) else None
            return None if given is None else type(output)(given)

        return place

    for name, part in module.named_modules():
        if _travels_in_chunks(part, plan, name):
            part.forward = functools.partial(_linear_by_plan, part, plan, name)
            continue
        if (wanted := _C.wanted_input(plan, name)) is not None:
            part.register_forward_pre_hook(hook_before(wanted), with_kwargs=True)
        if (wanted := _C.wanted_output(plan, name)) is not None:
            part.register_forward_hook(hook_after(wanted))
