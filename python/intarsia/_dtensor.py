"""To and from PyTorch's DTensor, without copying. torch.distributed.tensor is imported on first use."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from . import _C
from ._world import world as default_world

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

# torch's names of reductions, and ours.
REDUCTIONS = {
    "sum": _C.Reduction.sum,
    "avg": _C.Reduction.avg,
    "min": _C.Reduction.min,
    "max": _C.Reduction.max,
    "product": _C.Reduction.product,
    "band": _C.Reduction.bit_and,
    "bor": _C.Reduction.bit_or,
    "bxor": _C.Reduction.bit_xor,
}
TORCH_NAMES = {ours: theirs for theirs, ours in REDUCTIONS.items()}


def mesh_of(device_mesh: DeviceMesh) -> _C.Mesh:
    """The same ranks under the same names; axes without a name are d0, d1, ..."""
    sizes = device_mesh.mesh.shape
    names = device_mesh.mesh_dim_names or [f"d{i}" for i in range(len(sizes))]
    return _C.Mesh.of_ranks(list(zip(names, sizes)), device_mesh.mesh.flatten().tolist())


def _from_placement(placement) -> _C.Placement:
    from torch.distributed.tensor._ops._math_ops import _NormPartial
    from torch.distributed.tensor.placement_types import Partial, Replicate, Shard, _StridedShard

    if type(placement) is _StridedShard:
        return _C.Placement.strided_shard(placement.dim, placement.split_factor)
    if type(placement) is Shard:
        return _C.Placement.shard(placement.dim)
    if type(placement) is Replicate:
        return _C.Placement.replicate()
    if type(placement) is _NormPartial:
        return _C.Placement.partial_norm(placement.norm_type)
    if type(placement) is Partial and placement.reduce_op in REDUCTIONS:
        return _C.Placement.partial(REDUCTIONS[placement.reduce_op])
    raise NotImplementedError(f"[from_dtensor] the placement {placement} has no counterpart")


def _to_placement(placement: _C.Placement):
    from torch.distributed.tensor._ops._math_ops import _NormPartial
    from torch.distributed.tensor.placement_types import Partial, Replicate, Shard, _StridedShard

    if placement.is_strided():
        return _StridedShard(placement.dim(), split_factor=placement.split())
    if placement.is_shard():
        return Shard(placement.dim())
    if placement.is_replicate():
        return Replicate()
    if placement.reduction() == _C.Reduction.norm:
        return _NormPartial(placement.norm_order())
    return Partial(TORCH_NAMES[placement.reduction()])


def is_dtensor(tensor: Tensor) -> bool:
    """Asks for no import where there cannot be one."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def as_ours(tensor: Tensor) -> Tensor:
    """The tensor, or a DTensor as one of ours with the same memory."""
    return from_dtensor(tensor.detach()) if is_dtensor(tensor) else tensor


def layout_of_dtensor(dtensor: DTensor) -> _C.Layout:
    return _layout_of_spec(dtensor._spec)


def _layout_of_spec(spec) -> _C.Layout:
    """The layout that a DTensorSpec says: strided shards as orders or as data, or orders as such."""
    mesh, placements = mesh_of(spec.mesh), [_from_placement(p) for p in spec.placements]
    dims = len(spec.shape)
    if spec.use_strided_shard_as_shard_order and _C.order_of_strided(mesh, placements) is not None:
        return _C.Layout(mesh, placements, dims=dims, strided=_C.StridedMeans.order)
    order = [
        (entry.tensor_dim, [mesh.name(axis) for axis in entry.mesh_dims]) for entry in spec.shard_order or ()
    ]
    return _C.Layout(mesh, placements, dims=dims, order=order)


def from_dtensor(dtensor: DTensor, world: _C.World | None = None) -> Tensor:
    """A distributed tensor on the memory of a DTensor. Differentiable; communicates nothing.

    The world must have the ranks of torch.distributed, as one has that adopted its default group.
    """
    layout, local = _layout_of_spec(dtensor._spec), dtensor.to_local()
    return _C.from_local(
        local, layout, world or default_world(), list(dtensor.shape), None, list(dtensor.stride())
    )


def to_dtensor(tensor: Tensor, device_mesh: DeviceMesh) -> DTensor:
    """A DTensor on the memory of a distributed tensor. Differentiable; communicates nothing.

    `device_mesh` must have the same ranks and sizes as the tensor's mesh and, if it has names, the same.
    """
    from torch.distributed.tensor import DTensor

    layout, given = _C.layout_of(tensor), mesh_of(device_mesh)
    mesh = layout.mesh()
    if device_mesh.mesh_dim_names is None and given.axes() == mesh.axes():
        sizes = [(mesh.name(axis), given.size(axis)) for axis in range(given.axes())]
        given = _C.Mesh.of_ranks(sizes, device_mesh.mesh.flatten().tolist())
    if given != mesh:
        raise ValueError(f"[to_dtensor] the tensor is on {mesh}, but the device mesh is {given}")
    spelled = layout.strided_spelling()
    if spelled is None:
        raise NotImplementedError(f"[to_dtensor] DTensor has no placements for {layout}; redistribute first")
    for axis, placement in zip(mesh.names(), layout.placements()):
        if placement.is_partial():
            layout = layout.with_(axis, _C.Placement.replicate())  # that of the gradient
    return DTensor.from_local(
        _C.local(tensor, layout),
        device_mesh,
        [_to_placement(p) for p in spelled],
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )
