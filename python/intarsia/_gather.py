"""Python values of all ranks, for what is done now and then: over torch.distributed where a program has it, else over the default world."""

from __future__ import annotations

import pickle

import torch

from . import _C, _world


def here() -> tuple[int, int]:
    """Our rank, and how many processes there are."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    world = _world.connected()
    return (0, 1) if world is None or world.in_lockstep() else (world.rank(), world.size())


def gather(value: object) -> list:
    """Everybody's, by rank. COLLECTIVE: all ranks."""
    _, ranks = here()
    if ranks == 1:
        return [value]
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        out: list = [None] * ranks
        torch.distributed.all_gather_object(out, value)
        return out
    data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
    world = _world.world()
    mesh = _C.Mesh.parse(f"[all={ranks}]")

    def all_of(mine: torch.Tensor) -> torch.Tensor:
        return _C.full(_C.from_local(mine, _C.Layout.parse("S(0)", mesh), world))

    lengths = all_of(torch.tensor([data.numel()])).tolist()
    padded = torch.zeros(max(lengths), dtype=torch.uint8)
    padded[: data.numel()] = data
    rows = all_of(padded).view(ranks, -1)
    return [pickle.loads(_bytes_of(row[:n])) for row, n in zip(rows, lengths, strict=True)]


def _bytes_of(row: torch.Tensor) -> bytearray:
    out = bytearray(row.numel())
    torch.frombuffer(out, dtype=torch.uint8).copy_(row)
    return out
