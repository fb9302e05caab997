"""Modes, bill, budget and cache, with the default world."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from . import _C
from ._world import world as default_world

Mode = _C.Communication | str


def _mode(mode: Mode) -> _C.Communication:
    if not isinstance(mode, str):
        return mode
    if mode not in _C.Communication.__members__:
        known = ", ".join(_C.Communication.__members__)
        raise ValueError(f"[communication] {mode!r} is no mode; there are {known}")
    return _C.Communication[mode]


def communication(world: _C.World | None = None) -> _C.Communication:
    """The mode of a world: what happens when an op needs a tensor in another layout."""
    return _C.communication(world or default_world())


def set_communication(mode: Mode, world: _C.World | None = None) -> None:
    _C.set_communication(world or default_world(), _mode(mode))


@contextlib.contextmanager
def CommunicationScope(mode: Mode, world: _C.World | None = None) -> Iterator[None]:  # noqa: N802
    """Sets the mode until the end of the `with` block: "automatic", "warn" or "explicit_only"."""
    of = world or default_world()
    before = _C.communication(of)
    _C.set_communication(of, _mode(mode))
    try:
        yield
    finally:
        _C.set_communication(of, before)


def plain_tensors(world: _C.World | None = None) -> _C.PlainTensors:
    """What is done about plain tensors beside distributed ones."""
    return _C.plain_tensors(world or default_world())


def set_plain_tensors(mode: _C.PlainTensors | str, world: _C.World | None = None) -> None:
    """ "recorded" (the default), "checked" or "refused"."""
    _C.set_plain_tensors(world or default_world(), _C.PlainTensors[mode] if isinstance(mode, str) else mode)


def check_plain_tensors(world: _C.World | None = None) -> None:
    """Names the first plain tensor that differed between ranks. COLLECTIVE: all ranks of the world."""
    _C.check_plain_tensors(world or default_world())


def bill(world: _C.World | None = None) -> _C.Bill:
    """What was sent since the bill was last cleared."""
    return _C.bill(world or default_world())


def clear_bill(world: _C.World | None = None) -> None:
    _C.clear_bill(world or default_world())


class Budget:
    """Counts what is sent from its making on: `with Budget("1 P->R"): ...`, or `b.expect("1 P->R")`."""

    def __init__(self, transitions: str | None = None, world: _C.World | None = None):
        self._world = world or default_world()
        self._transitions = transitions
        self._count = _C.Budget(self._world)

    def spent(self) -> str:
        """What was sent so far, such as `2 P->R, 1 S->R`."""
        return self._count.spent()

    def expect(self, transitions: str) -> None:
        """ValueError when that is not what was sent; "" means nothing."""
        self._count.expect(transitions)

    def __enter__(self) -> Budget:
        self._count = _C.Budget(self._world)
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None and self._transitions is not None:
            self.expect(self._transitions)


def cache_counters(world: _C.World | None = None) -> _C.CacheCounters:
    """The cache of decisions."""
    return _C.cache_counters(world or default_world())


def clear_cache(world: _C.World | None = None) -> None:
    _C.clear_cache(world or default_world())


def set_cache_limit(entries: int, world: _C.World | None = None) -> None:
    _C.set_cache_limit(world or default_world(), entries)
