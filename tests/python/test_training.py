"""torch.nn, optimizers, clipping, autocast and checkpointing on two ranks follow the plain run."""

import copy

import intarsia as it
import torch
from _harness import on_ranks, refuses, run
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

COLUMN_ROW = {"0.weight": "S(0)", "0.bias": "S(0)", "2.weight": "S(1)"}
SHARDED = {"*": "S(0)"}


def ready():
    return it.mesh() if it._world._mesh is not None else it.init({"tp": it.world().size()})


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 6))


def data():
    g = torch.Generator().manual_seed(1)
    return torch.randn(5, 8, generator=g), torch.randint(0, 6, (5,), generator=g)


def same(module, plain, **tolerance):
    for (name, ours), theirs in zip(module.named_parameters(), plain.parameters()):
        whole = it.full(ours.detach())
        torch.testing.assert_close(whole, theirs.detach(), msg=lambda m: f"{name}: {m}", **tolerance)
        if theirs.grad is not None:
            assert it.layout_of(ours.grad) == it.layout_of(ours), name
            grad = it.full(ours.grad)
            torch.testing.assert_close(grad, theirs.grad, msg=lambda m: f"{name}.grad: {m}", **tolerance)


@on_ranks(2)
def test_parallelize_replaces_parameters_by_pattern():
    mesh, module = ready(), mlp()
    module.tied = module[0].weight
    it.parallelize(module, mesh, COLUMN_ROW)
    assert str(it.layout_of(module[0].weight)) == "[tp=2] S(0)" and module.tied is module[0].weight
    assert it.layout_of(module[2].bias).is_replicated() and isinstance(module[2].bias, nn.Parameter)
    refuses(ValueError, "'nothing.*' fits no parameter", lambda: it.parallelize(mlp(), mesh, {"nothing.*": "R"}))


@on_ranks(2)
def test_mlp_forward_and_backward_equal_plain():
    mesh = ready()
    x, y = data()
    for layouts in (COLUMN_ROW, SHARDED, {}):
        plain = mlp()
        module = it.parallelize(copy.deepcopy(plain), mesh, layouts)
        for entry in ("R", "S(0)"):
            module.zero_grad(), plain.zero_grad()
            loss = F.cross_entropy(module(it.distribute(x, entry)), it.distribute(y, entry))
            expected = F.cross_entropy(plain(x), y)
            torch.testing.assert_close(it.full(loss), expected)
            loss.backward(), expected.backward()
            same(module, plain)


@on_ranks(2)
def test_column_and_row_need_one_reduction():
    mesh = ready()
    module = it.parallelize(mlp(), mesh, COLUMN_ROW)
    x = it.distribute(data()[0], "R")
    budget = it.Budget()
    out = it.redistribute(module(x), "R")
    assert budget.spent() == "1 P->R", f"{it.bill()}"
    out.sum().backward()


def train(module, optimizer, batch, steps=3):
    norms = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(module(batch[0]), batch[1])
        loss.backward()
        norms.append(float(nn.utils.clip_grad_norm_(module.parameters(), 0.1, foreach=False)))
        optimizer.step()
    return norms


@on_ranks(2)
def test_optimizers_and_clipping_follow_plain():
    mesh = ready()
    x, y = data()
    for make in (
        lambda p: torch.optim.AdamW(p, 1e-2, foreach=False),
        lambda p: torch.optim.AdamW(p, 1e-2, foreach=True),
        lambda p: torch.optim.AdamW(p, 1e-2, fused=True),
        lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9),
    ):
        for layouts in (COLUMN_ROW, SHARDED):
            plain = mlp()
            module = it.parallelize(copy.deepcopy(plain), mesh, layouts)
            ours = train(module, make(module.parameters()), (it.distribute(x, "S(0)"), it.distribute(y, "S(0)")))
            theirs = train(plain, make(plain.parameters()), (x, y))
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
            same(module, plain, rtol=1e-4, atol=1e-5)


@on_ranks(2)
def test_autocast_casts_as_on_one_rank():
    mesh = ready()
    x, _ = data()
    plain = mlp()
    module = it.parallelize(copy.deepcopy(plain), mesh, {})
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, theirs = module(it.distribute(x, "S(0)")), plain(x)
    assert ours.dtype is torch.bfloat16 and torch.equal(it.full(ours), theirs)
    ours.float().square().sum().backward(), theirs.float().square().sum().backward()
    same(module, plain, rtol=2e-2, atol=2e-2)


@on_ranks(2)
def test_checkpointing_computes_again():
    mesh = ready()
    x, _ = data()
    plain = nn.Sequential(mlp(), nn.Dropout(0.5))
    module = it.parallelize(copy.deepcopy(plain), mesh, {"0.0.*": "S(0)"})
    grads = []
    for use in (True, False):
        module.zero_grad()
        torch.manual_seed(5)
        d = it.distribute(x, "S(0)")
        out = checkpoint(module, d, use_reentrant=False) if use else module(d)
        out.square().sum().backward()
        grads.append([it.full(p.grad) for p in module.parameters()])
    torch.testing.assert_close(grads[0], grads[1])


@on_ranks(2)
def test_modules_on_meta_are_born_distributed():
    mesh = ready()
    made = []
    for layouts in (COLUMN_ROW, {}):
        with torch.device("meta"):
            module = nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.Linear(12, 6))
        torch.manual_seed(7)
        it.parallelize(module, mesh, layouts)
        assert all(it.has_layout(t) for t in module.state_dict().values())
        made.append([it.full(p.detach()) for p in module.parameters()])
        assert torch.equal(it.full(module[1].running_var), torch.ones(12))
    assert all(torch.equal(a, b) for a, b in zip(*made)) and made[0][0].abs().sum() > 0


@on_ranks(2)
def test_state_dicts_load_plain_and_distributed_values():
    mesh = ready()
    plain = mlp()
    module = it.parallelize(mlp(), mesh, COLUMN_ROW)
    with torch.no_grad():
        for p in plain.parameters():
            p.add_(1)
    module.load_state_dict(plain.state_dict())
    same(module, plain)
    other = it.parallelize(mlp(), mesh, SHARDED)
    other.load_state_dict(module.state_dict())
    same(other, plain)


@on_ranks(2)
def test_attention_block_follows_plain():
    mesh = ready()
    torch.manual_seed(0)
    plain = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
    layouts = {"linear1.*": "S(0)", "linear2.weight": "S(1)"}
    module = it.parallelize(copy.deepcopy(plain), mesh, layouts)
    x = torch.randn(2, 4, 8)
    ours, theirs = module(it.distribute(x, "R")), plain(x)
    torch.testing.assert_close(it.full(ours), theirs, rtol=1e-4, atol=1e-5)
    ours.square().sum().backward(), theirs.square().sum().backward()
    same(module, plain, rtol=1e-3, atol=1e-4)


@on_ranks(2)
def test_clipping_by_lists_again_and_again():
    mesh = ready()
    module, plain = it.parallelize(mlp(), mesh, SHARDED), mlp()
    for _ in range(3):
        for p, q in zip(module.parameters(), plain.parameters()):
            q.grad = torch.full_like(q, 0.5)
            p.grad = it.distribute(q.grad.clone(), "S(0)", mesh=mesh)
        ours = nn.utils.clip_grad_norm_(module.parameters(), 0.1, foreach=True)
        theirs = nn.utils.clip_grad_norm_(plain.parameters(), 0.1, foreach=True)
        torch.testing.assert_close(it.full(ours), theirs)
        same(module, plain)


if __name__ == "__main__":
    run(globals())
