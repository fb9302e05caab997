"""What a training step takes on one rank of a world that need not exist."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

import torch

from . import _C, _world


@contextlib.contextmanager
def simulate(mesh: _world.MeshLike, *, rank: int = 0, backend: str = "gloo") -> Iterator[_C.World]:
    """One process plays one rank of a mesh, without values: `with simulate("[dp=2048,tp=8]"): ...`

    Inside, the default world and mesh are these; afterwards the former ones are back, and the world of the
    block is closed. Tensors know sizes and dtypes; collectives send nothing and enter bill and ledger.
    """
    chosen = _world.to_mesh(mesh)
    with _world.using(_C.simulate(chosen.highest() + 1, rank=rank, backend=backend), chosen) as ranks:
        yield ranks


def predict(
    program: Callable[[], object],
    mesh: _world.MeshLike | None = None,
    *,
    size: int | None = None,
    rank: int = 0,
    backend: str = "gloo",
) -> _C.Prediction:
    """Runs `program` in a simulated world, and tells the bytes that it held and sent on one rank.

    It makes model and optimizer, trains a step, leaves the gradients in place, and returns (model,
    optimizer), or the optimizer alone; behind them a function that trains for another step, if the time of
    that is asked for: `prediction.time(StepCosts.load(file))`. The world has a mesh, or `size` ranks along one axis `x`; both are
    the default ones while the program runs.
    """
    if (mesh is None) == (size is None):
        raise ValueError("[predict] takes a mesh or a size, and not both")
    chosen = _C.Mesh({"x": size}) if mesh is None else _world.to_mesh(mesh)

    def run(world: _C.World) -> tuple[list[torch.Tensor], list[torch.Tensor], Callable[[], object] | None]:
        with _world.as_default(world, chosen):
            result = program()
        parts = result if isinstance(result, (tuple, list)) else [result]
        step = next((part for part in parts if callable(part) and not isinstance(part, torch.nn.Module)), None)

        def again() -> None:
            with _world.as_default(world, chosen):
                step()

        return *_kept(parts), again if step else None

    return _C.predict(chosen, rank, backend, run)


def explain_step(
    program: Callable[[], object],
    mesh: _world.MeshLike | None = None,
    *,
    size: int | None = None,
    rank: int = 0,
    backend: str = "gloo",
    costs: _C.StepCosts | None = None,
) -> str:
    """What a training step does on one rank, in words and without data: what it holds, its bill, in which order it
    computes, sends and waits, and, with costs, how long that takes. The program is one of `predict` that returns a
    step; ValueError for others."""
    prediction = predict(program, mesh, size=size, rank=rank, backend=backend)
    parts = [str(prediction), str(prediction.bill), prediction.schedule().rstrip()]
    if costs is not None:
        parts.append(str(prediction.time(costs)))
    return "\n\n".join(parts)


def _kept(parts: Iterable[object]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The parameters and the optimizer's tensors among what a program returned."""
    parameters, state = [], []
    for part in parts:
        if isinstance(part, torch.nn.Module):
            parameters += part.parameters()
        elif isinstance(part, torch.optim.Optimizer):
            parameters += [p for group in part.param_groups for p in group["params"]]
            state += [v for values in part.state.values() for v in values.values() if torch.is_tensor(v)]
    return list(dict.fromkeys(parameters)), state
