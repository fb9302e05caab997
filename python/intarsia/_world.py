"""The world and the mesh that functions use when none is given."""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.distributed

from . import _C, _phase

MeshLike = _C.Mesh | str | Mapping[str, int] | Sequence[tuple[str, int]]

_world: _C.World | None = None
_mesh: _C.Mesh | None = None


def connect(**options) -> _C.World:
    """Makes the default world of this process, and returns it.

    Where torch.distributed is initialised, its default group is adopted; else the processes meet as their
    launcher says. Options are those of World.connect or World.adopt: device, timeout in seconds,
    topology (a file that `intarsia calibrate` wrote), ...
    COLLECTIVE: all processes of the job.
    """
    global _world
    if _world is not None and not _world.closed():
        raise ValueError("[connect] this process has a default world already; close() it first")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        _world = _C.World.adopt(torch.distributed.group.WORLD.group_name, **options)
    else:
        _world = _C.World.connect(**options)
    if _world.size() > 1:
        _phase.install()
    return _world


def init(mesh: MeshLike | None = None, **options) -> _C.Mesh:
    """Connects, if that is not done, and sets the default mesh: by default one axis `x` over all ranks."""
    global _mesh
    ranks = world(**options)
    chosen = _C.Mesh({"x": ranks.size()}) if mesh is None else to_mesh(mesh)
    if chosen.highest() >= ranks.size():
        raise ValueError(
            f"[init] {chosen} holds rank {chosen.highest()}, but the world has {ranks.size()} ranks"
        )
    _mesh = chosen
    return chosen


def world(**options) -> _C.World:
    """The default world; connects on first use."""
    if _world is None or _world.closed():
        return connect(**options)
    if options:
        raise ValueError("[world] this process is connected already; options come too late")
    return _world


def connected() -> _C.World | None:
    """The default world, if this process has one."""
    return None if _world is None or _world.closed() else _world


def mesh() -> _C.Mesh:
    """The default mesh that init() has set."""
    if _mesh is None:
        raise ValueError("[mesh] there is no default mesh; pass mesh=, or call init(mesh) first")
    return _mesh


def close() -> None:
    """Closes the default world and forgets the default mesh. Runs at exit by itself."""
    global _world, _mesh
    closing, _world, _mesh = _world, None, None
    if closing is not None:
        closing.close()


@contextlib.contextmanager
def lockstep(mesh: MeshLike, *, device: torch.device | None = None) -> Iterator[_C.World]:
    """One process hosts every rank of a mesh, and the program runs once: `with lockstep("[dp=4,tp=2]"): ...`

    Inside, the default world and mesh are these; afterwards the former ones are back, and the world of the
    block is closed. For code that does not branch on its rank; blocks may stand in each other.
    """
    chosen = to_mesh(mesh)
    with using(_C.lockstep_world(chosen.highest() + 1, device), chosen) as ranks:
        yield ranks


@contextlib.contextmanager
def as_default(ranks: _C.World, mesh: _C.Mesh) -> Iterator[_C.World]:
    """A block in which the default world and mesh are these."""
    global _world, _mesh
    before = (_world, _mesh)
    _world, _mesh = ranks, mesh
    try:
        yield ranks
    finally:
        _world, _mesh = before


@contextlib.contextmanager
def using(ranks: _C.World, mesh: _C.Mesh) -> Iterator[_C.World]:
    """The same, and the world is closed at the block's end."""
    try:
        with as_default(ranks, mesh):
            yield ranks
    finally:
        ranks.close()


def to_mesh(given: MeshLike) -> _C.Mesh:
    return given if isinstance(given, _C.Mesh) else _C.Mesh(given)


# A process that exits with open Gloo groups aborts.
atexit.register(close)
