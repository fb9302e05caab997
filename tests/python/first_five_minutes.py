"""What people try in their first five minutes with distributed tensors, each against plain torch.

    python tests/python/first_five_minutes.py [-n RANKS | --lockstep RANKS]

Every item runs on replicated, sharded, unevenly sharded and partial tensors, on processes over Gloo or in one
process that hosts all ranks. Prints a line for each item with what does not hold, and how many hold on the last line.
"""

import argparse
import copy
import os
import pathlib
import sys
import traceback
import warnings

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "launch"))
import launch  # noqa: E402
from _harness import refuses  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

WORLD_SECONDS = 15
EVEN, UNEVEN = (6, 12, 12), (5, 7, 14)  # on 2 and on 3 ranks; heads of 2 fit the last one
KINDS = {
    "Replicate": (EVEN, ("R",)),
    "Shard": (EVEN, ("S(0)", "S(1)")),
    "uneven Shard": (UNEVEN, ("S(0)", "S(1)")),
    "Partial": (EVEN, ("P(sum)",)),
}
ITEMS = []
IN_LOCKSTEP = {}  # by the name of an item that needs several processes: what stands for it


def item(name, in_lockstep=None):
    """Adds a check, a function of a Case, under a name of the table. `in_lockstep`: what it checks there instead."""

    def add(check):
        ITEMS.append((name, check))
        if in_lockstep:
            IN_LOCKSTEP[name] = in_lockstep
        return check

    return add


# --- one case ------------------------------------------------------------------------------


class Case:
    """A layout, with tensors in it and modules beside them."""

    def __init__(self, kind, layout):
        self.kind, self.layout, self.sizes = kind, layout, KINDS[kind][0]
        self.world = it.world()

    def whole(self, *sizes, seed=0):
        return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))

    def lay(self, tensor):
        """The tensor in this case's layout. The parts of a partial one are unlike it."""
        if self.layout != "P(sum)":
            return it.distribute(tensor, self.layout)
        hosted, size = self.world.hosted(), self.world.size()
        parts = [2 * tensor if rank == 0 else -tensor / (size - 1) for rank in hosted]
        return it.from_locals(parts, "P(sum)", shape=tuple(tensor.shape))

    def pair(self, dims=2, seed=0):
        """A plain leaf, and the same values distributed."""
        tensor = self.whole(*self.sizes[:dims], seed=seed)
        return tensor.requires_grad_(), self.lay(tensor.detach()).requires_grad_()

    def modules(self, module):
        """A plain module, and one with the same values distributed: weights cut where the case cuts."""
        cut = {"*weight*": "S(0)"} if self.layout.startswith("S") else {}
        return module, it.parallelize(copy.deepcopy(module), it.mesh(), cut)


def is_close(expected, got, exact=False, what="value"):
    got = it.full(got.detach()) if it.has_layout(got) else got.detach()
    if exact:
        assert torch.equal(expected.detach(), got), f"{what} is not the same to the last bit"
    loose = expected.dtype == torch.bfloat16
    torch.testing.assert_close(
        got, expected.detach(), rtol=2e-2 if loose else 1e-5, atol=2e-2 if loose else 1e-5, msg=lambda m: f"{what}: {m}"
    )


def weighted(outputs):
    """A number that depends on each element of each output in its own way."""
    outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    generator = torch.Generator().manual_seed(99)
    return sum((o * torch.randn(o.shape, generator=generator)).sum() for o in outputs)


def same_forward_and_backward(case, function, dims=2, exact=False):
    """Outputs of a function and the gradient of its argument are those of plain torch."""
    plain, ours = case.pair(dims)
    expected, got = function(plain), function(ours)
    for a, b in zip(*(o if isinstance(o, (tuple, list)) else (o,) for o in (expected, got)), strict=True):
        assert it.has_layout(b), "the result is plain"
        is_close(a, b, exact)
    weighted(expected).backward()
    weighted(got).backward()
    is_close(plain.grad, ours.grad, exact, "gradient")


def same_module(case, module, call, dims=3):
    """Outputs of a module, and the gradients of its argument and of its parameters, are those of plain torch."""
    plain, ours = case.pair(dims)
    theirs, mine = case.modules(module)
    expected, got = call(theirs, plain), call(mine, ours)
    for a, b in zip(expected, got, strict=True):
        is_close(a, b)
    weighted(expected).backward()
    weighted(got).backward()
    is_close(plain.grad, ours.grad, what="gradient")
    for (name, a), b in zip(theirs.named_parameters(), mine.parameters(), strict=True):
        is_close(a.grad, b.grad, what=f"gradient of {name}")


# --- printing and copying ------------------------------------------------------------------


@item("print and repr on one rank only", in_lockstep="print and repr of all ranks' pieces")
def _(case):
    plain, ours = case.pair()
    double, parameter = ours * 2, nn.Parameter(ours.detach())
    if case.world.size() - 1 in case.world.hosted():
        with it.Budget(""):
            for tensor in (ours, double, parameter):
                assert it.describe(tensor) in repr(tensor)
                for rank, piece in zip(case.world.hosted(), it.locals(tensor.detach()), strict=True):
                    assert repr(piece) in repr(tensor) and f"rank {rank} holds" in repr(tensor)
                assert str(tensor) == repr(tensor) == f"{tensor}"
    is_close(2 * plain, double)


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear, self.norm = nn.Linear(width, 8), nn.BatchNorm1d(8)
        self.register_buffer("scale", torch.linspace(1, 2, 8))

    def forward(self, x):
        return self.norm(self.linear(x)) * self.scale


@item("deepcopy of a model with buffers")
def _(case):
    plain, ours = case.pair()
    torch.manual_seed(0)
    theirs, mine = case.modules(Net(case.sizes[1]))
    if case.layout == "P(sum)":  # a partial buffer too
        theirs.register_buffer("shift", case.whole(8))
        mine.register_buffer("shift", case.lay(case.whole(8)))
    before = {name: it.full(t).clone() for name, t in mine.state_dict().items()}
    their_copy, my_copy = copy.deepcopy(theirs), copy.deepcopy(mine)
    for name, value in mine.state_dict().items():
        assert it.layout_of(my_copy.state_dict()[name]) == it.layout_of(value), name
    for module, x in ((their_copy, plain), (my_copy, ours)):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            weighted(module(x)).backward()
            optimizer.step()
    for name, value in their_copy.state_dict().items():
        is_close(value, my_copy.state_dict()[name], what=name)
    for name, value in mine.state_dict().items():
        assert torch.equal(it.full(value), before[name]), f"{name} of the original changed"


# --- autocast ------------------------------------------------------------------------------


@item("autocast, forward and backward")
def _(case):
    plain, ours = case.pair()
    weight = case.whole(case.sizes[1], 8, seed=1)
    theirs, mine = weight.clone().requires_grad_(), it.distribute(weight, "R").requires_grad_()
    outputs = []
    for x, w in ((plain, theirs), (ours, mine)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
            assert y.dtype == torch.bfloat16
            loss = y.float().square().sum()
        loss.backward()
        outputs.append(y)
    # Rows are independent of each other; S(1) cuts the sum over columns, and S(0) the one of the weight's gradient.
    whole_rows = case.layout in ("R", "S(0)")
    is_close(*outputs, exact=whole_rows)
    is_close(plain.grad, ours.grad, whole_rows, "gradient of x") if whole_rows else near(plain.grad, ours.grad)
    is_close(theirs.grad, mine.grad, True, "gradient of w") if case.layout == "R" else near(theirs.grad, mine.grad)


def near(expected, got):
    """Equal but for rounding to bfloat16, which has 8 bits."""
    error = (it.full(got.detach()) - expected).abs().max() / expected.abs().max()
    assert error < 2**-6, f"a gradient is off by {error:.2g} of the largest"


# --- in place ------------------------------------------------------------------------------


def in_place(name, write):
    """An item that writes into a view, first of a tensor without gradients, then of a result."""

    def check(case):
        plain, ours = case.whole(*case.sizes[:2]), case.lay(case.whole(*case.sizes[:2]))
        for x in (plain, ours):
            write(x)
        is_close(plain, ours)

        def on_result(x):
            y = x * 1.5
            write(y)
            return y.square()

        same_forward_and_backward(case, on_result)

    item(name)(check)


def add_to_column(x):
    x[:, 0] += 1


def write_to_rows(x):
    x[1:4, 2:] = 0


in_place("x[:, 0] += 1", add_to_column)
in_place("x[1:4, 2:] = 0", write_to_rows)
in_place("x.select(0, 1).mul_(3)", lambda x: x.select(0, 1).mul_(3))
in_place("x[1:4].add_(2)", lambda x: x[1:4].add_(2))
in_place("x[::2, 1:].sub_(1)", lambda x: x[::2, 1:].sub_(1))
in_place("x.t().mul_(column)", lambda x: x.t().mul_(torch.arange(1.0, x.shape[0] + 1)))
in_place("x.narrow(1, 2, 3).exp_()", lambda x: x.narrow(1, 2, 3).exp_())


def chunked(name, write):
    """Writes into what chunk gives. Of a result with gradients torch refuses that, and so must we."""

    def check(case):
        plain, ours = case.whole(*case.sizes[:2]), case.lay(case.whole(*case.sizes[:2]))
        for x in (plain, ours):
            write(x)
        is_close(plain, ours)
        for leaf in case.pair():
            refuses(RuntimeError, "returns multiple views", lambda leaf=leaf: write(leaf * 1.5))

        def on_detached(x):
            y = (x * 1.5).detach()
            write(y)
            return x * y

        same_forward_and_backward(case, on_detached)

    item(name)(check)


chunked("x.chunk(2)[0].mul_(2)", lambda x: x.chunk(2)[0].mul_(2))
chunked("x.chunk(2, 1)[1].clamp_(min=0)", lambda x: x.chunk(2, 1)[1].clamp_(min=0))


# --- one of several outputs ----------------------------------------------------------------


def one_output(name, function):
    item(f"{name} backward, one output used")(lambda case: same_forward_and_backward(case, function))


one_output("max(dim)", lambda x: x.max(1)[0])
one_output("max(other dim)", lambda x: x.max(0)[0])
one_output("topk", lambda x: x.topk(2, 1)[0])
one_output("sort", lambda x: x.sort(0)[0])
one_output("chunk", lambda x: x.chunk(3, 0)[1])
one_output("split", lambda x: x.split([2, x.shape[1] - 2], 1)[1])
one_output("unbind", lambda x: x.unbind(0)[3])


# --- numbers and plain tensors -------------------------------------------------------------


@item("scalar - tensor, scalar / tensor")
def _(case):
    same_forward_and_backward(case, lambda x: 2 - x, exact=case.layout != "P(sum)")
    same_forward_and_backward(case, lambda x: 1 / (x.square() + 1))
    same_forward_and_backward(case, lambda x: torch.tensor(2.0) - x)


@item("item(), float(), bool() of partial numbers")
def _(case):
    plain, ours = case.pair()
    for reduce in (torch.sum, torch.mean, lambda x: x.square().sum(), lambda x: x.sum() + 1):
        expected, got = reduce(plain).item(), reduce(ours)
        assert abs(got.item() - expected) < 1e-4 * max(1, abs(expected)), f"item() is {got.item()}, not {expected}"
        assert float(got) == got.item() and bool(got > 0) == (expected > 0)
    assert ours[1, 2].item() == plain[1, 2].item()


@item("a mask as a plain tensor")
def _(case):
    rows, columns = case.sizes[:2]
    causal = torch.ones(rows, columns, dtype=torch.bool).tril()
    additive = torch.zeros(rows, columns).masked_fill(~causal, float("-inf"))
    same_forward_and_backward(case, lambda x: x.masked_fill(~causal, float("-inf")).softmax(-1))
    same_forward_and_backward(case, lambda x: (x + additive).softmax(-1))
    same_forward_and_backward(case, lambda x: torch.where(causal, x, 0.0))
    same_forward_and_backward(case, lambda x: x * causal[0])


@item("a mask for scaled_dot_product_attention")
def _(case):
    keep = torch.ones(case.sizes[1], case.sizes[1], dtype=torch.bool).tril()

    def attend(x):
        heads = x.unflatten(-1, (2, -1)).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(heads, heads, heads * 2, attn_mask=keep)

    same_forward_and_backward(case, attend, dims=3)
    same_forward_and_backward(
        case, lambda x: nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True), dims=3
    )


@item("a rotary table as plain tensors")
def _(case):
    length, width = case.sizes[1:]
    angles = torch.arange(length)[:, None] * 0.1 ** torch.arange(width // 2)
    cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)

    def rotate(x):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    def rotate_complex(x):
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)

    same_forward_and_backward(case, rotate, dims=3)
    same_forward_and_backward(case, rotate_complex, dims=3)


@item("plain tensors that are alike pass the check")
def _(case):
    plain, ours = case.pair()
    alike = case.whole(case.sizes[1], seed=1)
    it.set_plain_tensors("checked")
    try:
        is_close(plain * alike, ours * alike)
    finally:
        it.set_plain_tensors("recorded")
    is_close(plain + alike, ours + alike)
    it.check_plain_tensors()


def differing_replicas_are_named(case, ours):
    """In lockstep a plain tensor is one for all ranks; what may differ are pieces that should be equal."""
    ranks, columns = case.world.hosted(), case.sizes[1]
    other = it.from_locals([torch.full((columns,), float(rank)) for rank in ranks], "R")
    for rank in ranks[1:]:
        named = f"rank {rank} differs from rank 0"
        alike = [torch.full((columns,), float(r == rank)) for r in ranks]
        refuses(RuntimeError, named, lambda: it.assert_replicas(it.from_locals(alike, "R"), name="mask"))
    refuses(RuntimeError, f"'other', f32[{columns}]", lambda: it.assert_replicas(other, name="other"))
    product = it.redistribute(ours, "R") * other
    refuses(RuntimeError, "rank 1 differs from rank 0", lambda: it.assert_replicas(product))
    it.assert_replicas(it.redistribute(ours, "R"))
    it.check_plain_tensors()


@item("plain tensors that differ between ranks are named", in_lockstep="replicas that differ between ranks are named")
def _(case):
    ours = case.pair()[1]
    if case.world.in_lockstep():
        return differing_replicas_are_named(case, ours)
    rank, size = case.world.rank(), case.world.size()
    other = torch.full((case.sizes[1],), float(rank))
    others = ",".join(str(r) for r in range(1, size))
    named = f"the plain tensor f32[{case.sizes[1]}] plain differs on ranks {others} from that of rank 0"
    it.set_plain_tensors("checked")
    try:
        refuses(RuntimeError, f"[aten::mul.Tensor] {named}", lambda: ours * other)
        refuses(RuntimeError, f"[aten::sub.Tensor] {named}", lambda: ours - other)
    finally:
        it.set_plain_tensors("recorded")
    it.full(ours * other)
    # This one speaks of all since the beginning, so also of those of the cases before.
    refuses(RuntimeError, f"differs on ranks {others} from that of rank 0", it.check_plain_tensors)


# --- modules -------------------------------------------------------------------------------


@item("nn.LSTM, forward and backward")
def _(case):
    torch.manual_seed(0)
    lstm = nn.LSTM(case.sizes[2], 8, num_layers=2)

    def call(module, x):
        y, (h, c) = module(x)
        return y, h, c

    same_module(case, lstm, call)


@item("nn.MultiheadAttention, forward and backward")
def _(case):
    for need_weights in (True, False):
        torch.manual_seed(0)
        attention = nn.MultiheadAttention(case.sizes[2], 2, batch_first=True)
        same_module(case, attention, lambda m, x: [o for o in m(x, x, x, need_weights=need_weights) if o is not None])


@item("nn.TransformerEncoderLayer, forward and backward")
def _(case):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(case.sizes[2], 2, 16, dropout=0.0, batch_first=True)
    same_module(case, layer, lambda m, x: [m(x)])


@item("activation checkpointing with dropout")
def _(case):
    torch.manual_seed(0)
    linear = nn.Linear(case.sizes[1], 8)
    theirs, mine = case.modules(linear)
    weight = theirs.weight.detach()

    def body(x):
        return nn.functional.dropout(mine(x), 0.5).square()

    results = []
    for reentrant in (None, False, True):
        ours = case.pair()[1]
        mine.zero_grad()
        torch.manual_seed(5)
        y = body(ours) if reentrant is None else checkpoint(body, ours, use_reentrant=reentrant)
        weighted(y).backward()
        results.append([it.full(t.detach()) for t in (y, ours.grad, mine.weight.grad)])
    for recomputed in results[1:]:
        for a, b in zip(results[0], recomputed):
            assert torch.equal(a, b), "a value differs after recomputing"
    # What was kept, as the values say, gives plain torch's results.
    plain = case.pair()[0]
    keep = (results[0][0] != 0).float() * 2
    assert 0 < keep.count_nonzero() < keep.numel()
    y = (nn.functional.linear(plain, weight, theirs.bias) * keep).square()
    is_close(y, results[0][0])
    (gradient,) = torch.autograd.grad(weighted(y), plain)
    is_close(gradient, results[0][1], what="gradient")


@item("accumulation over three backwards")
def _(case):
    plain, ours = case.pair()
    torch.manual_seed(0)
    theirs, mine = case.modules(nn.Linear(case.sizes[1], 8))
    for module, x in ((theirs, plain), (mine, ours)):
        for step in range(3):
            (module(x * (step + 1)).square().mean() / 3).backward()
    is_close(plain.grad, ours.grad, what="gradient")
    is_close(theirs.weight.grad, mine.weight.grad, what="gradient of the weight")
    is_close(theirs.bias.grad, mine.bias.grad, what="gradient of the bias")


@item("torch.compile is refused cleanly")
def _(case):
    plain, ours = case.pair()
    torch._dynamo.reset()
    whole = torch.compile(lambda x: (x * 2 + 1).relu(), backend="aot_eager", fullgraph=True)
    hint = "cannot trace Intarsia's distributed tensors"
    refuses(torch._dynamo.exc.Unsupported, hint, lambda: whole(ours))
    broken = torch.compile(lambda x: (x * 2 + 1).relu(), backend="aot_eager")
    is_close((plain * 2 + 1).relu(), broken(ours))


# --- ranks and the table -------------------------------------------------------------------


def as_rank(first):
    """Runs all items from one on; a line for each with the kinds of layout and what is wrong with them."""
    warnings.simplefilter("ignore")
    for number, (_, check) in list(enumerate(ITEMS))[first:]:
        for kind, (_, layouts) in KINDS.items():
            wrong = ""
            for layout in layouts:
                try:
                    check(Case(kind, layout))
                except Exception as error:
                    where = traceback.extract_tb(error.__traceback__)[-1]
                    text = f" {layout}: {type(error).__name__}: {error} ({where.name}:{where.lineno})"
                    wrong += text.replace("\n", " ")[:600]
            print(f"\nresult|{number}|{kind}|{wrong}\n", end="", flush=True)
            if "did not finish" in wrong:
                os._exit(5)  # the ranks may have left messages for each other


def results_of(processes, options):
    """What is wrong, by item and kind of layout; a process that ends early is started again behind the item."""
    found, first = {}, 0
    while first < len(ITEMS):
        command = [sys.executable, __file__, *options, "--as-rank", str(first)]
        # One item is about ranks that differ, and what is said without a guard: as on several hosts.
        env = {"OMP_NUM_THREADS": "1", "INTARSIA_GUARD": "off"}
        done = launch.run("plain", processes, command, env=env, timeout=240)
        seen = {}
        for line in done.stdout.splitlines():
            if line.startswith("result|"):
                _, number, kind, wrong = line.split("|", 3)
                seen.setdefault((int(number), kind), []).append(wrong)
        reached = max((number for number, _ in seen), default=first)
        for key, wrong in seen.items():
            found[key] = next((w for w in wrong if w), "" if len(wrong) == processes else " not on all ranks")
        if done.returncode:
            for kind in KINDS:
                found.setdefault((reached, kind), f" did not run: exit code {done.returncode} {done.stderr[-600:]}")
        first = reached + 1
    return found


def main(ranks, in_lockstep):
    found = results_of(1, ["--lockstep", str(ranks)]) if in_lockstep else results_of(ranks, [])
    for number, (name, _) in enumerate(ITEMS):
        if in_lockstep and name in IN_LOCKSTEP:
            print(f"for '{name}', which needs several processes, stands:")
            name = IN_LOCKSTEP[name]
        marks = ", ".join(f"{kind} {'NO' if found.get((number, kind), '?') else 'yes'}" for kind in KINDS)
        print(f"{ranks} ranks{' in lockstep' if in_lockstep else ''}: {name:<50} {marks}")
        for kind in KINDS:
            if wrong := found.get((number, kind), " did not run"):
                print(f"    {kind}:{wrong}")
    total = len(ITEMS) * len(KINDS)
    hold = sum(not found.get((n, kind), "?") for n in range(len(ITEMS)) for kind in KINDS)
    print(f"{hold} of {total} hold")
    return 0 if hold == total else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", type=int, default=2)
    parser.add_argument("--lockstep", type=int)
    parser.add_argument("--as-rank", type=int)
    chosen = parser.parse_args()
    if chosen.as_rank is not None:
        import intarsia as it

        if chosen.lockstep:
            with it.lockstep({"x": chosen.lockstep}):
                as_rank(chosen.as_rank)
        else:
            it.init(timeout=WORLD_SECONDS)
            as_rank(chosen.as_rank)
        os._exit(0)
    sys.exit(main(chosen.lockstep or chosen.n, bool(chosen.lockstep)))
