"""Distributed parameters for modules that were written for one device."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping

from torch import Tensor, nn

from . import _C
from ._tensor import LayoutLike, to_layout
from ._tensor_parallel import place_by_plan, plan_layouts
from ._world import MeshLike, to_mesh
from ._world import world as default_world


def _layout_for(
    names: list[str], tensor: Tensor, mesh: _C.Mesh, layouts: Mapping[str, LayoutLike]
) -> _C.Layout:
    """The layout of the first pattern that fits one of the names, else R on every axis."""
    for pattern, layout in layouts.items():
        if fnmatch.filter(names, pattern):
            return to_layout(layout, mesh, tensor.dim())
    return _C.Layout.replicated(mesh)


def _distributed(tensor: Tensor, layout: _C.Layout, world: _C.World) -> Tensor:
    if tensor.is_meta:
        return _C.empty(list(tensor.shape), layout, world, tensor.dtype)
    return _C.distribute(tensor.detach(), layout, world)


def place(
    module: nn.Module,
    mesh: _C.Mesh,
    layouts: Mapping[str, LayoutLike] | _C.TensorParallelPlan,
    world: _C.World | None,
    stored: Callable[[str, Tensor, _C.Layout], _C.Layout],
    where: str,
) -> nn.Module:
    """Makes what is plain in a module distributed, in the layout that `stored` makes of the one that the patterns
    give it. `where` begins messages."""
    ranks = world or default_world()
    if isinstance(layouts, _C.TensorParallelPlan):
        plan, layouts = layouts, plan_layouts(module, layouts, mesh)
        place_by_plan(module, plan)
    names: dict[int, list[str]] = {}  # by identity, so that what is shared stays shared
    for named in (module.named_parameters, module.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            names.setdefault(id(tensor), []).append(name)
    every = sum(names.values(), [])
    for pattern in layouts:
        if not fnmatch.filter(every, pattern):
            raise ValueError(
                f"[{where}] {pattern!r} fits no parameter or buffer; there are {', '.join(every)}"
            )
    made: dict[int, Tensor] = {}
    unset = []  # modules whose values do not exist yet
    for part in module.modules():
        for table in (part._parameters, part._buffers):
            for key, old in table.items():
                if old is None or _C.has_layout(old):
                    continue
                if id(old) not in made:
                    layout = _layout_for(names[id(old)], old, mesh, layouts)
                    new = _distributed(old, stored(names[id(old)][0], old, layout), ranks)
                    made[id(old)] = type(old)(new, old.requires_grad) if table is part._parameters else new
                if old.is_meta and part not in unset:
                    unset.append(part)
                table[key] = made[id(old)]
    for part in unset:
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    return module


def parallelize(
    module: nn.Module,
    mesh: MeshLike,
    layouts: Mapping[str, LayoutLike] | _C.TensorParallelPlan,
    *,
    world: _C.World | None = None,
) -> nn.Module:
    """Makes all parameters and buffers of a module distributed, in place, and returns the module.

    `layouts` maps patterns of names, such as `layers.*.weight`, to layouts. The first that fits counts; what
    none fits is replicated. A pattern that fits nothing is an error. With a plan of tensor parallelism in their
    place, hooks also place what enters and leaves the modules that it names. Values must be the same on all ranks. A
    parameter that is shared by several modules stays shared. For a module on torch.device("meta") no values
    exist: pieces are allocated, and then each module's reset_parameters() is called, if it has one.
    Communicates nothing.
    """
    return place(module, to_mesh(mesh), layouts, world, lambda name, tensor, layout: layout, "parallelize")
