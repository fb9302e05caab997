"""The C++ functions, with texts for layouts and with defaults for mesh and world.

Wherever a layout is wanted, a Layout, its text with the mesh (`[dp=2,tp=4] S(0),R`) or without
(`S(0),R`) will do. Without one, the mesh is that of the tensor at hand, or `mesh`, or the default.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

import torch
from torch import Tensor

from . import _C
from ._world import MeshLike, to_mesh
from ._world import mesh as default_mesh
from ._world import world as default_world

LayoutLike = _C.Layout | str
Scalar = int | float | complex | bool


def to_layout(given: LayoutLike, mesh: MeshLike | None = None, dims: int | None = None) -> _C.Layout:
    """A layout from what stands for one; `dims` lets dimensions count from the end: `S(-1)`."""
    if isinstance(given, _C.Layout):
        return given
    if given.lstrip().startswith("["):
        return _C.Layout.parse(given)
    return _C.Layout.parse(given, default_mesh() if mesh is None else to_mesh(mesh), dims=dims)


def _beside(given: LayoutLike | None, tensor: Tensor) -> _C.Layout | None:
    """A layout on the mesh of a tensor."""
    if given is None or isinstance(given, _C.Layout):
        return given
    return to_layout(given, _C.layout_of(tensor).mesh(), tensor.dim())


def _layouts(
    layout: LayoutLike, mesh: MeshLike | None, grad_layout: LayoutLike | None, dims: int | None
) -> tuple[_C.Layout, _C.Layout | None]:
    """A layout, and that of its gradient on the same mesh."""
    chosen = to_layout(layout, mesh, dims)
    return chosen, None if grad_layout is None else to_layout(grad_layout, chosen.mesh(), dims)


def _sizes(sizes: int | Sequence[int]) -> list[int]:
    return [sizes] if isinstance(sizes, int) else list(sizes)


# ---- distributing, gathering, moving -----------------------------------------------------------


def distribute(
    full: Tensor, layout: LayoutLike, *, mesh: MeshLike | None = None, world: _C.World | None = None
) -> Tensor:
    """A full tensor in this layout: each rank keeps its piece. REQUIRES: the tensor is the same on all ranks.
    Communicates nothing."""
    return _C.distribute(full, to_layout(layout, mesh, full.dim()), world or default_world())


def from_local(
    piece: Tensor,
    layout: LayoutLike,
    *,
    mesh: MeshLike | None = None,
    world: _C.World | None = None,
    shape: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    grad_layout: LayoutLike | None = None,
) -> Tensor:
    """Takes a local tensor as this rank's piece, without copying. `shape`: the global sizes, if uneven;
    `strides`: those of the full tensor, if not row-major."""
    chosen, grad = _layouts(layout, mesh, grad_layout, piece.dim())
    return _C.from_local(
        piece, chosen, world or default_world(), shape and list(shape), grad, strides and list(strides)
    )


def from_locals(
    pieces: Sequence[Tensor],
    layout: LayoutLike,
    *,
    mesh: MeshLike | None = None,
    world: _C.World | None = None,
    shape: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    grad_layout: LayoutLike | None = None,
) -> Tensor:
    """The same for the pieces of all ranks that this process hosts, in their order: for lockstep."""
    chosen, grad = _layouts(layout, mesh, grad_layout, pieces[0].dim() if pieces else None)
    return _C.from_locals(
        list(pieces), chosen, world or default_world(), shape and list(shape), grad, strides and list(strides)
    )


def local(tensor: Tensor, grad_layout: LayoutLike | None = None) -> Tensor:
    """This rank's piece, sharing memory. `grad_layout`: the layout of its gradient; needed where some axis
    does not shard the tensor and gradients are wanted."""
    return _C.local(tensor, _beside(grad_layout, tensor))


def locals(tensor: Tensor, grad_layout: LayoutLike | None = None) -> list[Tensor]:
    """The pieces of all ranks that this process hosts, in their order: for lockstep."""
    return _C.locals(tensor, _beside(grad_layout, tensor))


def full(tensor: Tensor, grad_layout: LayoutLike | None = None) -> Tensor:
    """The full tensor on every rank, plain. COLLECTIVE: all ranks of the mesh."""
    return _C.full(tensor, _beside(grad_layout, tensor))


def redistribute(tensor: Tensor, layout: LayoutLike) -> Tensor:
    """The same values in another layout on the same mesh. COLLECTIVE: all ranks of the mesh."""
    return _C.redistribute(tensor, _beside(layout, tensor))


def start_redistribute(tensor: Tensor, layout: LayoutLike, *, source_stays: bool = False) -> _C.MovingTensor:
    """Begins a redistribution of the tensor as it is now; wait() gives the result. Outside autograd.

    `source_stays`: nothing is written to the tensor before wait() has returned, so that no copy of it is needed.
    COLLECTIVE: all ranks of the mesh.
    """
    return _C.start_redistribute(tensor, _beside(layout, tensor), source_stays)


def redistribute_together(tensors: Sequence[Tensor], layouts: Sequence[LayoutLike]) -> list[Tensor]:
    """Many tensors in new layouts, with one collective where their steps go over the same ranks. Outside
    autograd. COLLECTIVE: all ranks of the meshes."""
    return _C.redistribute_together(
        list(tensors), [_beside(layout, tensor) for tensor, layout in zip(tensors, layouts, strict=True)]
    )


@overload
def redistribute_between(tensor: Tensor, layout: LayoutLike, *, mesh: MeshLike | None = None) -> Tensor: ...
@overload
def redistribute_between(
    tensor: Sequence[Tensor], layout: Sequence[LayoutLike], *, mesh: MeshLike | None = None
) -> list[Tensor]: ...
def redistribute_between(tensor, layout, *, mesh=None):
    """The same values on another mesh of the world; only what ranks do not hold already is sent. For lists:
    all tensors of a dtype in one exchange. Outside autograd. COLLECTIVE: all ranks of both meshes."""
    if isinstance(tensor, (list, tuple)):
        layouts = [to_layout(one, mesh, t.dim()) for t, one in zip(tensor, layout, strict=True)]
        return _C.redistribute_between(list(tensor), layouts)
    return _C.redistribute_between(tensor, to_layout(layout, mesh, tensor.dim()))


def explain(tensor: Tensor, layout: LayoutLike) -> str:
    """How a tensor would get to another layout: steps, bytes, time, memory. Sends nothing."""
    return _C.explain(tensor, _beside(layout, tensor))


def local_region(
    body: Callable[..., Tensor | Sequence[Tensor]],
    inputs: Sequence[Tensor],
    in_: Sequence[LayoutLike],
    out: LayoutLike | Sequence[LayoutLike],
    *,
    grads: Sequence[LayoutLike | None] = (),
    shapes: Sequence[Sequence[int] | None] = (),
) -> Tensor | list[Tensor]:
    """Code on plain local tensors between distributed ones.

    Inputs are redistributed to the layouts `in_`. `body` gets this rank's pieces of them, one argument each, and
    returns this rank's pieces of the outputs, which are laid out as `out`. Where `out` is one layout, `body` returns
    one tensor, and so does this. `grads`: the layouts in which gradients of the inputs leave `body`; may be None for
    inputs that every axis shards. `shapes`: the global sizes of outputs that are sharded unevenly.
    """
    if not inputs:
        raise ValueError("[local_region] takes at least one input, the first of which is distributed")
    mesh = _C.layout_of(inputs[0]).mesh()
    single = isinstance(out, (_C.Layout, str))
    results = _C.local_region(
        (lambda *pieces: [body(*pieces)]) if single else body,
        list(inputs),
        [to_layout(given, mesh, tensor.dim()) for given, tensor in zip(in_, inputs, strict=True)],
        [to_layout(given, mesh) for given in ([out] if single else out)],
        [None if given is None else to_layout(given, mesh, t.dim()) for given, t in zip(grads, inputs)],
        [None if shape is None else list(shape) for shape in shapes],
    )
    return results[0] if single else results


# ---- factories: each rank makes its piece, nothing is sent; random values are the same in every layout ----


def _factory(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def factory(
        sizes: int | Sequence[int],
        layout: LayoutLike,
        *,
        mesh: MeshLike | None = None,
        world: _C.World | None = None,
        dtype: torch.dtype | None = None,
        requires_grad: bool = False,
    ) -> Tensor:
        size = _sizes(sizes)
        chosen = to_layout(layout, mesh, len(size))
        return make(size, chosen, world or default_world(), dtype, requires_grad)

    factory.__name__ = factory.__qualname__ = make.__name__
    factory.__doc__ = f"A distributed tensor like torch.{make.__name__}, of which each rank makes its piece."
    return factory


zeros = _factory(_C.zeros)
ones = _factory(_C.ones)
empty = _factory(_C.empty)
rand = _factory(_C.rand)
randn = _factory(_C.randn)


def full_of(sizes: int | Sequence[int], value: Scalar, layout: LayoutLike, **options) -> Tensor:
    """A distributed tensor like torch.full. Options are those of zeros()."""
    return _factory(lambda size, *rest: _C.full_of(size, value, *rest))(sizes, layout, **options)


def randint(
    low: int, high: int, sizes: int | Sequence[int], layout: LayoutLike, **options
) -> Tensor:
    """A distributed tensor like torch.randint. Options are those of zeros()."""
    return _factory(lambda size, *rest: _C.randint(low, high, size, *rest))(sizes, layout, **options)


def arange(start: Scalar, end: Scalar, step: Scalar, layout: LayoutLike, **options) -> Tensor:
    """A distributed tensor like torch.arange. Options are those of zeros()."""
    return _factory(lambda _, *rest: _C.arange(start, end, step, *rest))(0, layout, **options)


def randperm(n: int, layout: LayoutLike, **options) -> Tensor:
    """A distributed tensor like torch.randperm. Options are those of zeros()."""
    return _factory(lambda size, *rest: _C.randperm(n, *rest))(n, layout, **options)


# ---- plans and pieces, without tensors -----------------------------------------------------------


def make_plan(
    from_: LayoutLike,
    to: LayoutLike,
    shape: Sequence[int],
    *,
    mesh: MeshLike | None = None,
    element_size: int = 4,
    topology: _C.Topology | None = None,
    peak_bytes: int | None = None,
) -> _C.Plan | None:
    """The cheapest steps from one layout of a tensor to another, by a topology (Topology() where none is
    given); None where there is no exact way. peak_bytes: no rank may hold more than this at any time."""
    start = to_layout(from_, mesh, len(shape))
    target = to_layout(to, start.mesh(), len(shape))
    return _C.make_plan(start, target, list(shape), element_size, topology, peak_bytes)


def boxes(
    layout: LayoutLike, shape: Sequence[int], at: Sequence[int], *, mesh: MeshLike | None = None
) -> _C.Boxes:
    """What the rank at a coordinate holds of a tensor with this shape."""
    return _C.boxes(to_layout(layout, mesh, len(shape)), list(shape), list(at))


def local_shape(
    layout: LayoutLike, shape: Sequence[int], at: Sequence[int], *, mesh: MeshLike | None = None
) -> tuple[int, ...]:
    """The sizes of the piece at a coordinate."""
    return _C.local_shape(to_layout(layout, mesh, len(shape)), list(shape), list(at))
