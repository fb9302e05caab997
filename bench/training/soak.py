"""Trains a small model, fully sharded, for many steps, and prints what memory and loss do.

    soak.py [--steps N]      under a launcher

Every tenth of the way, rank 0 prints the step, the mean loss since the last line, the resident memory of the process and the
bytes of live tensors. The text has structure to learn: each token follows from the one before, with some noise.
"""

import argparse
import gc
import os
import sys

import torch
import torch.nn.functional as F
from torch import nn

import intarsia

DIM, VOCABULARY, LENGTH, BATCH = 64, 64, 32, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.RMSNorm(DIM), nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)

    def forward(self, x):
        return x + self.down(F.silu(self.up(self.norm(x))))


def resident_mib():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def live_mib():
    """Bytes of all tensors that Python can reach; those of C++ show in the resident memory."""
    seen = {}
    for o in gc.get_objects():
        if isinstance(o, torch.Tensor) and intarsia.has_layout(o):
            for piece in intarsia.locals(o.detach()):
                seen[piece.data_ptr()] = piece.nbytes
    return sum(seen.values()) / 2**20


def text(generator, table):
    """Sequences in which a token is followed by its successor, 9 times of 10."""
    rows = [torch.randint(0, VOCABULARY, (BATCH,), generator=generator)]
    for _ in range(LENGTH):
        random = torch.randint(0, VOCABULARY, (BATCH,), generator=generator)
        rows.append(torch.where(torch.rand(BATCH, generator=generator) < 0.9, table[rows[-1]], random))
    return torch.stack(rows, 1)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--steps", type=int, default=2000)
    args = ap.parse_args()
    torch.set_num_threads(1)
    intarsia.init()
    world = intarsia.world()
    mesh = f"[dp={world.size()}]"
    torch.manual_seed(0)
    with torch.device("meta"):
        net = nn.Sequential(nn.Embedding(VOCABULARY, DIM), *(Block() for _ in range(3)), nn.Linear(DIM, VOCABULARY))
    intarsia.fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    data = torch.Generator().manual_seed(1)
    table = torch.randperm(VOCABULARY, generator=data)
    losses, memory, every = [], [], max(1, args.steps // 10)
    total = 0.0
    for step in range(1, args.steps + 1):
        tokens = intarsia.distribute(text(data, table), "S(0)", mesh=mesh)
        loss = F.cross_entropy(net(tokens[:, :-1]).reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        intarsia.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        value = intarsia.full(loss.detach()).item()
        first = value if step == 1 else first
        total += value
        if step % every == 0:
            losses.append(total / every)
            memory.append(resident_mib())
            total = 0.0
            if world.rank() == 0:
                print(f"step {step}: loss {losses[-1]:.3f}, resident {memory[-1]:.1f} MiB, tensors {live_mib():.2f} MiB")
    # The first tenth warms up: caches and the allocator fill.
    growth = memory[-1] - memory[1] if len(memory) > 2 else 0.0
    good = losses[-1] < 0.5 * first and growth < 0.02 * memory[1]
    if world.rank() == 0:
        print(f"loss {first:.3f} -> {losses[-1]:.3f}, resident memory grew by {growth:.2f} MiB after the second tenth")
    intarsia.close()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
