"""A Llama as users of PyTorch write it: plain torch.nn, nothing of Intarsia; and its layouts beside it."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Config:
    dim: int
    layers: int
    heads: int
    kv_heads: int
    hidden: int
    vocab: int
    sequence: int
    checkpoint: bool = False  # each layer's activations are computed again in backward


LLAMA_70B = Config(8192, 80, 64, 8, 28672, 128256, 8192, checkpoint=True)
LLAMA_405B = Config(16384, 126, 128, 8, 53248, 128256, 8192, checkpoint=True)


def rotary_table(length, head_dim):
    angles = torch.outer(torch.arange(length), 500000.0 ** (-torch.arange(0, head_dim, 2) / head_dim))
    return torch.cat([angles.cos(), angles.cos()], -1), torch.cat([angles.sin(), angles.sin()], -1)


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.head_dim, self.repeats = c.dim // c.heads, c.heads // c.kv_heads
        self.wq = nn.Linear(c.dim, c.heads * self.head_dim, bias=False)
        self.wk = nn.Linear(c.dim, c.kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(c.dim, c.kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(c.heads * self.head_dim, c.dim, bias=False)

    def heads(self, x):
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def repeated(self, x):
        b, h, s, d = x.shape
        return x[:, :, None].expand(b, h, self.repeats, s, d).reshape(b, h * self.repeats, s, d)

    def forward(self, x, cos, sin):
        q = rotate(self.heads(self.wq(x)), cos, sin)
        k = self.repeated(rotate(self.heads(self.wk(x)), cos, sin))
        v = self.repeated(self.heads(self.wv(x)))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(out.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.w1 = nn.Linear(c.dim, c.hidden, bias=False)
        self.w2 = nn.Linear(c.hidden, c.dim, bias=False)
        self.w3 = nn.Linear(c.dim, c.hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.attention, self.feed_forward = Attention(c), FeedForward(c)
        self.norm1, self.norm2 = nn.RMSNorm(c.dim), nn.RMSNorm(c.dim)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.feed_forward(self.norm2(x))


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.config = c
        self.embedding = nn.Embedding(c.vocab, c.dim)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = nn.RMSNorm(c.dim)
        self.output = nn.Linear(c.dim, c.vocab, bias=False)

    def forward(self, tokens, cos, sin):
        x = self.embedding(tokens)
        for block in self.blocks:
            if self.config.checkpoint:
                x = checkpoint(block, x, cos, sin, use_reentrant=False)
            else:
                x = block(x, cos, sin)
        return self.output(self.norm(x))


def layouts():
    """Tensor parallel over tp, on a mesh [dp, tp]: how parameters are used."""
    columns, rows = "R,S(0)", "R,S(1)"
    return {
        "embedding.weight": columns,
        "output.weight": columns,
        "*.wq.weight": columns,
        "*.wk.weight": columns,
        "*.wv.weight": columns,
        "*.wo.weight": rows,
        "*.w1.weight": columns,
        "*.w3.weight": columns,
        "*.w2.weight": rows,
    }


def dims():
    """Which dimension is cut over dp: the one that tensor parallelism leaves, so that all ranks have equal parts."""
    return {"*.wo.weight": 0, "*.w2.weight": 0, "*norm*": 0, "*.weight": 1}
