"""Data parallel for plain modules, beside the same model alone on the whole batch."""

import copy
import gc

import torch
import torch.distributed
from torch.utils.checkpoint import checkpoint

import intarsia as it
from _harness import refuses, run, on_ranks


class Net(torch.nn.Module):
    """Two branches, of which each rank may use another; tied weights; a parameter that nobody uses."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        self.branches = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))
        self.again = self.first.weight
        self.idle = torch.nn.Parameter(torch.ones(3))
        self.last = torch.nn.Linear(8, 1)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x, route):
        h = self.first(x)
        before = self.mean.clone()
        with torch.no_grad():
            self.mean.mul_(0.9).add_(h.mean(0), alpha=0.1)
            self.steps.add_(1)
        h = torch.tanh(h - before + torch.nn.functional.linear(x, self.again))
        return self.last(torch.tanh(self.branches[route](h)))


def made(seed):
    torch.manual_seed(seed)
    return Net().double()


def compare(ours, alone):
    theirs = dict(alone.named_parameters())
    for name, p in ours.named_parameters():
        q = theirs[name]
        torch.testing.assert_close(p, q, rtol=1e-11, atol=1e-12, msg=name)
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-11, atol=1e-12, msg=name)
    for name, b in alone.named_buffers():
        torch.testing.assert_close(dict(ours.named_buffers())[name], b, rtol=1e-11, atol=1e-12, msg=name)


def train(set_to_none, accumulated):
    """Ten steps, with AdamW."""
    rank, n = it.world().rank(), 2
    ours, alone = made(rank), made(0)
    replica = it.replicate(ours, mesh="[dp=2]", axis="dp", buffers="averaged")
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in (ours, alone)]
    generator = torch.Generator().manual_seed(7)
    means = [alone.mean.clone()] * n
    for step in range(10):
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=set_to_none)
        for part in range(accumulated):
            batch = torch.randn(n, 4, 6, generator=generator, dtype=torch.float64)
            loss = ours(batch[rank], (rank + step) % 2).square().mean()
            if part + 1 < accumulated:
                with replica.no_sync():
                    loss.backward()
            else:
                loss.backward()
            total = 0
            for r in range(n):
                alone.mean.copy_(means[r])
                total = total + alone(batch[r], (r + step) % 2).square().mean()
                means[r] = alone.mean.clone()
            alone.steps.sub_(n - 1)
            (total / n).backward()
        alone.mean.copy_(torch.stack(means).mean(0))
        means = [alone.mean.clone()] * n
        compare(ours, alone)
        for optimizer in optimizers:
            optimizer.step()
    assert replica.counters().rounds == 10
    replica.remove()


@on_ranks(2)
def test_trains_like_one_process_on_the_whole_batch():
    it.init("[dp=2]")
    for set_to_none in (True, False):
        for accumulated in (1, 3):
            train(set_to_none, accumulated)


@on_ranks(2)
def test_from_first_gives_all_ranks_the_first_ones_values():
    rank = it.init("[dp=2]") and it.world().rank()
    for distribute in (lambda m: it.fully_shard(m), lambda m: it.parallelize(m, it.mesh(), {}), lambda m: it.replicate(m)):
        model, expected = made(rank + 1), made(1)
        assert it.from_first(model) is model
        for mine, first in zip(model.state_dict().values(), expected.state_dict().values(), strict=True):
            assert torch.equal(mine, first)
        distribute(model)  # would be told of values that differ, or of hooks that are there already
        for mine, first in zip(model.parameters(), expected.parameters(), strict=True):
            assert torch.equal(it.full(mine) if it.has_layout(mine) else mine, first)
    if rank == 0:
        it.from_first(made(3), mesh=it.Mesh("[alone=1]"))
    sharded = it.parallelize(made(1), it.mesh(), {})
    refuses(ValueError, "is a distributed tensor", lambda: it.from_first(sharded))
    with it.lockstep("[dp=2]"):
        it.from_first(made(1))


@on_ranks(2)
def test_handle_lives_as_long_as_the_module():
    model = torch.nn.Linear(3, 1)
    it.replicate(model)  # nobody keeps it
    gc.collect()
    (model(torch.ones(1, 3)) * it.world().rank()).sum().backward()
    assert model.bias.grad.item() == 0.5
    refuses(ValueError, "[replicate] the module is replicated already", lambda: it.replicate(model))
    again = torch.nn.Linear(3, 1)
    replica = it.replicate(again, mesh="[dp=2]", axis=["dp"])
    assert replica.buckets() == [["bias", "weight"]]
    replica.remove()
    (again(torch.ones(1, 3)) * it.world().rank()).sum().backward()
    assert again.bias.grad.item() == it.world().rank()
    refuses(ValueError, "[Replica] it was removed", replica.finish)


@on_ranks(2)
def test_rank_without_gradients_finishes():
    model = torch.nn.Linear(3, 1)
    replica = it.replicate(model)
    if it.world().rank() == 0:
        model(torch.ones(1, 3)).sum().backward()
    else:
        replica.finish()
    assert model.bias.grad.item() == 0.5


@on_ranks(2)
def test_checkpointed_modules():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    it.replicate(model)
    x = torch.full((2, 4), it.world().rank() + 1.0, requires_grad=True)
    model(x).sum().backward()
    want = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    checkpoint(model, x, use_reentrant=False).sum().backward()
    for p, g in zip(model.parameters(), want):
        torch.testing.assert_close(p.grad, g)
    model.zero_grad()
    refuses(
        NotImplementedError,
        "use_reentrant=False",
        lambda: checkpoint(model, x, use_reentrant=True).sum().backward(),
    )


@on_ranks(2)
def test_refusals():
    wide = torch.nn.Linear(3, 1 + it.world().rank())
    refuses(it.WorldError, "parameter 'weight' f32[1, 3]", lambda: it.replicate(wide))
    refuses(ValueError, "not 'mine'", lambda: it.replicate(wide, buffers="mine"))
    table = torch.nn.Embedding(5, 2, sparse=True)
    it.replicate(table)
    refuses(
        NotImplementedError,
        "the gradient of 'weight' is sparse",
        lambda: table(torch.tensor([1])).sum().backward(),
    )


@on_ranks(2)
def test_sync_batch_norm_is_over_all_replicas():
    it.init({"dp": 2})
    rank = it.world().rank()
    for sizes, options in (
        ((7, 3), {}),
        ((6, 3, 4, 2), {"momentum": None}),
        ((7, 3, 5), {"affine": False}),
        ((6, 3), {"track_running_stats": False}),
    ):
        torch.manual_seed(0)
        kind = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d}[len(sizes)]
        alone = torch.nn.Sequential(torch.nn.Linear(sizes[-1], sizes[-1]), kind(3, **options)).double()
        ours = torch.nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(alone))
        replica = it.replicate(ours, buffers="own")
        assert isinstance(ours[1], torch.nn.SyncBatchNorm)
        for step in range(3):
            x = torch.randn(*sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
            parts = [x[:4], x[4:]]  # of different lengths
            for model in (ours, alone):
                model.zero_grad()
            mine, whole = ours(parts[rank]), alone(x)
            assert torch.allclose(mine, whole[:4] if rank == 0 else whole[4:], atol=1e-12)
            (2 * mine.cos().sum()).backward()  # gradients are averages, those of the whole batch a sum
            whole.cos().sum().backward()
            compare(ours, alone)
        for model in (ours, alone):
            model.eval()
        assert torch.allclose(ours(x), alone(x), atol=1e-12)
        copied = copy.deepcopy(ours).train()  # a copy is not replicated, and normalises by itself
        assert torch.allclose(copied[1](x), copy.deepcopy(alone).train()[1](x), atol=1e-12)
        replica.remove()
        assert type(ours[1]) is torch.nn.SyncBatchNorm
        ours.train()
        assert torch.allclose(ours[1](x), copy.deepcopy(alone).train()[1](x), atol=1e-12)


@on_ranks(2)
def test_batch_norm_and_bill():
    torch.manual_seed(it.world().rank())
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    it.replicate(model)
    it.clear_bill()
    for _ in range(3):
        model(torch.randn(8, 4)).square().sum().backward()
    rows = [torch.cat([t.flatten().double() for t in model.state_dict().values()])]
    everyone = it.full(it.from_local(rows[0][None], "S(0)", mesh="[dp=2]"))
    assert torch.equal(everyone[0], everyone[1])  # buffers too, though batches differ
    entries = [e for e in it.bill().entries if e.op == "replicate"]
    assert sum(e.count for e in entries if e.transition == "P->R") == 3
    assert any("buffers, f32[8]" in e.tensor for e in entries)
    it.close()


@on_ranks(3)
def test_lost_rank_is_an_error_of_backward():
    it.init("[dp=3]", timeout=20)
    model = torch.nn.Linear(3, 1)
    it.replicate(model)
    model(torch.ones(1, 3)).sum().backward()
    if it.world().rank() == 2:
        it.world().close()
        return
    try:
        model(torch.ones(1, 3)).sum().backward()
    except torch.distributed.DistError as error:
        assert "rank 2 has closed: its world was closed; rank 2 never came to call" in str(error)
        return
    raise AssertionError("a rank has gone, and backward did not notice")


if __name__ == "__main__":
    run(globals())
