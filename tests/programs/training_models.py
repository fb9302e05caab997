"""The models of random training runs: small blocks of one shape, (rows, length, width) in and out, in any order."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from training_data import kind_of, other_of

VOCABULARY = 11
FEATURES = 3
LONGEST = 8
DTYPES = {"f64": torch.float64, "f32": torch.float32}


class Planned(RuntimeError):
    """The error that a run raises on purpose."""


class Boom(torch.autograd.Function):
    """Raises in backward."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise Planned("in backward")


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, width + 1), nn.Linear(width + 1, width, bias=False)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


class InPlace(Mlp):
    """Its activation writes into what the linear layer made, and its residual into what that made."""

    def forward(self, x):
        return self.down(F.silu(self.up(x), inplace=True)).add_(x)


class Attention(nn.Module):
    def __init__(self, width, heads=2, shared=2):
        super().__init__()
        self.heads, self.shared = heads, shared
        self.wq = nn.Linear(width, heads * 4)
        self.wk, self.wv = (nn.Linear(width, shared * 4) for _ in range(2))
        self.wo = nn.Linear(heads * 4, width)

    def forward(self, x):
        rows, length, _ = x.shape
        made = (self.wq(x), self.heads), (self.wk(x), self.shared), (self.wv(x), self.shared)
        q, k, v = (t.view(rows, length, heads, 4).transpose(1, 2) for t, heads in made)
        if self.shared < self.heads:
            k, v = (t.expand(-1, self.heads, -1, -1) for t in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.wo(mixed.transpose(1, 2).reshape(rows, length, self.heads * 4))


class Fused(nn.Module):
    """One weight for three projections, taken apart where it is used."""

    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Parameter(torch.empty(3 * width, width))

    def forward(self, x):
        q, k, v = self.qkv.chunk(3)
        return x + torch.tanh(x @ q.t()) * F.linear(x, k) + x @ v.transpose(0, 1)


class Conv(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv1d(width, width, 3, padding=1)

    def forward(self, x):
        return x + torch.tanh(self.conv(x.transpose(1, 2))).transpose(1, 2)


class OverChannels(nn.Module):
    """A norm that has channels second."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x):
        return x + self.norm(x.transpose(1, 2)).transpose(1, 2)


class Norm(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x):
        return self.norm(x)


class Mean(nn.Module):
    """A running mean in a buffer, and a count of integers."""

    def __init__(self, width):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("count", torch.tensor(0))
        self.scale = nn.Parameter(torch.empty(width))

    def forward(self, x):
        before = self.mean.clone()
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(x.mean((0, 1)), alpha=0.1)
                self.count.add_(1)
        return x + (x - before) * self.scale


class Tiny(nn.Module):
    """Parameters of one, of no element and of no dimension."""

    def __init__(self, width):
        super().__init__()
        self.one, self.none = nn.Parameter(torch.empty(1)), nn.Parameter(torch.empty(0, 3))
        self.scalar = nn.Parameter(torch.empty(()))

    def forward(self, x):
        return x * self.one + self.scalar + self.none.sum()


class Listed(nn.Module):
    """A list of parameters, of which one is not used."""

    def __init__(self, width):
        super().__init__()
        self.all = nn.ParameterList([nn.Parameter(torch.empty(width)) for _ in range(3)])

    def forward(self, x):
        return x + self.all[0] * torch.sigmoid(x * self.all[2])


class WeightNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, width))

    def forward(self, x):
        return x + x @ (self.weight / self.weight.norm()).t()


class Views(nn.Module):
    """A weight that is used whole, by columns, by one element, and by every other row."""

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)

    def forward(self, x):
        w = self.linear.weight
        left, right = w.chunk(2, 1)
        return self.linear(x) + x * w[0, 1] + 0.1 * left.sum() * right.mean() + F.linear(x, w[::2]).sum(-1, keepdim=True)


class Low(nn.Module):
    """A layer of another dtype."""

    def __init__(self, width, dtype):
        super().__init__()
        self.linear, self.low = nn.Linear(width, width), dtype

    def forward(self, x):
        return x + torch.tanh(self.linear(x.to(self.linear.weight.dtype))).to(x.dtype)


class Position(nn.Module):
    """A table that is looked up with plain numbers."""

    def __init__(self, width):
        super().__init__()
        self.table = nn.Embedding(LONGEST, width)

    def forward(self, x):
        return x + self.table(torch.arange(x.shape[1]))


class Experts(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.router = nn.Linear(width, 3, bias=False)
        self.experts = nn.Parameter(torch.empty(3, width, width))

    def forward(self, x):
        gates = self.router(x).softmax(-1)
        return x + torch.einsum("btd,edf,bte->btf", x, self.experts, gates)


class Gru(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.rnn = nn.GRU(width, width, batch_first=True)

    def forward(self, x):
        return x + self.rnn(x)[0]


class Idle(nn.Module):
    """A parameter that nobody uses."""

    def __init__(self, width):
        super().__init__()
        self.never = nn.Parameter(torch.empty(3))

    def forward(self, x):
        return x


MAKE = {
    "mlp": Mlp, "inplace": InPlace, "attention": Attention, "multiquery": lambda w: Attention(w, shared=1),
    "fused": Fused, "conv": Conv, "norm": lambda w: Norm(nn.LayerNorm(w)), "rms": lambda w: Norm(nn.RMSNorm(w, eps=1e-3)),
    "group": lambda w: OverChannels(nn.GroupNorm(1, w)), "batchnorm": lambda w: OverChannels(nn.BatchNorm1d(w)),
    "mean": Mean, "tiny": Tiny, "list": Listed, "weightnorm": WeightNorm, "views": Views,
    "single": lambda w: Low(w, torch.float32), "half": lambda w: Low(w, torch.bfloat16), "position": Position,
    "experts": Experts, "gru": Gru, "idle": Idle,
}  # fmt: skip


class Net(nn.Module):
    def __init__(self, run, exact=False):
        super().__init__()
        _, _, width = run.sizes
        dtype = torch.float64 if exact else DTYPES[run.dtype]
        tokens = run.entry == "tokens"
        self.entry = nn.Embedding(VOCABULARY, width) if tokens else nn.Linear(FEATURES, width)
        self.blocks = nn.ModuleList()
        for block in run.blocks:
            other = other_of(block)
            made = self.blocks[other] if block[0] == "=" else MAKE[kind_of(block)](width)
            if "~" in block:
                made.up.weight = self.blocks[other].up.weight
            self.blocks.append(made)
        self.head = nn.Linear(width, VOCABULARY if tokens else 2)
        if "tied" in run.model:
            self.head.weight = self.entry.weight
        self.to(dtype)
        for part in self.modules():
            if isinstance(part, Low) and not exact:
                part.to(part.low)
        for block, part in zip(run.blocks, self.blocks):
            if block.endswith("!"):
                part.requires_grad_(False)
        self.head.requires_grad_(True)

    def forward(self, x, order, recompute=None, fail=None):
        """`order`: which blocks, one after the other. `recompute`: use_reentrant of a checkpoint around each. `fail`: in
        the middle of "forward" or "backward"."""
        h = self.entry(x)
        for at, i in enumerate([*order, None]):
            if at == len(order) // 2 and fail == "forward":
                raise Planned("in forward")
            if at == len(order) // 2 and fail == "backward":
                h = Boom.apply(h)
            if i is not None:
                block = self.blocks[i]
                h = block(h) if recompute is None else checkpoint(block, h, use_reentrant=recompute)
        return self.head(h)


def values_of(net, seed):
    """A state for a model: what depends on the seed and on names only."""
    state = {}
    for name, t in net.state_dict(keep_vars=True).items():
        if not isinstance(t, nn.Parameter):
            state[name] = torch.full(t.shape, float(name.endswith("running_var"))).to(t.dtype)
            continue
        generator = torch.Generator().manual_seed(hash_of(f"{seed} {name}"))
        spread = 0.4 * torch.randn(t.shape, generator=generator, dtype=torch.float64)
        state[name] = (spread + (1 if name.endswith(("norm.weight", "one")) else 0)).float().to(t.dtype)
    return state


def hash_of(text):
    """A number that is the same in every process."""
    number = 0
    for byte in text.encode():
        number = (number * 131 + byte) % (2**61 - 1)
    return number % 2**31
