#!/usr/bin/env python3
"""A Llama in plain torch.nn, trained on any mesh: one model code for every way to distribute it.

    python llama.py --steps 20
    ./launch -n 4 -- python llama.py --mode fsdp+tp --mesh "[dp=2,tp=2]" --steps 20

Nothing in the model knows of distribution. `make_model` lays out the parameters, `place_batch` the batch.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import resource
import time
from collections.abc import Iterator

import intarsia
import torch
import torch.nn.functional as F
from torch import Tensor, nn

# ---- the model ---------------------------------------------------------------------------------


@dataclasses.dataclass
class Config:
    dim: int = 256
    layers: int = 4
    heads: int = 4
    key_value_heads: int = 2
    hidden: int = 704
    vocabulary: int = 1024
    rotary_base: float = 500000.0
    epsilon: float = 1e-5
    dropout: float = 0.0
    attention: str = "sdpa"


CONFIGS = {
    "debug": Config(),
    "8B": Config(4096, 32, 32, 8, 14336, 128256),
    "70B": Config(8192, 80, 64, 8, 28672, 128256),
    "405B": Config(16384, 126, 128, 8, 53248, 128256),
}


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def plain_math(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(2, 3)) * q.shape[3] ** -0.5
    return scores.masked_fill(later, float("-inf")).softmax(-1) @ v


KERNELS = {"sdpa": sdpa, "math": plain_math}


class Rotary(nn.Module):
    """Turns pairs (i, i + head_dim / 2) of each head by angles that grow with the position."""

    def __init__(self, head_dim: int, positions: int, base: float):
        super().__init__()
        self.base = base
        self.register_buffer("cos", torch.empty(positions, head_dim), persistent=False)
        self.register_buffer("sin", torch.empty(positions, head_dim), persistent=False)

    def reset_parameters(self) -> None:
        positions, head_dim = self.cos.shape
        turns = self.base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
        angles = torch.outer(torch.arange(positions, dtype=torch.float64), turns).repeat(1, 2)
        self.cos.copy_(angles.cos())
        self.sin.copy_(angles.sin())

    def forward(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        length = x.shape[2]
        return x * self.cos[:length] + torch.cat([-second, first], -1) * self.sin[:length]


class Attention(nn.Module):
    """Grouped-query attention: several heads of queries share one of keys and values."""

    def __init__(self, c: Config, positions: int):
        super().__init__()
        self.head_dim = c.dim // c.heads
        self.groups, self.shared_by = c.key_value_heads, c.heads // c.key_value_heads
        self.kernel = KERNELS[c.attention]
        self.wq = nn.Linear(c.dim, c.heads * self.head_dim, bias=False)
        self.wk = nn.Linear(c.dim, c.key_value_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(c.dim, c.key_value_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(c.heads * self.head_dim, c.dim, bias=False)
        self.rotary = Rotary(self.head_dim, positions, c.rotary_base)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def share(self, x: Tensor) -> Tensor:
        return x.unsqueeze(2).expand(-1, -1, self.shared_by, -1, -1).flatten(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        q = self.rotary(self.split(self.wq(x)))
        k = self.rotary(self.split(self.wk(x)))
        v = self.split(self.wv(x))
        mixed = self.kernel(q, self.share(k), self.share(v))
        return self.wo(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.w1 = nn.Linear(c.dim, c.hidden, bias=False)
        self.w3 = nn.Linear(c.dim, c.hidden, bias=False)
        self.w2 = nn.Linear(c.hidden, c.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Layer(nn.Module):
    def __init__(self, c: Config, positions: int):
        super().__init__()
        self.attention_norm = nn.RMSNorm(c.dim, c.epsilon)
        self.attention = Attention(c, positions)
        self.feed_forward_norm = nn.RMSNorm(c.dim, c.epsilon)
        self.feed_forward = FeedForward(c)
        self.dropout = nn.Dropout(c.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class Llama(nn.Module):
    """From token numbers [batch, positions] to logits [batch, positions, vocabulary]."""

    def __init__(self, c: Config, positions: int):
        super().__init__()
        self.embed = nn.Embedding(c.vocabulary, c.dim)
        self.layers = nn.ModuleList(Layer(c, positions) for _ in range(c.layers))
        self.norm = nn.RMSNorm(c.dim, c.epsilon)
        self.head = nn.Linear(c.dim, c.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def loss_of(model: Llama, tokens: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


@torch.no_grad()
def initialise(model: Llama) -> None:
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)


# ---- text to learn -------------------------------------------------------------------------------

WORDS = {
    "article": ["the", "a", "this", "every"],
    "adjective": ["small", "old", "red", "quiet", "wooden"],
    "noun": ["tile", "artist", "table", "river", "pattern", "knife"],
    "verb": ["meets", "cuts", "joins", "follows", "carries"],
}
SENTENCE = ["article", "adjective", "noun", "verb", "article", "noun"]


def picks(seed: int) -> Iterator[int]:
    """Random numbers of 31 bits, the same as in text.cpp."""
    while True:
        seed = (seed * 6364136223846793005 + 1442695040888963407) % 2**64
        yield seed >> 33


def text(length: int, random: Iterator[int]) -> bytes:
    """Sentences of a small grammar."""
    made = b""
    while len(made) < length:
        words = [WORDS[kind][next(random) % len(WORDS[kind])] for kind in SENTENCE]
        made += " ".join(words).encode() + b". "
    return made[:length]


def batch_of(step: int, rows: int, length: int, seed: int) -> tuple[Tensor, Tensor]:
    """The global batch of a step: tokens, and the token that follows each. The same on every rank."""
    random = picks(seed * 1_000_003 + step)
    lines = [list(text(length + 1, random)) for _ in range(rows)]
    tokens = torch.tensor(lines)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def packed(batch: tuple[Tensor, Tensor]) -> tuple[tuple[Tensor, Tensor], intarsia.AttentionMask]:
    """The same rows, each taken as three documents: the mask between them, and no target across their ends."""
    tokens, targets = batch
    length = tokens.shape[1]
    starts = [0, length * 3 // 8, length * 5 // 8]
    for start in starts[1:]:
        targets[:, start - 1] = -100
    return (tokens, targets), intarsia.AttentionMask.causal().documents(starts)


# ---- how it is distributed -----------------------------------------------------------------------

MODES = {  # the mesh for n ranks, where none is given
    "plain": lambda n: "[dp=1]",
    "ddp": lambda n: f"[dp={n}]",
    "dp": lambda n: f"[dp={n}]",
    "fsdp": lambda n: f"[dp={n}]",
    "hsdp": lambda n: f"[copy={2 if n % 2 == 0 else 1},dp={n // 2 if n % 2 == 0 else n}]",
    "tp": lambda n: f"[tp={n}]",
    "tp+sp": lambda n: f"[tp={n}]",
    "cp": lambda n: f"[cp={n}]",
    "fsdp+tp": lambda n: f"[dp={n // 2 if n % 2 == 0 else n},tp={2 if n % 2 == 0 else 1}]",
    "fsdp+cp": lambda n: f"[dp={n // 2 if n % 2 == 0 else n},cp={2 if n % 2 == 0 else 1}]",
    "tp+cp": lambda n: f"[cp={n // 2 if n % 2 == 0 else n},tp={2 if n % 2 == 0 else 1}]",
}


def make_model(
    config: Config, positions: int, mode: str, mesh: intarsia.Mesh, seed: int, chunks: int = 1
) -> Llama:
    """The model with the same initial values, bit for bit, in every mode and on every mesh."""
    plan = intarsia.TensorParallelPlan([])
    if "tp" in mode:
        plan = intarsia.llama_plan(
            sequence_parallel=mode == "tp+sp",
            heads=config.heads,
            key_value_heads=config.key_value_heads,
            chunks=chunks,
        )
    with torch.device("meta"):
        model = Llama(config, positions)
    torch.manual_seed(seed)
    if "fsdp" in mode or mode == "hsdp":
        shard = ("dp", "cp") if "cp" in mode else "dp"  # all ranks that see other tokens
        intarsia.fully_shard(model, mesh=mesh, layouts=plan, shard=shard, replicate="copy" if mode == "hsdp" else ())
    else:
        intarsia.parallelize(model, mesh, plan)
    initialise(model)
    if mode in ("plain", "ddp"):
        for part in model.modules():
            for table in (part._parameters, part._buffers):
                for name, value in table.items():
                    if value is not None:
                        full = intarsia.full(value.detach())
                        table[name] = nn.Parameter(full) if table is part._parameters else full
    if mode == "ddp":
        intarsia.replicate(model, mesh=mesh, axis="dp")
    return model


def place_batch(batch: tuple[Tensor, Tensor], mode: str, mesh: intarsia.Mesh) -> list[Tensor]:
    """Rows are sharded by every axis but tp, and positions by cp. A plain module gets the rows of its rank."""
    if mode == "plain":
        return list(batch)
    if mode == "ddp":
        world = intarsia.world()
        return [t.tensor_split(world.size())[world.rank()] for t in batch]
    layout = ",".join({"tp": "R", "cp": "S(1)"}.get(name, "S(0)") for name in mesh.names())
    return [intarsia.distribute(t, layout, mesh=mesh) for t in batch]


# ---- the program ---------------------------------------------------------------------------------


def full_value(tensor: Tensor) -> Tensor:
    return intarsia.full(tensor.detach()) if intarsia.has_layout(tensor) else tensor.detach()


def dump(model: nn.Module, path: str, write: bool) -> None:
    """All parameters and gradients, as full tensors. COLLECTIVE: all ranks."""
    state = {}
    for name, p in model.named_parameters():
        state[name] = full_value(p).clone()
        if p.grad is not None:
            state[name + ".grad"] = full_value(p.grad).clone()
    if write:
        torch.save(state, path)


def bill_text(world: intarsia.World) -> str:
    """What was sent, by direction and axis: `forward tp: 9 P->R; backward tp: 8 P->R`."""
    sums: dict[tuple[bool, str, str], int] = {}
    for e in intarsia.bill(world).entries:
        key = (e.backward, e.axis, e.transition)
        sums[key] = sums.get(key, 0) + e.count
    lines: dict[str, list[str]] = {}
    for (backward, axis, transition), count in sorted(sums.items()):
        lines.setdefault(f"{'backward' if backward else 'forward'} {axis}", []).append(f"{count} {transition}")
    return "; ".join(f"{where}: {', '.join(what)}" for where, what in lines.items())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", choices=CONFIGS, default="debug")
    parser.add_argument("--mode", choices=MODES, default="dp")
    parser.add_argument("--mesh", help='such as "[dp=2,tp=2]"; by default one that fits mode and ranks')
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=8, help="rows of the global batch")
    parser.add_argument("--seq", type=int, default=64, help="positions of each row")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--epsilon", type=float, default=1e-8, help="of AdamW: gradients well below it move little")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--attention", choices=KERNELS, default="sdpa")
    parser.add_argument("--packed", action="store_true", help="each row holds three documents; not in modes plain and ddp")
    parser.add_argument("--chunks", type=int, default=1,
                        help="in which sequences are sent while linear layers compute, in mode tp+sp; 0: what is fastest")  # fmt: skip
    parser.add_argument("--key-value-heads", type=int, help="instead of the configuration's")
    parser.add_argument("--dtype", choices=["float32", "float64", "bfloat16"], default="float32")
    parser.add_argument("--dump", metavar="FILE", help="parameters and gradients after the last step")
    parser.add_argument("--dump-initial", metavar="FILE", help="parameters before the first step")
    parser.add_argument("--save", metavar="FOLDER", help="for checkpoints")
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on from the newest one, if there is one")
    parser.add_argument("--bill", action="store_true", help="what the last step sent")
    parser.add_argument("--lockstep", action="store_true", help="all ranks of the mesh in this process")
    return parser.parse_args()


def train(a: argparse.Namespace, world: intarsia.World, mesh: intarsia.Mesh) -> None:
    speaks = world.in_lockstep() or world.rank() == 0
    torch.set_default_dtype(getattr(torch, a.dtype))
    config = dataclasses.replace(CONFIGS[a.config], dropout=a.dropout, attention=a.attention)
    if a.key_value_heads:
        config = dataclasses.replace(config, key_value_heads=a.key_value_heads)
    model = make_model(config, a.seq, a.mode, mesh, a.seed, a.chunks)
    optimizer = torch.optim.AdamW(model.parameters(), a.lr, eps=a.epsilon)
    if speaks:
        count = sum(p.numel() for p in model.parameters())
        print(f"{a.config}: {count / 1e6:.1f} M parameters, {a.mode} on {mesh}", flush=True)
    if a.dump_initial:
        dump(model, a.dump_initial, speaks)
    state = {"model": model, "optimizer": optimizer, "rng": torch.default_generator}
    checkpoints = intarsia.CheckpointManager(a.save, every=a.every, world=world) if a.save else None
    found = checkpoints.resume(state) if checkpoints and a.resume else None
    for step in range(found.step if found else 0, a.steps):
        began = time.monotonic()
        batch, mask = batch_of(step, a.batch, a.seq, a.seed), None
        if a.packed:
            batch, mask = packed(batch)
        tokens, targets = place_batch(batch, a.mode, mesh)
        optimizer.zero_grad()
        intarsia.clear_bill(world)
        with intarsia.attention_scope(mask) if a.packed else contextlib.nullcontext():
            loss = loss_of(model, tokens, targets)
        loss.backward()
        bill = bill_text(world)
        optimizer.step()
        if checkpoints:
            checkpoints.after_step(step + 1, state)
        value = full_value(loss).item()
        if speaks:
            speed = a.batch * a.seq / (time.monotonic() - began)
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"step {step + 1}/{a.steps}  loss {value:.4f}  {speed:.0f} tokens/s  {memory:.0f} MiB", flush=True)
    if checkpoints:
        checkpoints.wait()
    if speaks and a.bill and a.steps:
        print("bill", bill or "nothing", flush=True)
    if a.dump:
        dump(model, a.dump, speaks)


def main() -> None:
    a = arguments()
    if a.packed and a.mode in ("plain", "ddp"):
        raise SystemExit(f"--packed is for distributed tensors, which --mode {a.mode} has none of; take dp")
    with contextlib.ExitStack() as stack:
        if a.lockstep:
            world = stack.enter_context(intarsia.lockstep(a.mesh))
        else:
            world = intarsia.connect()
        mesh = intarsia.Mesh(a.mesh or MODES[a.mode](world.size()))
        if mesh.size() != (1 if a.mode == "plain" else world.size()):
            raise SystemExit(f"the mesh {mesh} has {mesh.size()} ranks, but {world.size()} processes run")
        train(a, world, mesh)


if __name__ == "__main__":
    main()
