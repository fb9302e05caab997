"""What is measured: single ops, a linear layer with its gradient, transformer blocks. Written once for all sides."""

import torch
import torch.nn.functional as F
from sides import WORLD


class Block(torch.nn.Module):
    """Pre-norm transformer block with explicit softmax attention."""

    def __init__(self, dim, heads, inner_attn, inner_ff):
        super().__init__()
        self.head_dim = dim // heads
        self.n1, self.n2 = torch.nn.LayerNorm(dim), torch.nn.LayerNorm(dim)
        self.q = torch.nn.Linear(dim, inner_attn, bias=False)
        self.k = torch.nn.Linear(dim, inner_attn, bias=False)
        self.v = torch.nn.Linear(dim, inner_attn, bias=False)
        self.o = torch.nn.Linear(inner_attn, dim, bias=False)
        self.up = torch.nn.Linear(dim, inner_ff, bias=False)
        self.down = torch.nn.Linear(inner_ff, dim, bias=False)
        self.enter = self.leave = lambda t: t

    def attention(self, x):
        b, s, _ = x.shape
        q, k, v = (
            linear(x).view(b, s, -1, self.head_dim).transpose(1, 2) for linear in (self.q, self.k, self.v)
        )
        w = torch.softmax(q @ k.transpose(-2, -1) * self.head_dim**-0.5, dim=-1)
        return self.leave(self.o((w @ v).transpose(1, 2).reshape(b, s, -1)))

    def forward(self, x):
        x = x + self.attention(self.enter(self.n1(x)))
        h = F.gelu(self.up(self.enter(self.n2(x))))
        return x + self.leave(self.down(h))


class Case:
    """A call, whether it records gradients, and the tensors that show whether it is right."""

    def __init__(self, call, leaves=()):
        self.call, self.leaves, self.grad = call, leaves, bool(leaves)

    def results(self):
        with torch.set_grad_enabled(self.grad):
            out = self.call()
        return [*(out if isinstance(out, tuple) else [out]), *(leaf.grad for leaf in self.leaves)]


def op_cases(side, shape=(8, 8)):
    """Ops whose local tensors have this shape: rows are cut, weights replicated."""
    m, n = shape
    torch.manual_seed(0)
    a, b = (side.put(torch.randn(m, n), 0) for _ in range(2))
    w, bias = side.put(torch.randn(n, n)), side.put(torch.randn(n))
    return {
        "add": Case(lambda: a + b),
        "mul": Case(lambda: a * b),
        "mm": Case(lambda: torch.mm(a, w)),
        "linear": Case(lambda: F.linear(a, w, bias)),
        "gelu": Case(lambda: F.gelu(a)),
        "layer_norm": Case(lambda: F.layer_norm(a, (n,), bias, bias)),
        "softmax": Case(lambda: torch.softmax(a, -1)),
    }


def linear_case(side, parallel, shape=(8, 8)):
    """Forward and backward of a linear layer: replicated, or with rows cut, so that gradients are summed."""
    m, n = shape
    torch.manual_seed(0)
    cut = 0 if parallel else None
    x, g = side.put(torch.randn(m, n), cut), side.put(torch.randn(m, n), cut)
    w, bias = side.put(torch.randn(n, n)).requires_grad_(), side.put(torch.randn(n)).requires_grad_()

    def step():
        w.grad = bias.grad = None
        out = F.linear(x, w, bias)
        out.backward(g)
        if parallel:
            w.grad, bias.grad = side.summed(w.grad), side.summed(bias.grad)
        return out

    return Case(step, (w, bias))


def block_case(side, parallel, dim=64, seq=16, heads=2):
    """Forward and backward of a block: replicated, or with weights cut as Megatron does."""
    torch.manual_seed(0)
    parts = WORLD if parallel else 1
    module = Block(dim, heads, dim // parts, 4 * dim // parts)
    cuts = {"q": 0, "k": 0, "v": 0, "up": 0, "o": 1, "down": 1} if parallel else {}
    for name, part in module.named_modules():
        for key, p in list(part.named_parameters(recurse=False)):
            setattr(part, key, torch.nn.Parameter(side.put(p.detach(), cuts.get(name))))
    if parallel:
        module.enter, module.leave = side.enter, side.leave
    x, g = side.put(torch.randn(1, seq, dim)), side.put(torch.randn(1, seq, dim))
    leaves = list(module.parameters())

    def step():
        for p in leaves:
            p.grad = None
        out = module(x)
        out.backward(g)
        return out

    return Case(step, leaves)


OPS = ["add", "mul", "mm", "linear", "gelu", "layer_norm", "softmax"]
LINEAR = {"linear_fwd_bwd": False, "linear_fwd_bwd_data_parallel": True}
BLOCKS = {"block_replicated": False, "block_tensor_parallel": True}
ALL = [*OPS, *LINEAR, *BLOCKS]
LOCAL = [*OPS, *(name for name, parallel in (LINEAR | BLOCKS).items() if not parallel)]  # that communicate nothing


def make_case(side, name, size=8):
    """A case; `size` says its shape."""
    if name in OPS:
        return op_cases(side, (size, 8 + 2 * OPS.index(name)))[name]
    if name in LINEAR:
        return linear_case(side, LINEAR[name], (size, 8))
    return block_case(side, BLOCKS[name], seq=8 + size)
