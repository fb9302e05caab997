"""To and from PyTorch's DTensor without copying: placements, uneven cuts, orders, strides, gradients."""

import intarsia as it
import torch
import torch.distributed as dist
from _harness import on_ranks, refuses, run
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard


def ready():
    if not dist.is_initialized():
        dist.init_process_group("gloo")
        it.connect()  # adopts the group
        assert (it.world().rank(), it.world().size()) == (dist.get_rank(), dist.get_world_size())


def same_memory(ours, dtensor):
    with torch.no_grad():
        piece, local = it.local(ours.detach()), dtensor.detach().to_local()
    assert piece.shape == local.shape and piece.stride() == local.stride()
    assert piece.numel() == 0 or piece.data_ptr() == local.data_ptr()


def there_and_back(dtensor, layout):
    ours = it.from_dtensor(dtensor)
    mesh = it._dtensor.mesh_of(dtensor.device_mesh)
    assert it.layout_of(ours) == it.to_layout(layout, mesh, ours.dim()), it.describe(ours)
    assert ours.shape == dtensor.shape and ours.dtype == dtensor.dtype
    same_memory(ours, dtensor)
    back = it.to_dtensor(ours, dtensor.device_mesh)
    assert back.placements == dtensor.placements and back.shape == dtensor.shape
    assert back.stride() == dtensor.stride()
    same_memory(ours, back)
    assert torch.equal(it.full(ours), dtensor.full_tensor())
    return ours


@on_ranks(2)
def test_placements_on_one_axis():
    ready()
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    x = torch.arange(20.0).reshape(5, 4)
    for placement, text in ((Shard(0), "S(0)"), (Shard(1), "S(1)"), (Replicate(), "R")):
        there_and_back(distribute_tensor(x, mesh, [placement]), text)
    for op, text in (("sum", "P(sum)"), ("avg", "P(avg)"), ("max", "P(max)"), ("min", "P(min)")):
        there_and_back(DTensor.from_local(x + dist.get_rank(), mesh, [Partial(op)]), text)
    there_and_back(distribute_tensor(torch.arange(1.0).reshape(1, 1), mesh, [Shard(0)]), "S(0)")
    there_and_back(distribute_tensor(torch.tensor(3.0), mesh, [Replicate()]), "R")


@on_ranks(2)
def test_axes_without_names_and_other_meshes():
    ready()
    mesh = DeviceMesh("cpu", [0, 1])
    x = distribute_tensor(torch.arange(6.0), mesh, [Shard(0)])
    assert it.layout_of(there_and_back(x, "S(0)")).mesh().names() == ["d0"]
    ours = it.distribute(torch.arange(6.0), "S(0)", mesh={"named": 2})
    same_memory(ours, it.to_dtensor(ours, mesh))
    named = init_device_mesh("cpu", (2,), mesh_dim_names=("other",))
    refuses(ValueError, "[named=2]", lambda: it.to_dtensor(ours, named))
    turned = it.distribute(torch.arange(6.0), "S(0)", mesh=it.Mesh.of_ranks({"named": 2}, [1, 0]))
    refuses(ValueError, "device mesh", lambda: it.to_dtensor(turned, mesh))


@on_ranks(2)
def test_gradients_pass_both_ways():
    ready()
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    x = torch.arange(10.0).reshape(5, 2)
    d = distribute_tensor(x, mesh, [Shard(0)]).requires_grad_()
    (it.from_dtensor(d) * 3).sum().backward()
    assert d.grad.placements == (Shard(0),) and torch.equal(d.grad.full_tensor(), torch.full((5, 2), 3.0))
    ours = it.distribute(x, "S(0)", mesh={"dp": 2}).requires_grad_()
    (it.to_dtensor(ours, mesh) * 3).sum().backward()
    assert torch.equal(it.full(ours.grad), torch.full((5, 2), 3.0))


@on_ranks(2)
def test_writes_are_seen_on_both_sides():
    ready()
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    d = distribute_tensor(torch.zeros(5, 2), mesh, [Shard(0)])
    ours = it.from_dtensor(d)
    ours.add_(1)
    assert torch.equal(d.full_tensor(), torch.ones(5, 2))


@on_ranks(2)
def test_dense_strides_are_kept():
    ready()
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    d = distribute_tensor(torch.arange(24.0).reshape(4, 6), mesh, [Shard(0)]).t()
    there_and_back(d, "S(1)")


@on_ranks(2)
def test_pieces_with_gaps_are_refused():
    ready()
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    d = DTensor.from_local(torch.zeros(4, 4)[:, :2], mesh, [Shard(0)], run_check=False)
    refuses(ValueError, "dense", lambda: it.from_dtensor(d))
    assert it.from_dtensor(d.contiguous()).shape == (8, 2)


@on_ranks(4)
def test_orders_and_strided_shards_on_two_axes():
    ready()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    x = torch.arange(32.0).reshape(8, 4)
    there_and_back(distribute_tensor(x, mesh, [Shard(0), Shard(1)]), "S(0),S(1)")
    there_and_back(distribute_tensor(x, mesh, [Shard(0), Shard(0)]), "S(0),S(0)")
    there_and_back(distribute_tensor(x[:7], mesh, [Replicate(), Shard(0)]), "R,S(0)")
    # What FSDP + TP makes: tp cuts first.
    rank = dist.get_rank()
    dp, tp = divmod(rank, 2)
    piece = x.chunk(2)[tp].chunk(2)[dp].contiguous()
    placements = [_StridedShard(0, split_factor=2), Shard(0)]
    d = DTensor.from_local(piece, mesh, placements, run_check=False, shape=x.shape, stride=x.stride())
    ours = there_and_back(d, "S(0),S(0) | 0:tp>dp")
    assert torch.equal(it.full(ours), x)
    blocks = it.distribute(x, "SS(0,4),R", mesh={"dp": 2, "tp": 2})
    refuses(NotImplementedError, "redistribute first", lambda: it.to_dtensor(blocks, mesh))


if __name__ == "__main__":
    run(globals())
    if dist.is_initialized():
        it.close()
        dist.destroy_process_group()
