"""Plans of tensor parallelism: layouts, what flows between modules, what a block costs, and parallel losses."""

import pathlib
import sys

import intarsia as it
import torch
import torch.nn.functional as F
from _harness import on_ranks, refuses, run
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "llama"))
import llama  # noqa: E402

CONFIG = llama.Config(dim=16, layers=1, heads=4, key_value_heads=2, hidden=22, vocabulary=11)


def plain_layer(seed=0):
    torch.manual_seed(seed)
    layer = llama.Layer(CONFIG, 6).double()
    layer.attention.rotary.reset_parameters()
    return layer


class OneLayer(nn.Module):
    """A layer with a name, which plans go by."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([plain_layer()])

    def forward(self, x):
        return self.layers[0](x)


def layer_plan(sequence_parallel):
    """The part of llama_plan that is about layers."""
    whole = it.llama_plan(sequence_parallel=sequence_parallel, heads=4, key_value_heads=2)
    outside = ("embed", "head")
    return it.TensorParallelPlan([(p, s) for p, s in whole.modules if not p.startswith(outside)])


def test_a_layer_costs_what_the_textbook_says():
    x = torch.randn(4, 6, 16, dtype=torch.float64)
    weight = torch.randn(4, 6, 16, dtype=torch.float64)
    for sequence in (False, True):
        plain = OneLayer()
        px = x.clone().requires_grad_()
        (plain(px) * weight).sum().backward()
        between = "S(1)" if sequence else "R"
        with it.lockstep("[tp=2]"):
            model = it.parallelize(OneLayer(), it.mesh(), layer_plan(sequence))
            d = it.distribute(x, between).requires_grad_()
            forward = it.Budget()
            out = model(d)
            forward.expect("2 P->S, 2 S->R" if sequence else "2 P->R")
            assert it.layout_of(out) == it.to_layout(between), it.layout_of(out)
            loss = (out * it.distribute(weight, between)).sum()
            backward = it.Budget()
            loss.backward()
            # With a cut sequence each of the two norms also sums its gradient.
            backward.expect("2 P->R, 2 P->S, 2 S->R" if sequence else "2 P->R")
            assert not any(entry.implicit for entry in it.bill().entries), f"{it.bill()}"
            torch.testing.assert_close(it.full(d.grad), px.grad)
            for (name, ours), theirs in zip(model.named_parameters(), plain.parameters()):
                torch.testing.assert_close(it.full(ours.grad), theirs.grad, msg=lambda m: f"{name}: {m}")


class Block(nn.Module):
    """Linear layers that say themselves how their input and output shall lie."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.up = nn.Linear(16, 24, dtype=torch.float64)
        self.down = nn.Linear(24, 16, dtype=torch.float64)

    def forward(self, x):
        return self.down(F.silu(self.up(x)))


@on_ranks(2)
def test_linear_modules_of_a_plan_with_chunks():
    mesh = it.init("[tp=2]")
    plain = Block()
    x = torch.randn(4, 8, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    px = x.clone().requires_grad_()
    plain(px).square().sum().backward()
    for chunks in (1, 2, 4, 0):
        plan = it.TensorParallelPlan(
            [("up", it.column(input="R")), ("down", it.row(output="S(1)"))], chunks=chunks
        )
        model = it.parallelize(Block(), mesh, plan)
        d = it.distribute(x, "S(1)").requires_grad_()
        forward = it.Budget()
        out = model(d)
        sent = f"{chunks} P->S, {chunks} S->R" if chunks > 0 else forward.spent()
        forward.expect(sent)
        assert it.layout_of(out) == it.to_layout("S(1)")
        backward = it.Budget()
        out.square().sum().backward()
        backward.expect(sent)
        torch.testing.assert_close(it.full(d.grad), px.grad)
        for (name, ours), theirs in zip(model.named_parameters(), plain.parameters()):
            torch.testing.assert_close(it.full(ours.grad), theirs.grad, msg=lambda m: f"{name}: {m}")


@on_ranks(2)
def test_linear_layers_with_what_enters_and_leaves_a_module():
    it.init("[tp=2]")
    plan = it.llama_plan(sequence_parallel=True, chunks=2)
    a, b, c = (nn.Linear(16, 16, bias=False, dtype=torch.float64) for _ in range(3))
    for linear in (a, b, c):
        nn.init.orthogonal_(linear.weight, generator=torch.Generator().manual_seed(4))
    x = torch.randn(4, 8, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def run(x):
        y, z = it.placed_linears(x, plan, "attention", [a, b])
        return it.placed_linear(y * z, plan, "wo", c)

    plain = run(x)
    torch.testing.assert_close(plain, c(a(x) * b(x)), rtol=0, atol=0)
    for linear, layout in ((a, "S(0)"), (b, "S(0)"), (c, "S(1)")):
        linear.weight = nn.Parameter(it.distribute(linear.weight.detach(), layout))
    budget = it.Budget()
    ours = run(it.distribute(x, "S(1)"))
    budget.expect("2 P->S, 2 S->R")
    torch.testing.assert_close(it.full(ours), plain)
    direct = it.scattered_linear(it.gathered_linears(it.distribute(x, "S(1)"), [a], "tp", 2)[0], c, "tp", 1, 2)
    torch.testing.assert_close(it.full(direct), F.linear(F.linear(x, it.full(a.weight)), it.full(c.weight)))
    refuses(ValueError, "no -2 chunks", lambda: it.gathered_linears(it.distribute(x, "S(1)"), [a], "tp", -2))


def test_a_layer_runs_where_nothing_may_be_sent_unasked():
    with it.lockstep("[dp=2,tp=2]"), it.CommunicationScope("explicit_only"):
        for sequence in (False, True):
            model = it.parallelize(OneLayer(), it.mesh(), layer_plan(sequence))
            x = torch.randn(4, 6, 16, dtype=torch.float64)
            d = it.distribute(x, "S(0),S(1)" if sequence else "S(0),R").requires_grad_()
            model(d).square().sum().backward()


@on_ranks(4)
def test_parallel_loss_with_weights_and_ignored_tokens():
    mesh = it.init("[dp=2,tp=2]")
    ignored = -100
    g = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, 11, (4, 6), generator=g)
    targets = torch.randint(0, 11, (4, 6), generator=g)
    targets[0, :4] = ignored  # the rows of one rank have fewer that count
    weight = torch.rand(11, generator=g, dtype=torch.float64)

    def model():
        torch.manual_seed(1)
        made = nn.ModuleDict({"embed": nn.Embedding(11, 8), "head": nn.Linear(8, 11, bias=False)})
        return made.double()

    def loss_of(m, tokens, targets, weight):
        logits = m["head"](m["embed"](tokens)).flatten(0, 1)
        return logits, F.cross_entropy(logits, targets.flatten(), weight, ignore_index=ignored)

    plain = model()
    _, expected = loss_of(plain, tokens, targets, weight)
    expected.backward()
    plan = it.TensorParallelPlan([("embed", it.vocabulary(output="R")), ("head", it.column(input="R"))])
    ours = it.parallelize(model(), mesh, plan)
    it.clear_bill()
    logits, loss = loss_of(
        ours, it.distribute(tokens, "S(0),R"), it.distribute(targets, "S(0),R"), it.distribute(weight, "R,R")
    )
    assert str(it.layout_of(logits)) == f"{mesh} S(0),S(1)"
    # Rows of the table and numbers of each token are summed; no piece of the logits goes anywhere.
    moved = it.bill().entries
    assert moved and all(e.transition == "P->R" and "11" not in e.tensor for e in moved), f"{it.bill()}"
    torch.testing.assert_close(it.full(loss), expected)
    loss.backward()
    for name in ("embed", "head"):
        torch.testing.assert_close(it.full(ours[name].weight.grad), plain[name].weight.grad)


def test_hooks_place_what_is_passed_by_name_and_what_comes_in_tuples():
    class Inner(nn.Module):
        def forward(self, hidden_states=None, mask=None):
            self.seen = it.layout_of(hidden_states)
            return hidden_states * 2, mask

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            return self.inner(mask=3, hidden_states=x)

    with it.lockstep("[tp=2]"):
        style = it.ModuleStyle([], it.Placement.shard(0), it.Placement.shard(1))
        model = it.parallelize(Outer(), it.mesh(), it.TensorParallelPlan([("inner", style)]))
        out, mask = model(it.distribute(torch.ones(4, 4), "R"))
        assert mask == 3 and str(model.inner.seen) == "[tp=2] S(0)" and str(it.layout_of(out)) == "[tp=2] S(1)"


def test_a_plan_that_does_not_fit_changes_nothing():
    with it.lockstep("[tp=2]"):
        model = OneLayer()
        wrong = it.TensorParallelPlan([("layers.*.attention.wq", it.column()), ("*.w4", it.row())])
        refuses(ValueError, "'*.w4' fits no module; near names are", lambda: it.parallelize(model, it.mesh(), wrong))
        assert not any(it.has_layout(p) for p in model.parameters())
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
        plan = it.llama_plan(heads=4, key_value_heads=1)
        refuses(ValueError, "1 heads, which the 2 ranks of tp", lambda: it.parallelize(model, it.mesh(), plan))


if __name__ == "__main__":
    run(globals())
