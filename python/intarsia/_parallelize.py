"""Distributed parameters for modules that were written for one device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from . import _C
from ._meta import set_values, unset_parts
from ._optim import keep_identity
from ._tensor import LayoutLike, to_layout
from ._tensor_parallel import place_by_plan, plan_layouts
from ._world import MeshLike, to_mesh
from ._world import world as default_world

Init = Callable[[nn.Module], object]


class Placing:
    """What parallelize and fully_shard do to a module. Making it looks at everything and changes nothing; `place` then
    makes what is plain in the module distributed."""

    def __init__(
        self,
        module: nn.Module,
        mesh: _C.Mesh,
        layouts: Mapping[str, LayoutLike] | _C.TensorParallelPlan,
        world: _C.World | None,
        init: Init | None,
        where: str,
    ):
        """`where` begins messages."""
        self._module, self._mesh, self._where = module, mesh, where
        self._world, self._init = world or default_world(), init
        self._plan = layouts if isinstance(layouts, _C.TensorParallelPlan) else None
        patterns = plan_layouts(module, layouts, mesh) if self._plan is not None else dict(layouts)
        named = self._plain_and_other()
        every = [name for names, _ in named for name in names]
        for pattern in patterns:
            if not any(_C.matches(name, pattern) for name in every):
                raise ValueError(
                    f"[{where}] {pattern!r} fits no parameter or buffer; there are {', '.join(every)}"
                )
        #: The layouts in use of what is plain, by name.
        self.used: dict[str, _C.Layout] = {
            names[0]: self._checked(names, tensor, patterns) for names, tensor in named if not _C.has_layout(tensor)
        }

    def _plain_and_other(self) -> list[tuple[list[str], Tensor]]:
        """All parameters and buffers, each with its names: what is shared stays shared."""
        found: dict[int, tuple[list[str], Tensor]] = {}
        for named in (self._module.named_parameters, self._module.named_buffers):
            for name, tensor in named(remove_duplicate=False):
                found.setdefault(id(tensor), ([], tensor))[0].append(name)
        return list(found.values())

    def _checked(self, names: list[str], tensor: Tensor, patterns: Mapping[str, LayoutLike]) -> _C.Layout:
        """The layout of the first pattern that fits one of the names, else R on every axis."""
        try:
            for pattern, given in patterns.items():
                if any(_C.matches(name, pattern) for name in names):
                    layout = to_layout(given, self._mesh, tensor.dim())
                    break
            else:
                layout = _C.Layout.replicated(self._mesh)
            _C.distribute(tensor.detach().to("meta"), layout, self._world)  # refuses what cannot be
        except (ValueError, NotImplementedError) as error:
            raise type(error)(f"[{self._where}] {names[0]!r}, {_C.describe(tensor)}: {error}") from None
        return layout

    def _distributed(self, name: str, old: Tensor, layout: _C.Layout) -> Tensor:
        if old.is_meta:
            return _C.empty(list(old.shape), layout, self._world, old.dtype)
        with _C.ModuleScope(f"{name!r} of {self._where}"):  # named so where ranks made different models
            return _C.distribute(old.detach(), layout, self._world)

    def place(self, stored: Callable[[str, _C.Layout], _C.Layout] = lambda name, layout: layout) -> None:
        """`stored` gives the layout in which a parameter of this name is kept."""
        unset = unset_parts(self._module)
        undo: list[Callable[[], object]] = []
        self._place_plain(stored, undo)
        try:
            set_values(self._module, unset, self._init, self._where)
        except BaseException:
            for put_back in reversed(undo):
                put_back()
            raise
        self._place_plain(stored, [])  # what was set by putting another tensor there
        if self._plan is not None:
            place_by_plan(self._module, self._plan)

    def _place_plain(
        self, stored: Callable[[str, _C.Layout], _C.Layout], undo: list[Callable[[], object]]
    ) -> None:
        """`undo`: is given what puts tensors without values back."""
        made: dict[int, Tensor] = {}
        originals = [(names, tensor) for names, tensor in self._plain_and_other() if not _C.has_layout(tensor)]
        for names, old in originals:
            layout = self.used.get(names[0], _C.Layout.replicated(self._mesh))
            if not isinstance(old, nn.Parameter):
                made[id(old)] = self._distributed(names[0], old, layout)
                continue
            was_meta = old.is_meta
            new = type(old)(self._distributed(names[0], old, stored(names[0], layout)), old.requires_grad)
            made[id(old)] = keep_identity(old, new, names[0])
            if was_meta and made[id(old)] is old:
                undo.append(functools.partial(torch._C._swap_tensor_impl, old, new))
        for part in self._module.modules():
            for table in (part._parameters, part._buffers):
                for key, old in list(table.items()):
                    if id(old) in made and made[id(old)] is not old:
                        if old.is_meta:
                            undo.append(functools.partial(setattr, part, key, old))
                        # Not in the table itself: recurrent modules have a list of their weights besides.
                        setattr(part, key, made[id(old)])


def parallelize(
    module: nn.Module,
    mesh: MeshLike,
    layouts: Mapping[str, LayoutLike] | _C.TensorParallelPlan,
    *,
    init: Init | None = None,
    world: _C.World | None = None,
) -> nn.Module:
    """Makes all parameters and buffers of a module distributed, in place, and returns the module.

    `layouts` maps patterns of names, such as `layers.*.weight`, to layouts. The first that fits counts; what
    none fits is replicated. A pattern that fits nothing is an error. With a plan of tensor parallelism in their
    place, hooks also place what enters and leaves the modules that it names. Values must be the same on all ranks. A
    parameter that is shared by several modules stays shared, and an optimizer that was made before goes on with it.
    Where it raises, nothing was changed.

    For a module on torch.device("meta") no values exist: pieces are allocated, and then set by each module's
    reset_parameters(), and by `_init_weights` where the model has it, as Hugging Face's have; then `init` is called
    with every module, as `module.apply(init)` does. Tensors that none of these sets are refused. Communicates nothing.
    """
    Placing(module, to_mesh(mesh), layouts, world, init, "parallelize").place()
    return module
