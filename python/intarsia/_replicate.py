"""Data parallel for plain modules: every rank holds the full model, and gradients are averaged."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch

from . import _C
from ._world import MeshLike, to_mesh
from ._world import mesh as default_mesh
from ._world import world as default_world

# A handle lives as long as its module, so that callers need not keep it.
_replicas: weakref.WeakKeyDictionary[torch.nn.Module, Replica] = weakref.WeakKeyDictionary()


# Over which replicas a batch norm is done: a layout of sums over them, and their world.
_normalised: weakref.WeakKeyDictionary[torch.nn.Module, tuple[_C.Layout, _C.World]] = weakref.WeakKeyDictionary()


class SyncBatchNorm(torch.nn.SyncBatchNorm):
    """torch's SyncBatchNorm in a replicated module: in training, means and variances are those of the batches of all
    replicas, which may be of different lengths. COLLECTIVE: the replicas, in forward and in backward."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        over = _normalised.get(self)
        if over is None or not self.training:  # a copy is not replicated itself
            return super().forward(input)
        self._check_input_dim(input)
        self._check_non_zero_input_channels(input)
        return self._normalise(input, *over)

    def _normalise(self, input: torch.Tensor, partial: _C.Layout, world: _C.World) -> torch.Tensor:
        def total(mine: torch.Tensor) -> torch.Tensor:
            # Every rank computes on with the sum by itself, so its gradient is a partial value of the gradient.
            return _C.full(_C.from_local(mine, partial, world), partial)

        x = input if input.dtype == torch.float64 else input.float()
        inner = [d for d in range(x.dim()) if d != 1]
        shape = [-1 if d == 1 else 1 for d in range(x.dim())]
        count = x.new_full((1,), x.numel() / x.size(1))
        sums = total(torch.cat([x.sum(inner), count]))
        n = sums[-1].detach()
        mean = sums[:-1] / n
        apart = x - mean.view(shape)
        variance = total(apart.square().sum(inner)) / n
        if self.track_running_stats:
            self._note(mean.detach(), variance.detach() * n / (n - 1).clamp(min=1))
        out = apart * (variance + self.eps).rsqrt().view(shape)
        if self.weight is not None:
            out = out * self.weight.to(out.dtype).view(shape)
        if self.bias is not None:
            out = out + self.bias.to(out.dtype).view(shape)
        return out.to(input.dtype)

    @torch.no_grad()
    def _note(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        self.num_batches_tracked.add_(1)
        rate = 1.0 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), rate)
        self.running_var.lerp_(variance.to(self.running_var.dtype), rate)


def _normalise_over_replicas(module: torch.nn.Module, mesh: _C.Mesh, axes: Sequence[str], world: _C.World) -> None:
    group = mesh.slice(list(axes), world.rank())
    partial = _C.Layout.parse(",".join(["P(sum)"] * group.axes()), group)
    for part in module.modules():
        if type(part) in (torch.nn.SyncBatchNorm, SyncBatchNorm):
            part.__class__ = SyncBatchNorm
            _normalised[part] = partial, world


def _normalise_alone(module: torch.nn.Module) -> None:
    for part in module.modules():
        if _normalised.pop(part, None) is not None:
            part.__class__ = torch.nn.SyncBatchNorm


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
            _normalise_alone(module)


def from_first(module: torch.nn.Module, *, mesh: MeshLike | None = None, world: _C.World | None = None) -> torch.nn.Module:
    """All ranks of the mesh take the parameters and buffers of its first rank; returns the module.

    For a plain module that ranks made from different seeds, before `parallelize` or `fully_shard`, which take the same values on
    all ranks. In lockstep there is one module, and nothing to do. COLLECTIVE: all ranks of the mesh.
    """
    ranks = world or default_world()
    over = default_mesh() if mesh is None else to_mesh(mesh)
    if not ranks.in_lockstep() and over.contains(ranks.rank()):
        # A replica begins with this; it ends here, and leaves no hook.
        _C.replicate(list(module.named_parameters()), list(module.named_buffers()), ranks, over, list(over.names()),
                     1, 1, None, _C.BufferSync.own)  # fmt: skip
    return module


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
    `own`. SyncBatchNorm normalises over the batches of all of them. COLLECTIVE: all ranks of the group; likewise each
    backward() outside of no_sync().
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
    if over.contains(ranks.rank()):
        _normalise_over_replicas(module, over, axes, ranks)
    _replicas[module] = replica = Replica(core, module)
    return replica
