"""A small hybrid language model, attention and state-space blocks in turns, trained for ten steps on sequences that are sharded, beside the
same model on one rank: losses, gradients of the last step and parameters.

    launch.py -n RANKS -- hybrid.py MESH        such as [cp=4] or [dp=2,cp=2]
"""

import sys

import intarsia as it
import torch
import torch.nn.functional as F
from torch import nn

STEPS, ROWS, LENGTH, WIDTH, HEADS, VOCABULARY = 10, 4, 50, 16, 4, 23


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(out.transpose(1, 2).flatten(2))


class StateSpace(nn.Module):
    """A causal convolution along time, gates that depend on the input, and a recurrence for each channel and state."""

    STATES, TAPS = 3, 4

    def __init__(self):
        super().__init__()
        self.within, self.gates = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH + 2 * self.STATES)
        self.taps = nn.Parameter(torch.randn(WIDTH, 1, self.TAPS) * 0.3)
        self.rates, self.skip, self.out = nn.Parameter(torch.randn(WIDTH, self.STATES) * 0.1), nn.Parameter(torch.ones(WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x, gate = self.within(x).chunk(2, -1)
        x = F.silu(F.conv1d(F.pad(x.transpose(1, 2), (self.TAPS - 1, 0)), self.taps, groups=WIDTH)).transpose(1, 2)
        step, write, read = self.gates(x).split([WIDTH, self.STATES, self.STATES], -1)
        step = F.softplus(step).unsqueeze(-1)
        decay = torch.exp(-step * self.rates.exp())
        h = it.linear_recurrence(decay, step * write.unsqueeze(2) * x.unsqueeze(-1))
        y = (h * read.unsqueeze(2)).sum(-1) + self.skip * x
        return self.out(y * F.silu(gate))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.mixers = nn.ModuleList([StateSpace(), Attention(), StateSpace(), Attention()])
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in self.mixers])

    def forward(self, tokens):
        x = self.embed(tokens)
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            x = x + mixer(norm(x))
        return self.head(x)


def train(laid_out, shard=None):
    """Losses, and for each parameter its last gradient and its value."""
    torch.manual_seed(0)
    model = Model().double()
    if shard:
        it.fully_shard(model, mesh=it.mesh(), shard=shard)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(STEPS):
        torch.manual_seed(100 + step)
        tokens = (torch.randint(0, VOCABULARY, (ROWS, 1)) + 3 * torch.arange(LENGTH)) % VOCABULARY
        inputs, labels = laid_out(tokens), laid_out(it.next_tokens(tokens))
        loss = F.cross_entropy(model(inputs).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, {name: (p.grad, p.detach()) for name, p in model.named_parameters()}


def main(text):
    mesh = it.init(text)
    layout = ",".join("S(1)" if name == "cp" else "S(0)" for name in mesh.names())
    want_losses, want = train(lambda t: t)
    losses, found = train(lambda t: it.distribute(t, layout), tuple(mesh.names()))
    for a, b in zip(losses, want_losses, strict=True):
        torch.testing.assert_close(it.full(a), b, rtol=1e-9, atol=1e-9)
    for name, (grad, value) in found.items():
        torch.testing.assert_close(it.full(grad), want[name][0], rtol=1e-7, atol=1e-9, msg=name)
        torch.testing.assert_close(it.full(value), want[name][1], rtol=1e-7, atol=1e-9, msg=name)
    assert want_losses[-1] < want_losses[0] - 0.1, want_losses
    if it.world().rank() == 0:
        print(f"{text}: {len(losses)} losses and {len(found)} parameters equal one rank, loss {float(want_losses[0]):.4f} to {float(want_losses[-1]):.4f}", flush=True)


main(sys.argv[1])
