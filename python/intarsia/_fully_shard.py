"""Parameters that every rank stores a piece of, and that are gathered when they are used."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from . import _C
from ._parallelize import Init, Placing
from ._tensor import LayoutLike
from ._world import MeshLike, to_mesh
from ._world import mesh as default_mesh


# A handle lives as long as its module, so that callers need not keep it.
_shardings: weakref.WeakKeyDictionary[nn.Module, list[FullyShard]] = weakref.WeakKeyDictionary()


class FullyShard:
    """The handle that fully_shard returns. It lives as long as the module."""

    def __init__(self, sharded: _C.FullyShard):
        self._sharded = sharded

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of backwards inside stay unreduced; the next one outside reduces their sum."""
        scope = _C.NoSyncScope(self._sharded)
        try:
            yield
        finally:
            scope.close()

    def finish(self) -> None:
        """For a rank whose loss used none of the parameters. COLLECTIVE: with the others' backward."""
        self._sharded.finish()

    def release(self) -> None:
        """Drops what is gathered: after an evaluation, for example."""
        self._sharded.release()

    def gathered(self) -> int:
        """How many groups are gathered, or on their way."""
        return self._sharded.gathered()

    def most_gathered(self) -> int:
        """The most groups that were gathered at one time."""
        return self._sharded.most_gathered()

    def groups(self) -> list[_C.GroupReport]:
        """What each group did."""
        return self._sharded.groups()

    def report(self) -> str:
        """The groups, what was moved ahead of its use, and what that spared, as a table."""
        return self._sharded.report()


def _blocks(module: nn.Module, patterns: Sequence[str] | None) -> list[str]:
    """Names of the modules whose parameters make a group each."""
    names = [name for name, _ in module.named_modules() if name]
    if patterns is None:
        found: list[str] = []
        for name, part in module.named_modules():
            if isinstance(part, (nn.ModuleList, nn.Sequential)):
                inside = any(name.startswith(other + ".") for other in found)
                found += [] if inside else [f"{name}.{key}".lstrip(".") for key in part._modules]
        return found
    out = []
    for pattern in patterns:
        fits = [name for name in names if _C.matches_parts(name, pattern)]
        if not fits:
            raise ValueError(f"[fully_shard] {pattern!r} fits none of the modules {', '.join(names)}")
        out += fits
    return out


def _cast_floats(values, dtype):
    """The same structure with floating tensors in another dtype."""
    if isinstance(values, Tensor):
        return values.to(dtype) if values.is_floating_point() else values
    if isinstance(values, (list, tuple)):
        return type(values)(_cast_floats(v, dtype) for v in values)
    if isinstance(values, dict):
        return {key: _cast_floats(v, dtype) for key, v in values.items()}
    return values


def fully_shard(
    module: nn.Module,
    *,
    mesh: MeshLike | None = None,
    shard: str | Sequence[str] = ("dp",),
    replicate: str | Sequence[str] = (),
    layouts: Mapping[str, LayoutLike] | _C.TensorParallelPlan | None = None,
    blocks: Sequence[str] | None = None,
    dims: Mapping[str, int] | None = None,
    param_dtype: torch.dtype | None = None,
    reduce_dtype: torch.dtype | None = None,
    output_dtype: torch.dtype | None = None,
    keep_after_forward: bool = False,
    prefetch: bool = True,
    offload: bool = False,
    init: Init | None = None,
    world: _C.World | None = None,
) -> FullyShard:
    """Shards the parameters of a module in place: each rank stores a piece, and an op that uses one gets it
    gathered.

    `shard`: the mesh axes that shard the parameters; `replicate`: axes along which each piece is replicated (hybrid
    sharding). Plain parameters are distributed first, by the patterns of `layouts` or by a plan of tensor parallelism.
    Those on torch.device("meta") are made in pieces: no rank holds a full one, except while it uses it. Who sets their
    values, and `init`: see parallelize. Parameters that are distributed already are used in the layout
    that they have.
    `blocks`: patterns of module names, such as `layers.*`: the parameters of each module that fits are gathered
    together; without it, the elements of the outermost ModuleLists and Sequentials are. `dims`: which dimension is
    sharded, by pattern of names; otherwise the first. `param_dtype`: the dtype that is gathered and computed with, to
    which the module's floating inputs are cast; `reduce_dtype`: the dtype in which gradients are reduced;
    `output_dtype`: the dtype to which the module's floating outputs are cast. Where it raises, nothing was changed. See
    intarsia/fully_shard.h. Communicates nothing.
    """
    on = default_mesh() if mesh is None else to_mesh(mesh)
    axes = [shard] if isinstance(shard, str) else list(shard)
    copies = [replicate] if isinstance(replicate, str) else list(replicate)
    options = _C.FullyShardOptions(
        axes, copies, list((dims or {}).items()), param_dtype, reduce_dtype, keep_after_forward, prefetch, offload
    )
    modules = _blocks(module, blocks)
    placing = Placing(module, on, layouts or {}, world, init, "fully_shard")

    def groups():
        named = dict(module.named_parameters())
        return [
            (group, [(name, named[name], placing.used.get(name)) for name in names])
            for group, names in _C.parameter_groups(list(named.items()), modules)
        ]

    _C.check_fully_shard(groups(), options)
    dims_of = {name: p.dim() for name, p in module.named_parameters(remove_duplicate=False)}
    placing.place(lambda name, layout: _C.sharded_layout(layout, dims_of[name], options, name))
    sharding = FullyShard(_C.fully_shard(groups(), options))
    _shardings.setdefault(module, []).append(sharding)
    if param_dtype is not None:
        module.register_forward_pre_hook(
            lambda _, args, kwargs: (_cast_floats(args, param_dtype), _cast_floats(kwargs, param_dtype)),
            with_kwargs=True,
        )
    if output_dtype is not None:
        module.register_forward_hook(lambda _, args, output: _cast_floats(output, output_dtype))
    return sharding
