"""Distributed parameters for modules that were written for one device."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

from torch import Tensor, nn

from . import _C
from ._tensor import LayoutLike, to_layout
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


def parallelize(
    module: nn.Module,
    mesh: MeshLike,
    layouts: Mapping[str, LayoutLike],
    *,
    world: _C.World | None = None,
) -> nn.Module:
    """Makes all parameters and buffers of a module distributed, in place, and returns the module.

    `layouts` maps patterns of names, such as `layers.*.weight`, to layouts. The first that fits counts; what
    none fits is replicated. A pattern that fits nothing is an error. Values must be the same on all ranks. A
    parameter that is shared by several modules stays shared. For a module on torch.device("meta") no values
    exist: pieces are allocated, and then each module's reset_parameters() is called, if it has one.
    Communicates nothing.
    """
    on, ranks = to_mesh(mesh), world or default_world()
    names: dict[int, list[str]] = {}  # by identity, so that what is shared stays shared
    for named in (module.named_parameters, module.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            names.setdefault(id(tensor), []).append(name)
    every = sum(names.values(), [])
    for pattern in layouts:
        if not fnmatch.filter(every, pattern):
            raise ValueError(
                f"[parallelize] {pattern!r} fits no parameter or buffer; there are {', '.join(every)}"
            )
    made: dict[int, Tensor] = {}
    unset = []  # modules whose values do not exist yet
    for part in module.modules():
        for table in (part._parameters, part._buffers):
            for key, old in table.items():
                if old is None or _C.has_layout(old):
                    continue
                if id(old) not in made:
                    new = _distributed(old, _layout_for(names[id(old)], old, on, layouts), ranks)
                    made[id(old)] = type(old)(new, old.requires_grad) if table is part._parameters else new
                if old.is_meta and part not in unset:
                    unset.append(part)
                table[key] = made[id(old)]
    for part in unset:
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    return module
