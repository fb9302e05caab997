"""Data parallel for plain modules: every rank holds the whole model, and gradients are averaged."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch

from . import _C
from ._world import MeshLike, to_mesh
from ._world import mesh as default_mesh
from ._world import world as default_world

# A handle lives as long as its module, so that one may leave it lying about.
_replicas: weakref.WeakKeyDictionary[torch.nn.Module, Replica] = weakref.WeakKeyDictionary()


class Replica:
    """What replicate() returns. It lives as long as the module, or until remove()."""

    def __init__(self, core: _C.Replica, module: torch.nn.Module):
        self._core: _C.Replica | None = core
        self._module = weakref.ref(module)

    def _here(self) -> _C.Replica:
        if self._core is None:
            raise ValueError("[Replica] it was removed; call replicate() again")
        return self._core

    def no_sync(self) -> _C.LocalScope:
        """`with replica.no_sync(): loss.backward()` sends nothing; gradients add up on this rank, and the next
        backward outside averages the sums."""
        return self._here().no_sync()

    def finish(self) -> None:
        """Takes part in the round of a step in which this rank's loss used no parameter: in place of backward(),
        never besides it. COLLECTIVE: all ranks of the group, each by its backward() or by this."""
        self._here().finish()

    def counters(self) -> _C.ReplicaCounters:
        """What it has done on this rank."""
        return self._here().counters()

    def buckets(self) -> list[list[str]]:
        """The names of the parameters in each bucket, in the order of sending."""
        return self._here().buckets()

    def remove(self) -> None:
        """Removes the hooks; gradients are local from now on."""
        self._core = None
        module = self._module()
        if module is not None:
            _replicas.pop(module, None)


def replicate(
    module: torch.nn.Module,
    *,
    mesh: MeshLike | None = None,
    axis: str | Sequence[str] | None = None,
    world: _C.World | None = None,
    bucket_bytes: int = 25 * 1024 * 1024,
    first_bucket_bytes: int = 1024 * 1024,
    reduce_dtype: torch.dtype | None = None,
    buffers: str = "from_first",
) -> Replica:
    """From now on, the ranks along an axis (or several) of the mesh average their gradients of a plain module.

    All ranks get the parameters and buffers of the first. The module itself stays as it is: `loss.backward()` ends
    when the gradients are averages. Axis: by default all of the mesh. Buffers are taken `from_first`, `averaged`, or
    `own`. COLLECTIVE: all ranks of the group; likewise each backward() outside of no_sync().
    """
    if module in _replicas:
        raise ValueError("[replicate] the module is replicated already; call remove() on its Replica first")
    if buffers not in _C.BufferSync.__members__:
        raise ValueError(
            f"[replicate] buffers are kept from_first, averaged or own, not {buffers!r}"
        )
    ranks = world or default_world()
    over = default_mesh() if mesh is None else to_mesh(mesh)
    axes = over.names() if axis is None else [axis] if isinstance(axis, str) else axis
    core = _C.replicate(
        list(module.named_parameters()),
        list(module.named_buffers()),
        ranks,
        over,
        list(axes),
        bucket_bytes,
        first_bucket_bytes,
        reduce_dtype,
        _C.BufferSync[buffers],
    )
    _replicas[module] = replica = Replica(core, module)
    return replica
