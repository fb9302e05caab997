"""Modules made distributed: all or nothing, with the optimizers that know them, and never with raw memory."""

import copy
import gc

import torch
from _harness import on_ranks, refuses, run
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

import intarsia


class Net(nn.Module):
    """A tied weight, a buffer, and lengths that 2 does not divide."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.norm = nn.BatchNorm1d(5)
        self.head = nn.Linear(5, 7)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.norm(self.embed(tokens)))


def by_parallelize(module):
    intarsia.parallelize(module, intarsia.mesh(), {"*weight": "S(0)"})


WAYS = {"parallelize": by_parallelize, "fully_shard": intarsia.fully_shard}


def described(module):
    return {name: intarsia.describe(t) for name, t in module.state_dict(keep_vars=True).items()}


# ---- optimizers ---------------------------------------------------------------------------------


def train(module, optimizer, tokens):
    for _ in range(3):
        optimizer.zero_grad()
        module(tokens).square().mean().backward()
        optimizer.step()


def test_an_optimizer_that_was_made_before_goes_on():
    tokens = torch.arange(8) % 7
    for way in WAYS.values():
        torch.manual_seed(0)
        plain = Net().double()
        module = copy.deepcopy(plain)
        groups = [{"params": [module.embed.weight], "lr": 0.1}, {"params": [module.head.bias, *module.norm.parameters()]}]
        before = torch.optim.AdamW(groups, lr=0.01, eps=1e-3)
        known = module.head.bias
        known.tag = "mine"
        with intarsia.lockstep("[dp=2]"):
            way(module)
            assert module.head.bias is known and known.tag == "mine" and intarsia.has_layout(known)
            assert module.head.weight is module.embed.weight
            train(module, before, intarsia.distribute(tokens, "S(0)"))
            intarsia.check_optimizer(before, module)
            theirs = torch.optim.AdamW(
                [{"params": [plain.embed.weight], "lr": 0.1}, {"params": [plain.head.bias, *plain.norm.parameters()]}],
                lr=0.01,
                eps=1e-3,
            )
            train(plain, theirs, tokens)
            for name, value in plain.state_dict().items():
                assert torch.allclose(intarsia.full(module.state_dict()[name]), value, atol=1e-12), name


def test_parameters_that_cannot_keep_their_identity_are_refused_by_optimizers():
    for way in WAYS.values():
        module = nn.Linear(4, 4)
        before, graph = module.weight, module.weight.square()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        with intarsia.lockstep("[dp=2]"):
            way(module)
            assert before is not module.weight and intarsia.has_layout(module.weight)
            module(intarsia.distribute(torch.ones(4, 4), "S(0)")).sum().backward()
            refuses(ValueError, "[optimizer] it has 'weight', f32[4, 4] plain, as it was before", optimizer.step)
            refuses(
                ValueError,
                "the optimizer's parameter 0 of group 0 (f32[4, 4] plain) is none of the module's",
                lambda: intarsia.check_optimizer(optimizer, module),
            )
            torch.optim.SGD(module.parameters(), lr=0.1).step()
        graph.sum().backward()
        assert torch.equal(before.grad, 2 * before)
        torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1).step()


def test_recurrent_modules_use_their_new_weights():
    for way in (lambda m: intarsia.parallelize(m, intarsia.mesh(), {}), intarsia.fully_shard):
        for held in (False, True):
            torch.manual_seed(0)
            plain = nn.LSTM(3, 4).double()
            module = copy.deepcopy(plain)
            graph = [p.square() for p in module.parameters()] if held else None
            x = torch.randn(5, 2, 3, dtype=torch.float64)
            plain(x)[0].sum().backward()
            with intarsia.lockstep("[dp=2]"):
                way(module)
                module(intarsia.distribute(x, "S(1)"))[0].sum().backward()
                for (name, p), q in zip(module.named_parameters(), plain.parameters(), strict=True):
                    assert torch.allclose(intarsia.full(p.grad), q.grad), name
            del graph


def test_hooks_of_parameters_stay():
    for way in WAYS.values():
        module = nn.Linear(4, 4, bias=False).double()
        module.weight.register_hook(lambda grad: grad * 3)
        with intarsia.lockstep("[dp=2]"):
            way(module)
            module(intarsia.distribute(torch.ones(4, 4, dtype=torch.float64), "S(0)")).sum().backward()
            assert torch.equal(intarsia.full(module.weight.grad), torch.full((4, 4), 12.0, dtype=torch.float64))


# ---- values on the meta device ---------------------------------------------------------------------


class Scale(nn.Module):
    """Sets nothing by itself."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(5))
        self.register_buffer("steps", torch.arange(3), persistent=False)
        self.inner = nn.Linear(5, 5)


class Owner(Scale):
    """Sets what is inside, in the ways that one meets."""

    def _init_weights(self, part):
        if isinstance(part, Owner):
            part.weight.data.fill_(2)
            part.steps = torch.arange(3)
        if isinstance(part, nn.Linear):
            part.weight[:2].detach().fill_(4)
            part.weight.data[2:].fill_(5)


class Whole(Scale):
    """Sets all at once."""

    def _init_weights(self):
        for tensor in [*self.parameters(), self.steps]:
            tensor.fill_(6)


def on_meta(make):
    with torch.device("meta"):
        return make()


def test_what_nothing_sets_is_refused():
    for name, way in WAYS.items():
        with intarsia.lockstep("[dp=2]"):
            module = on_meta(lambda: nn.Sequential(Scale(), nn.LayerNorm(4)))
            tensors = dict(module.named_parameters())
            refuses(
                ValueError,
                f"[{name}] the module is on the meta device, and nothing sets the values of '0.weight', '0.steps': no",
                lambda: way(module),
            )
            assert all(p is tensors[key] and p.is_meta for key, p in module.named_parameters())
            assert module[0].steps.is_meta and not intarsia.has_layout(module[0].steps)


def test_models_set_their_own_values():
    with intarsia.lockstep("[dp=2]"):
        for way in WAYS.values():
            module = on_meta(Owner)
            way(module)
            assert torch.equal(intarsia.full(module.weight.detach()), torch.full((5,), 2.0))
            assert torch.equal(intarsia.full(module.steps), torch.arange(3))
            want = torch.tensor([4.0, 4, 5, 5, 5]).view(5, 1).expand(5, 5)
            assert torch.equal(intarsia.full(module.inner.weight.detach()), want)
            assert intarsia.full(module.inner.bias.detach()).abs().max() <= 5**-0.5
            module = on_meta(Whole)
            way(module)
            assert all(intarsia.full(t.detach()).eq(6).all() for t in [*module.parameters(), module.steps])


def test_a_function_sets_what_modules_do_not():
    def init(part):
        if isinstance(part, Scale):
            part.weight.fill_(7)
            part.steps.copy_(torch.arange(3))

    with intarsia.lockstep("[dp=2]"):
        module = on_meta(Scale)
        intarsia.fully_shard(module, init=init)
        assert torch.equal(intarsia.full(module.weight.detach()), torch.full((5,), 7.0))
        module = on_meta(Scale)
        intarsia.parallelize(module, intarsia.mesh(), {}, init=init)
        assert torch.equal(intarsia.full(module.steps), torch.arange(3))


def test_an_error_while_values_are_set_leaves_the_module_on_meta():
    def init(part):
        raise RuntimeError("of the user")

    for way in (intarsia.fully_shard, lambda m, init: intarsia.parallelize(m, intarsia.mesh(), {}, init=init)):
        with intarsia.lockstep("[dp=2]"):
            module = on_meta(lambda: nn.Linear(4, 4))
            refuses(RuntimeError, "of the user", lambda: way(module, init=init))
            assert module.weight.is_meta and not intarsia.has_layout(module.weight)
            intarsia.fully_shard(module)
            assert intarsia.full(module.weight.detach()).abs().max() <= 0.5


def test_modules_of_torch_are_set_on_meta():
    for make in (
        lambda: nn.MultiheadAttention(8, 2),
        lambda: nn.Transformer(8, 2, 1, 1, 16),
        lambda: nn.LSTM(4, 4),
        lambda: nn.BatchNorm2d(3),
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.PReLU(), nn.Bilinear(2, 3, 4)),
    ):
        with intarsia.lockstep("[dp=2]"):
            module, plain = on_meta(make), make()
            intarsia.fully_shard(module)
            for name, value in plain.state_dict().items():
                got = intarsia.full(module.state_dict()[name])
                assert got.shape == value.shape and got.abs().max() <= 3 * value.abs().max() + 1, name


# ---- all or nothing --------------------------------------------------------------------------------


def test_where_it_refuses_nothing_is_changed():
    with intarsia.lockstep("[dp=2,tp=2]"):
        mesh = intarsia.mesh()
        plans = {
            "fits no parameter or buffer": {"norm.*": "R,R", "heads.weight": "S(0),R"},
            "[{}] 'head.bias', f32[7] plain": {"embed.*": "S(0),R", "head.bias": "S(1),R"},
            "[{}] 'norm.running_mean', f32[5] plain": {"norm.running_mean": "S(0)"},
            "fits no module": intarsia.TensorParallelPlan([("head", intarsia.column()), ("tail", intarsia.row())]),
        }
        for text, layouts in plans.items():
            for name in WAYS:
                module = Net()
                before, tensors = described(module), dict(module.named_parameters())
                with_plan = {"parallelize": lambda m: intarsia.parallelize(m, mesh, layouts)}
                way = with_plan.get(name, lambda m: intarsia.fully_shard(m, layouts=layouts))
                refuses(ValueError, text.format(name), lambda: way(module))
                assert described(module) == before
                assert all(p is tensors[key] for key, p in module.named_parameters())
                assert not any(part._forward_pre_hooks or part._forward_hooks for part in module.modules())
        for options, text in (
            ({"shard": "fsdp"}, "fsdp"),
            ({"shard": "dp", "replicate": "dp"}, "is named twice"),
            ({"blocks": ["layers.*"]}, "fits none of the modules"),
            ({"dims": {"head.bias": 1}}, "has 1 dimensions"),
            ({"layouts": {"head.bias": "S(0),R"}}, "it must be R there"),
        ):
            module = Net()
            before = described(module)
            refuses(ValueError, text, lambda: intarsia.fully_shard(module, **options))
            assert described(module) == before
        module = Net()
        intarsia.fully_shard(module.norm)
        before = described(module)
        refuses(ValueError, "parameter 'norm.weight' is sharded already", lambda: intarsia.fully_shard(module))
        assert described(module) == before


def test_tensors_are_not_put_in_the_place_of_distributed_ones():
    for way in WAYS.values():
        module = Net()
        state = module.state_dict()
        with intarsia.lockstep("[dp=2]"):
            way(module)
            before = described(module)
            around = nn.ModuleDict({"net": module})
            for target, given in ((module, state), (around, {f"net.{key}": value for key, value in state.items()})):
                refuses(
                    ValueError,
                    "embed.weight', f32[7@dp, 5] on [dp=2]; leave it out: module.load_state_dict(state) copies",
                    lambda: target.load_state_dict(given, assign=True),
                )
            assert described(module) == before
            module.load_state_dict(state)
        fresh = Net()
        fresh.load_state_dict(state, assign=True)
        assert fresh.head.bias.data_ptr() == state["head.bias"].data_ptr()


# ---- what stays ------------------------------------------------------------------------------------


def memory_of(module):
    return [
        StorageWeakRef(piece.untyped_storage())
        for p in module.parameters()
        for piece in intarsia.locals(p.detach())
    ]


def test_dropped_models_are_freed():
    for way in WAYS.values():
        for what in ("nothing", "a step", "forward only", "an error", "the world is closed"):
            with intarsia.lockstep("[dp=2]"):
                module = Net()
                way(module)
                memory = memory_of(module)
                x = intarsia.distribute(torch.arange(8) % 7, "S(0)")
                optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
                if what != "nothing":
                    module(x).sum().backward()
                    optimizer.step()
                if what == "forward only":
                    loss = module(x).sum()
                    del loss
                if what == "an error":
                    module(x).register_hook(lambda grad: 1 / 0)
                if what != "the world is closed":
                    del module, optimizer
                    gc.collect()
                    assert all(m.expired() for m in memory), what
            if what == "the world is closed":
                del module, optimizer
                gc.collect()
                assert all(m.expired() for m in memory), what


@on_ranks(2)
def test_two_processes():
    intarsia.init({"dp": 2})
    torch.manual_seed(0)
    module = on_meta(Owner)
    intarsia.fully_shard(module)
    assert torch.equal(intarsia.full(module.weight.detach()), torch.full((5,), 2.0))
    # One rank has no piece of what nothing sets: it refuses as the other does.
    refuses(ValueError, "nothing sets the values of 'weight'", lambda: intarsia.fully_shard(on_meta(lambda: Small())))
    module = Net()
    intarsia.fully_shard(module)
    memory = memory_of(module)
    x = intarsia.distribute(torch.arange(8) % 7, "S(0)")
    for _ in range(2):
        module(x).sum().backward()
    loss = module(x).sum()
    del module, loss
    gc.collect()
    assert all(m.expired() for m in memory)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))


if __name__ == "__main__":
    run(globals())
