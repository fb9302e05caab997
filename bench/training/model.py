"""The models that bench/training trains: a small Llama, and a long chain of small matrices."""

import torch
import torch.nn.functional as F
from torch import nn

DIM, LAYERS, HEADS, HIDDEN, VOCABULARY, LENGTH, BATCH = 256, 4, 4, 704, 1024, 128, 4
MATRICES, SIDE, PER_BLOCK, ROWS = 1000, 64, 10, 32


def rotary_table(length, head_dim):
    frequency = 1.0 / 10000 ** (torch.arange(0, head_dim, 2).float() / head_dim)
    angle = torch.outer(torch.arange(length).float(), frequency)
    return torch.cos(angle), torch.sin(angle)


def rotate(x, cos, sin):
    """Rotary position embedding on (batch, heads, length, head_dim)."""
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


class Block(nn.Module):
    """`parts`: it has that part of the heads and of the hidden features. `enter` and `leave` stand where Megatron
    has its two functions: before the first products of each half, and after the last ones."""

    def __init__(self, parts=1, enter=lambda x: x, leave=lambda x: x):
        super().__init__()
        self.enter, self.leave = enter, leave
        self.head_dim = DIM // HEADS
        inner, hidden = DIM // parts, HIDDEN // parts
        self.norm1, self.norm2 = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.wq, self.wk, self.wv = (nn.Linear(DIM, inner, bias=False) for _ in range(3))
        self.wo = nn.Linear(inner, DIM, bias=False)
        self.w1, self.w3 = (nn.Linear(DIM, hidden, bias=False) for _ in range(2))
        self.w2 = nn.Linear(hidden, DIM, bias=False)
        cos, sin = rotary_table(LENGTH, self.head_dim)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x):
        b, s, _ = x.shape
        h = self.enter(self.norm1(x))
        q, k, v = (w(h).view(b, s, -1, self.head_dim).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        q, k = rotate(q, self.cos, self.sin), rotate(k, self.cos, self.sin)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.leave(self.wo(a.transpose(1, 2).reshape(b, s, -1)))
        h = self.enter(self.norm2(x))
        return x + self.leave(self.w2(F.silu(self.w1(h)) * self.w3(h)))


class Llama(nn.Module):
    """`make_embed` makes the embedding of a part of the vocabulary, where that is not torch's own."""

    def __init__(self, parts=1, enter=lambda x: x, leave=lambda x: x, make_embed=nn.Embedding):
        super().__init__()
        self.enter = enter
        self.embed = make_embed(VOCABULARY // parts, DIM)
        self.blocks = nn.ModuleList(Block(parts, enter, leave) for _ in range(LAYERS))
        self.norm = nn.RMSNorm(DIM)
        self.head = nn.Linear(DIM, VOCABULARY // parts, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.enter(self.norm(x)))


class Links(nn.Module):
    """Some matrices one after the other, and a way around them."""

    def __init__(self):
        super().__init__()
        self.links = nn.ModuleList(nn.Linear(SIDE, SIDE, bias=False) for _ in range(PER_BLOCK))

    def forward(self, x):
        h = x
        for link in self.links:
            h = F.relu(link(h))
        return x + h


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Links() for _ in range(MATRICES // PER_BLOCK))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def batches(count):
    """Inputs and targets of the Llama, the same on all ranks."""
    data = torch.randint(0, VOCABULARY, (count, BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    return [(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()) for tokens in data]


def rows(count):
    """Inputs and targets of the chain, the same on all ranks."""
    data = torch.randn(count, 2, ROWS, SIDE, generator=torch.Generator().manual_seed(2))
    return [(x, y) for x, y in data]


def token_loss(logits, targets):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))
