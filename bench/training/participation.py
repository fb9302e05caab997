"""Two ranks that use different parts of a model, beside one process that computes both halves.

    participation.py [--steps N]      under a launcher, on 2 processes

Three models: one in which rank 1 leaves a block out on odd steps; one with experts, of which each token uses one, so that some
get no tokens on a rank or on both; one with a frozen branch that rank 1 leaves out. Prints the largest difference of any
parameter or gradient for each.
"""

import argparse
import copy
import sys

import torch
import torch.nn.functional as F
from torch import nn

import intarsia

DIM, CLASSES = 8, 5


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(DIM), nn.Linear(DIM, 3 * DIM), nn.Linear(3 * DIM, DIM)

    def forward(self, x):
        return x + self.down(F.silu(self.up(self.norm(x))))


class Base(nn.Module):
    def __init__(self, blocks=4):
        super().__init__()
        self.inside = nn.Linear(DIM, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, x, used):
        """`used`: which blocks, by rank and step."""
        x = self.inside(x)
        for i in used:
            x = self.blocks[i](x)
        return self.head(x)


def skipping(step, rank):
    return [0, 1, 3] if rank == 1 and step % 2 else [0, 1, 2, 3]


def routed(step, rank):
    """One expert for all tokens of a rank; the fourth gets none but in one step of ten."""
    return [(step + rank) % 3 if step % 10 or rank else 3]


def frozen(step, rank):
    return [0, 2, 3] if rank == 1 else [0, 1, 2, 3]


CASES = {
    "rank 1 skips a block on odd steps": (skipping, ()),
    "an expert that gets no tokens": (routed, ()),
    "a frozen branch that rank 1 skips": (frozen, (1,)),
}


def run(used, still, steps):
    """The largest difference of any parameter or gradient to one process that computes both halves."""
    rank, world = intarsia.world().rank(), intarsia.world()
    torch.manual_seed(0)
    plain = Base().double()
    for i in still:
        plain.blocks[i].requires_grad_(False)
    net = copy.deepcopy(plain)
    mesh = intarsia.Mesh.parse("[dp=2]")
    intarsia.fully_shard(net, mesh=mesh, world=world)
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (net, plain))
    data, worst = torch.Generator().manual_seed(1), 0.0
    for step in range(steps):
        x = torch.randn(12, DIM, dtype=torch.float64, generator=data)
        y = torch.randint(0, CLASSES, (12,), generator=data)
        ours.zero_grad()
        theirs.zero_grad()
        mine = (intarsia.from_local(t.chunk(2)[rank], "S(0)", mesh=mesh, world=world) for t in (x, y))
        inputs, targets = mine
        F.cross_entropy(net(inputs, used(step, rank)), targets).backward()
        halves = [
            F.cross_entropy(plain(x.chunk(2)[r], used(step, r)), y.chunk(2)[r]) for r in range(2)
        ]
        (sum(halves) / 2).backward()
        for (name, p), q in zip(net.named_parameters(), plain.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None), f"step {step}: {name} has a gradient on one side only"
            if p.grad is not None:
                worst = max(worst, (intarsia.full(p.grad) - q.grad).abs().max().item())
        ours.step()
        theirs.step()
    for p, q in zip(net.parameters(), plain.parameters(), strict=True):
        worst = max(worst, (intarsia.full(p.detach()) - q.detach()).abs().max().item())
    return worst


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--steps", type=int, default=50)
    args = ap.parse_args()
    torch.set_num_threads(1)
    intarsia.init()
    # float64; sums of at most 12 terms, some hundred operations deep, over all steps: far below this where right.
    bound, good = 1e-11, True
    for name, (used, still) in CASES.items():
        worst = run(used, still, args.steps)
        good &= worst < bound
        if intarsia.world().rank() == 0:
            print(f"{name}: {args.steps} steps, largest difference {worst:.1e}")
    intarsia.close()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
