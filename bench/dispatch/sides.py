"""The three that are compared: plain tensors, ours, and PyTorch's DTensor, behind one small interface.

All three live in one process, as rank 0 of two. A piece of every distributed tensor has the sizes and values of the plain
one, so that what an op costs more is overhead. Results are compared on two processes over Gloo. What is timed is one
process alone, on the group 'fake', whose collectives return at once and change nothing: what arrives there is no result.
"""

import intarsia
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed import fake_pg  # noqa: F401  registers the backend

WORLD = 2


def start():
    """Makes the fake group, with a store that our world can adopt."""
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=WORLD)


def start_real(rank, port):
    """Makes a group of real processes, of which this is one."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)


class CopyToGroup(torch.autograd.Function):
    """Identity forward, all-reduce backward (input of a column-parallel linear)."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous()
        dist.all_reduce(g)
        return g


class ReduceFromGroup(torch.autograd.Function):
    """All-reduce forward, identity backward (output of a row-parallel linear)."""

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


class Bare:
    """Plain tensors; parallel blocks are written by hand."""

    name = "bare"
    enter = staticmethod(CopyToGroup.apply)
    leave = staticmethod(ReduceFromGroup.apply)

    def put(self, piece, cut=None):
        """A tensor whose local piece is `piece`, cut along dimension `cut`, or replicated."""
        return piece.clone()

    def piece(self, tensor):
        return tensor.detach()

    def summed(self, grad):
        """The gradient of a replicated weight, of which each rank computed its part."""
        dist.all_reduce(grad)
        return grad


class Ours:
    """Distributed tensors, made from whole ones as programs do."""

    name = "ours"

    def __init__(self):
        self.world = intarsia.World.adopt(dist.group.WORLD.group_name)
        self.mesh = intarsia.Mesh({"x": WORLD})
        self.replicated = intarsia.Layout.replicated(self.mesh)

    def put(self, piece, cut=None):
        if cut is None:
            return intarsia.distribute(piece, self.replicated, world=self.world)
        whole = torch.cat([piece] * WORLD, cut)
        return intarsia.distribute(whole, f"S({cut})", mesh=self.mesh, world=self.world)

    def enter(self, tensor):
        return tensor

    def leave(self, tensor):
        return intarsia.redistribute(tensor, self.replicated)

    def piece(self, tensor):
        return intarsia.local(tensor.detach())

    def summed(self, grad):
        return grad  # is so already: gradients lie as their leaves do


class Rival:
    """PyTorch's DTensor."""

    name = "dtensor"

    def __init__(self):
        self.mesh = init_device_mesh("cpu", (WORLD,))
        self.replicated = [Replicate()]

    def put(self, piece, cut=None):
        placement = Replicate() if cut is None else Shard(cut)
        return DTensor.from_local(piece.clone(), self.mesh, [placement], run_check=False).detach()

    def enter(self, tensor):
        return tensor

    def leave(self, tensor):
        return tensor.redistribute(self.mesh, self.replicated)

    def piece(self, tensor):
        return tensor.detach().to_local()

    def summed(self, grad):
        return grad.redistribute(self.mesh, self.replicated)
