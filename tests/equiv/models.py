"""Three small models, their data, and the loop that trains them: the serial programs that runs on many ranks are compared with."""

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn

ROWS, LENGTH, VOCABULARY, WIDTH, HEADS = 8, 12, 29, 16, 4


class Attention(nn.Module):
    def __init__(self, heads=HEADS):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.causal, self.scale = True, None

    def forward(self, x, mask=None):
        q, k, v = (f(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for f in (self.q, self.k, self.v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal and mask is None, scale=self.scale)
        return self.out(out.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up, self.act, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(self.act(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens, first=0):
        x = self.embed(tokens) + self.places.weight[first : first + tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift, self.norm = nn.Linear(12, 32), nn.LayerNorm(32)
        self.layers = nn.ModuleList([nn.Linear(32, 32) for _ in range(2)])
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        x = self.norm(self.lift(x))
        for layer in self.layers:
            x = x + F.silu(layer(x))
        return self.head(x)


class ConvNet(nn.Module):
    def __init__(self, norm=lambda: nn.GroupNorm(4, 8)):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), norm()
        self.second, self.head = nn.Conv2d(8, 8, 3, padding=1, stride=2), nn.Linear(8, 10)

    def forward(self, x):
        x = F.relu(self.norm(self.first(x)))
        return self.head(F.relu(self.second(x)).mean((2, 3)))


def tokens_of(step):
    """Sequences with a pattern, and labels of which some are left out: more in the first rows than in the last."""
    generator = torch.Generator().manual_seed(100 + step)
    tokens = (torch.randint(0, VOCABULARY, (ROWS, 1), generator=generator) + 3 * torch.arange(LENGTH + 1)) % VOCABULARY
    labels = tokens[:, 1:].clone()
    for row in range(ROWS):
        labels[row, : (ROWS - row) // 2] = -100
    return tokens[:, :-1].contiguous(), labels


def even_tokens_of(step):
    """The same, and all labels count."""
    tokens, _ = tokens_of(step)
    return tokens, (tokens + 3) % VOCABULARY


def vectors_of(step):
    generator = torch.Generator().manual_seed(200 + step)
    return torch.randn(ROWS, 12, generator=generator), torch.randint(0, 10, (ROWS,), generator=generator)


def images_of(step):
    generator = torch.Generator().manual_seed(300 + step)
    return torch.randn(ROWS, 3, 6, 6, generator=generator), torch.randint(0, 10, (ROWS,), generator=generator)


def cross_entropy(out, labels):
    return F.cross_entropy(out.flatten(0, -2).float(), labels.flatten())


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2, eps=1e-6)


@dataclasses.dataclass(frozen=True)
class Task:
    """A model and its data; `make` seeds it."""

    model: type
    data: object
    dtype: torch.dtype = torch.float32

    def make(self):
        torch.manual_seed(0)
        return self.model().to(self.dtype)

    def batch(self, step):
        inputs, labels = self.data(step)
        return inputs.to(self.dtype) if inputs.is_floating_point() else inputs, labels


def train(task, *, wrap=lambda model: model, batch=lambda inputs, labels: (inputs, labels), loss=cross_entropy, optimizer=adamw,
          before_step=lambda model: None, after_step=lambda model, optimizer: None, steps=3):  # fmt: skip
    """What all programs do, with the places in which they differ."""
    model = wrap(task.make())
    stepping = optimizer(model.parameters())
    for step in range(steps):
        inputs, labels = batch(*task.batch(step))
        loss(model(inputs), labels).backward()
        before_step(model)
        stepping.step()
        stepping.zero_grad()
        after_step(model, stepping)


MLP, CONV = Task(Mlp, vectors_of), Task(ConvNet, images_of)
GPT, EVEN = Task(Gpt, tokens_of), Task(Gpt, even_tokens_of)
TASKS = {"mlp": MLP, "conv": CONV, "gpt": GPT, "even": EVEN}
