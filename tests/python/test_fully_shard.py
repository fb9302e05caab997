"""Sharded parameters: the same numbers as one device, whatever ranks use."""

import copy

import torch
import torch.distributed
import torch.nn.functional as F
from _harness import on_ranks, refuses, run
from torch import nn

import intarsia


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 3 * dim)
        self.down = nn.Linear(3 * dim, dim, bias=False)

    def forward(self, x):
        return x + self.down(F.silu(self.up(self.norm(x))))


class Net(nn.Module):
    """Its lengths, 5 and 7, are divided by no number of ranks here."""

    def __init__(self, dim=5, vocabulary=7, blocks=3):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(blocks))
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.norm = nn.RMSNorm(dim)
        self.head = nn.Linear(dim, vocabulary)

    def forward(self, tokens, skip=()):
        x = self.embed(tokens)
        for i, block in enumerate(self.blocks):
            if i not in skip:
                x = block(x)
        return self.head(self.norm(x * self.scale))


def mean_loss(logits, targets):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


def batches(seed, steps, sequences=12, length=3, vocabulary=7):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocabulary, (2, sequences, length), generator=generator) for _ in range(steps)]


def furthest(net, plain):
    """The largest difference between parameters, and between gradients; None must be None."""
    worst = 0.0
    for (name, p), q in zip(net.named_parameters(), plain.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), f"{name}: {p.grad is None}, one device {q.grad is None}"
        worst = max(worst, (intarsia.full(p.detach()) - q.detach()).abs().max().item())
        if p.grad is not None:
            assert intarsia.layout_of(p.grad) == intarsia.layout_of(p)
            worst = max(worst, (intarsia.full(p.grad) - q.grad).abs().max().item())
    return worst


def adamw(parameters, lr):
    """A large eps: a small one divides rounding errors of gradients near 0 by about itself."""
    return torch.optim.AdamW(parameters, lr=lr, eps=1e-3)


def train(mesh, world, *, layouts=None, steps=4, optimizer=adamw, **options):
    """Trains on a mesh and on one device side by side."""
    torch.manual_seed(0)
    plain = Net().double()
    net = copy.deepcopy(plain)
    on = intarsia.Mesh.parse(mesh)
    sharding = intarsia.fully_shard(net, mesh=on, layouts=layouts, world=world, **options)
    axes = [on.name(a) for a in range(on.axes())]
    batch_layout = ",".join("R" if a == "tp" else "S(0)" for a in axes)
    ours, theirs = (optimizer(m.parameters(), lr=1e-2) for m in (net, plain))
    for tokens, targets in batches(1, steps):
        cut = [intarsia.distribute(t, batch_layout, mesh=on, world=world) for t in (tokens, targets)]
        for model, optim, (x, y) in ((net, ours, cut), (plain, theirs, (tokens, targets))):
            optim.zero_grad()
            mean_loss(model(x), y).backward()
        worst = furthest(net, plain)
        assert worst < 1e-12, f"{mesh}: {worst}"
        assert sharding.gathered() == 0
        ours.step()
        theirs.step()
    assert sharding.most_gathered() <= (2 if not options.get("keep_after_forward") else 9)
    return net, plain, sharding


MESHES = {
    "[dp=2]": {},
    "[dp=3]": {},
    "[dp=4]": {},
    "[dp=1]": {},
    "[rep=2,dp=2]": {"replicate": "rep"},
    "[a=2,b=2]": {"shard": ["a", "b"]},
    "[dp=2,tp=2]": {"layouts": {"blocks.*.up.*": "R,S(0)", "blocks.*.down.weight": "R,S(1)", "embed.weight": "R,S(0)"}},
}


def test_equal_to_one_device_in_lockstep():
    for mesh, options in MESHES.items():
        world = intarsia.lockstep_world(intarsia.Mesh.parse(mesh).size())
        train(mesh, world, **options)


def test_options_in_lockstep():
    world = intarsia.lockstep_world(2)
    train("[dp=2]", world, keep_after_forward=True)
    train("[dp=2]", world, prefetch=False)
    train("[dp=2]", world, dims={"*.down.weight": 1, "head.weight": -1})
    train("[dp=2]", world, blocks=["blocks.1"])
    train("[dp=2]", world, optimizer=torch.optim.SGD)


def test_textbook_bill():
    """A block: two gathers and one reduction. The last group is still there when backward begins, which needs
    nothing of the first: its second gather is for `scale`, at the end of forward."""
    world = intarsia.lockstep_world(2)
    net, _, sharding = train("[dp=2]", world, steps=2)
    intarsia.clear_bill(world)
    tokens, targets = (intarsia.distribute(t, "S(0)", mesh="[dp=2]", world=world) for t in batches(3, 1)[0])
    mean_loss(net(tokens), targets).backward()
    count = {}
    for entry in intarsia.bill(world).entries:
        if entry.op == "fully_shard":
            count.setdefault(entry.tensor, []).extend([entry.transition] * entry.count)
        else:
            assert not entry.implicit, entry
    blocks = [sorted(v) for k, v in count.items() if k.startswith("blocks")]
    assert blocks == [["P->S", "S->R", "S->R"]] * 3, count
    assert sorted(count["scale"]) == ["P->S", "S->R", "S->R"], count
    assert sorted(count["norm.weight"]) == ["P->S", "S->R"], count
    assert "exposed" in sharding.report()


@on_ranks(2)
def test_two_processes():
    intarsia.init()
    world = intarsia.world()
    train("[dp=2]", world)
    train("[dp=2]", world, keep_after_forward=True)


@on_ranks(2)
def test_ranks_that_differ():
    """Rank 1 leaves a block out on odd steps; one block gets nothing from anyone; one is frozen."""
    intarsia.init()
    world = intarsia.world()
    rank = world.rank()
    torch.manual_seed(0)
    plain = Net(blocks=4).double()
    plain.blocks[2].requires_grad_(False)
    net = copy.deepcopy(plain)
    mesh = intarsia.Mesh.parse("[dp=2]")
    sharding = intarsia.fully_shard(net, mesh=mesh, world=world)
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (net, plain))
    for step, (tokens, targets) in enumerate(batches(2, 12)):
        always = () if step == 7 else (3,)  # in one step only, the block is used after all
        skips = [always, (1, *always) if step % 2 else always]
        ours.zero_grad()
        theirs.zero_grad()
        mine = tokens.chunk(2)[rank], targets.chunk(2)[rank]
        # Ranks run different code, so what lies between the parameters is local; the loss is a sum of both halves.
        x, y = (intarsia.from_local(t, "S(0)", mesh=mesh, world=world) for t in mine)
        mean_loss(net(x, skips[rank]), y).backward()
        halves = [
            mean_loss(plain(t, skip), u)
            for t, u, skip in zip(tokens.chunk(2), targets.chunk(2), skips, strict=True)
        ]
        (sum(halves) / 2).backward()
        worst = furthest(net, plain)
        assert worst < 1e-12, f"step {step}: {worst}"
        ours.step()
        theirs.step()


@on_ranks(2)
def test_ranks_that_skip_all_blocks_but_the_first():
    """The first block needs no parameter in its backward; the other rank gathers there, and is not left alone."""
    intarsia.init()
    world = intarsia.world()
    mesh = intarsia.Mesh.parse("[dp=2]")
    torch.manual_seed(0)
    plain = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3)).double()
    net = copy.deepcopy(plain)
    sharding = intarsia.fully_shard(net, mesh=mesh, world=world)  # noqa: F841
    rows = torch.randn(4, 4, dtype=torch.float64).chunk(2)

    def loss_of(blocks, x, used):
        for number in used:
            x = blocks[number](x)
        return x.square().mean()

    for used in ([(0, 1, 2), (0, 1, 2)], [(0, 1, 2), (0,)], [(0,), (0, 2)], [(0,), (0,)], [(0, 1, 2), (0, 1)]):
        net.zero_grad()
        plain.zero_grad()
        x = intarsia.from_local(rows[world.rank()], "S(0)", mesh=mesh, world=world)
        loss_of(net, x, used[world.rank()]).backward()
        (sum(loss_of(plain, x, u) for x, u in zip(rows, used, strict=True)) / 2).backward()
        assert furthest(net, plain) < 1e-12, used


@on_ranks(2)
def test_accumulation_and_evaluation():
    intarsia.init()
    world = intarsia.world()
    net, plain, sharding = train("[dp=2]", world, steps=2)
    net.zero_grad()
    plain.zero_grad()
    for step, (tokens, targets) in enumerate(batches(5, 3)):
        x, y = (intarsia.distribute(t, "S(0)", mesh="[dp=2]") for t in (tokens, targets))
        reductions = sum(g.reductions for g in sharding.groups())
        if step < 2:
            with sharding.no_sync():
                mean_loss(net(x), y).backward()
            assert sum(g.reductions for g in sharding.groups()) == reductions
            assert not any(intarsia.full(p.grad).any() for p in net.parameters())  # zeros, until they are reduced
        else:
            mean_loss(net(x), y).backward()
        mean_loss(plain(tokens), targets).backward()
    assert furthest(net, plain) < 1e-12
    # Without zero_grad the next backward adds.
    mean_loss(net(x), y).backward()
    mean_loss(plain(tokens), targets).backward()
    assert furthest(net, plain) < 1e-12
    with torch.no_grad():
        for _ in range(2):
            assert (intarsia.full(net(x)) - plain(tokens)).abs().max() < 1e-12
        assert sharding.gathered() <= 2
        # A write shows, although what was gathered before is still there.
        net.head.weight.mul_(2)
        plain.head.weight.mul_(2)
        assert (intarsia.full(net(x)) - plain(tokens)).abs().max() < 1e-12
    sharding.release()
    assert sharding.gathered() == 0


@on_ranks(2)
def test_recomputation():
    from torch.utils.checkpoint import checkpoint

    intarsia.init()
    world = intarsia.world()
    torch.manual_seed(0)
    plain = nn.Sequential(*(Block(6) for _ in range(3))).double()
    net = copy.deepcopy(plain)
    sharding = intarsia.fully_shard(net, mesh="[dp=2]", world=world)
    for seed in range(3):
        x = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        for model, y in ((net, intarsia.distribute(x, "S(0)", mesh="[dp=2]")), (plain, x)):
            model.zero_grad()
            for block in model:
                y = checkpoint(block, y, use_reentrant=False)
            y.square().mean().backward()
        assert furthest(net, plain) < 1e-12
    assert sharding.most_gathered() <= 2


@on_ranks(2)
def test_mixed_precision():
    intarsia.init()
    world = intarsia.world()
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    net = copy.deepcopy(plain)
    intarsia.fully_shard(
        net, mesh="[dp=2]", world=world, param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32
    )
    low = copy.deepcopy(plain).bfloat16()
    x = torch.randn(4, 6)
    out = net(intarsia.distribute(x, "S(0)", mesh="[dp=2]"))
    assert out.dtype == torch.float32
    assert torch.equal(intarsia.full(out.detach()), low(x.bfloat16()).float())
    out.square().sum().backward()
    low(x.bfloat16()).float().square().sum().backward()
    for (name, p), q in zip(net.named_parameters(), low.parameters(), strict=True):
        assert p.dtype == p.grad.dtype == torch.float32
        # Two halves of the batch, each rounded to bfloat16 (2^-8), then added in float32.
        assert torch.allclose(intarsia.full(p.grad), q.grad.float(), rtol=2**-6, atol=2**-6 * q.grad.abs().max()), name


@on_ranks(2)
def test_views_of_parameters():
    """A weight in one piece for three projections, cut where it is used."""

    class Fused(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Parameter(torch.randn(9, 4))

        def forward(self, x):
            q, k, v = self.qkv.chunk(3)
            return (x @ q.t()) * (x @ k.t()) + F.linear(x, self.qkv[6:]) + x @ v.transpose(0, 1)

    intarsia.init()
    world = intarsia.world()
    torch.manual_seed(0)
    plain = Fused().double()
    net = copy.deepcopy(plain)
    intarsia.fully_shard(net, mesh="[dp=2]", world=world)
    x = torch.randn(4, 4, dtype=torch.float64)
    for _ in range(2):
        net.zero_grad()
        plain.zero_grad()
        net(intarsia.distribute(x, "S(0)", mesh="[dp=2]")).square().sum().backward()
        plain(x).square().sum().backward()
        assert furthest(net, plain) < 1e-12


@on_ranks(4)
def test_four_processes():
    intarsia.init()
    world = intarsia.world()
    for mesh in ("[dp=4]", "[rep=2,dp=2]", "[a=2,b=2]", "[dp=2,tp=2]"):
        train(mesh, world, **MESHES[mesh])


def test_copies_states_and_autocast():
    world = intarsia.lockstep_world(2)
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    net = copy.deepcopy(plain)
    intarsia.fully_shard(net, mesh="[dp=2]", world=world)
    x = torch.randn(4, 6)
    rows = intarsia.distribute(x, "[dp=2] S(0)", world=world)
    with torch.autocast("cpu", torch.bfloat16):
        net(rows).float().square().sum().backward()
        plain(x).float().square().sum().backward()
    for p, q in zip(net.parameters(), plain.parameters(), strict=True):
        # Two halves of the batch, each rounded to bfloat16 (2^-8).
        assert torch.allclose(intarsia.full(p.grad), q.grad, rtol=2**-6, atol=2**-6 * q.grad.abs().max().item())
    with torch.no_grad():
        other = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        net.load_state_dict(other.state_dict())
        assert torch.allclose(intarsia.full(net(rows)), other(x), atol=1e-6)
        copied = copy.deepcopy(net)  # stored alike, and gathered tensor by tensor
        assert torch.allclose(intarsia.full(copied(rows)), other(x), atol=1e-6)


def test_built_in_pieces():
    """Parameters on the meta device are made in pieces, with the values that one rank gives them."""
    values = []
    for ranks in (1, 2, 4):
        world = intarsia.lockstep_world(ranks)
        torch.manual_seed(3)
        with torch.device("meta"):
            net = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 7))
        intarsia.fully_shard(net, mesh=f"[dp={ranks}]", world=world)
        assert all("@dp" in intarsia.describe(p) for p in net.parameters())
        values.append([intarsia.full(p.detach()) for p in net.parameters()])
    for other in values[1:]:
        assert all(torch.equal(a, b) for a, b in zip(values[0], other, strict=True))


class Throws(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError("of the user")


def train_on_after_errors(mesh, world, **options):
    """An error in every step: in backward, with some groups reduced and with none, in forward, in a hook, in the
    optimizer."""

    def in_backward(model, x, y):
        model.blocks[1].register_forward_pre_hook(lambda part, args: (Throws.apply(args[0]),))
        mean_loss(model(x), y).backward()

    def in_last_backward(model, x, y):
        mean_loss(Throws.apply(model(x)), y).backward()

    def in_forward(model, x, y):
        model.blocks[1].register_forward_pre_hook(lambda part, args: 1 / 0)
        mean_loss(model(x), y).backward()

    def in_hook(model, x, y):
        loss = mean_loss(model(x), y)
        model.blocks[0].up.weight.register_hook(lambda grad: 1 / 0)
        loss.backward()

    def in_optimizer(model, x, y):
        mean_loss(model(x), y).backward()
        model.head.bias.grad = model.head.bias.grad.detach().reshape(1, -1)[:, :2]
        torch.optim.SGD(model.parameters(), lr=0.0, foreach=False).step()

    def left_behind(model):
        for part in model.modules():
            part._forward_pre_hooks.clear()
        model.blocks[0].up.weight._backward_hooks and model.blocks[0].up.weight._backward_hooks.clear()

    torch.manual_seed(0)
    plain = Net().double()
    net = copy.deepcopy(plain)
    sharding = intarsia.fully_shard(net, mesh=mesh, world=world, **options)
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (net, plain))
    wrong = [in_backward, in_forward, in_last_backward, in_hook, in_backward, in_last_backward]
    for fail, (tokens, targets) in zip(wrong, batches(4, len(wrong)), strict=True):
        x, y = (intarsia.distribute(t, "S(0)", mesh=mesh, world=world) for t in (tokens, targets))
        ours.zero_grad()
        theirs.zero_grad()
        try:
            fail(net, x, y)
            raise AssertionError(f"{fail.__name__} did not fail")
        except (RuntimeError, ZeroDivisionError):
            left_behind(net)
        if fail is in_forward:
            sharding.release()
        mean_loss(net(x), y).backward()
        mean_loss(plain(tokens), targets).backward()
        assert furthest(net, plain) < 1e-12, fail.__name__
        assert sharding.gathered() == 0
        ours.step()
        theirs.step()


def test_trains_on_after_errors_in_lockstep():
    train_on_after_errors("[dp=2]", intarsia.lockstep_world(2))
    train_on_after_errors("[dp=2]", intarsia.lockstep_world(2), keep_after_forward=True)
    train_on_after_errors("[dp=1]", intarsia.lockstep_world(1))


@on_ranks(2)
def test_trains_on_after_errors_on_processes():
    intarsia.init()
    train_on_after_errors("[dp=2]", intarsia.world())


@on_ranks(3)
def test_a_rank_that_failed_alone_is_named():
    intarsia.init(timeout=4)
    torch.manual_seed(0)
    net = Net().double()
    intarsia.fully_shard(net, mesh="[dp=3]")
    tokens, targets = (intarsia.distribute(t, "[dp=3] S(0)") for t in batches(1, 1)[0])
    mean_loss(net(tokens), targets).backward()
    if intarsia.world().rank() == 1:
        net.blocks[1].register_forward_pre_hook(lambda part, args: (Throws.apply(args[0]),))
        refuses(RuntimeError, "of the user", lambda: mean_loss(net(tokens), targets).backward())
        refuses(
            torch.distributed.DistError,
            "[backward] that of rank 1 ended with an error, but rank 0, 2 did not come",
            lambda: net(tokens),
        )
    else:
        refuses(torch.distributed.DistError, "rank 1 never came to call", lambda: mean_loss(net(tokens), targets).backward())


def test_zeros_that_autograd_fills_in_are_no_plain_tensors():
    class Two(torch.autograd.Function):
        @staticmethod
        def forward(ctx, w):
            return w.clone(), w * 2

        @staticmethod
        def backward(ctx, first, second):
            return first + second

    uses = [lambda w: Two.apply(w)[0], lambda w: w.unbind(0)[1], lambda w: w.split(2)[0], lambda w: w.chunk(2, 1)[1]]
    for use in uses:
        with intarsia.lockstep("[dp=2]"):
            intarsia.set_plain_tensors("refused")
            for way in (intarsia.fully_shard, lambda m: intarsia.parallelize(m, intarsia.mesh(), {"weight": "S(0)"})):
                net = nn.Linear(4, 4, bias=False)
                weight = net.weight.detach().clone().requires_grad_()
                way(net)
                use(net.weight).square().sum().backward()
                use(weight).square().sum().backward()
                assert torch.allclose(intarsia.full(net.weight.grad), weight.grad)


def test_refusals():
    world = intarsia.lockstep_world(4)

    def net():
        return nn.Linear(4, 4)

    refuses(ValueError, "is named twice", lambda: intarsia.fully_shard(net(), mesh="[dp=4]", world=world, replicate="dp"))
    refuses(ValueError, "fits none of the modules", lambda: intarsia.fully_shard(net(), mesh="[dp=4]", world=world, blocks=["layers.*"]))
    refuses(
        ValueError,
        "it must be R there",
        lambda: intarsia.fully_shard(net(), mesh="[dp=4]", world=world, layouts={"weight": "S(0)"}),
    )
    graph = net()
    intarsia.fully_shard(graph, mesh="[dp=4]", world=world)
    loss = graph(intarsia.distribute(torch.randn(4, 4), "[dp=4] S(0)", world=world)).square().sum()
    refuses(NotImplementedError, "create_graph", lambda: loss.backward(create_graph=True))
    refuses(ValueError, "has 1 dimensions", lambda: intarsia.fully_shard(net(), mesh="[dp=4]", world=world, dims={"bias": 1}))
    twice = net()
    intarsia.fully_shard(twice, mesh="[dp=4]", world=world)
    refuses(ValueError, "sharded already", lambda: intarsia.fully_shard(twice, mesh="[dp=4]", world=world))


if __name__ == "__main__":
    run(globals())
