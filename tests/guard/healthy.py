"""Programs without faults, whose ranks are slow at random and legally differ: the guard says nothing.

    healthy.py [--count N] [--seed S] [--ranks R] [--backend gloo|shm] [--apart]

Each program is drawn from its seed: steps of training fully sharded, of which ranks skip blocks; replicas with batches of
their own; stages, whose ranks make other calls than those of the other stage; plain tensors that all ranks have alike, some of
which a rank does not use; random numbers; values that are read. Ranks sleep at random. All ranks compare their results at the
end. With `--apart` every second rank counts as one of another host. Prints a count as the last line.
"""

import argparse
import os
import pathlib
import random
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "launch"))
import launch  # noqa: E402


class Program:
    """What one rank does. `draw` is the same on all ranks, `own` is not."""

    def __init__(self, seed):
        import torch
        from torch import nn

        import intarsia as it

        torch.set_num_threads(1)
        self.torch, self.it = torch, it
        self.mesh = it.init({"dp": it.world(timeout=60).size()})
        self.rank, self.size = it.world().rank(), it.world().size()
        self.draw, self.own = random.Random(seed), random.Random(f"{seed} {self.rank}")
        torch.manual_seed(seed)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.sharding = it.fully_shard(self.blocks, mesh=self.mesh, shard="dp")
        self.sharded_step = torch.optim.SGD(self.blocks.parameters(), 0.01)
        self.net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
        self.replica = it.replicate(self.net, mesh=self.mesh)
        half = self.size // 2
        self.stage = it.Mesh({"s": half}) if self.rank < half else it.Mesh(f"[s={self.size - half}]+{half}")
        self.x = it.rand((self.size * 3, 8), "S(0)", mesh=self.mesh)
        self.read = []

    def pause(self):
        if self.own.random() < 0.3:
            time.sleep(self.own.random() * 0.03)

    def sharded(self, skips=0.3):
        """Each rank has rows of its own, and may skip blocks; a plain scale belongs to each block."""
        rows = self.it.from_local(self.torch.full((2, 8), self.own.random()), "S(0)", mesh=self.mesh)
        for number, block in enumerate(self.blocks):
            scale = self.torch.full((8,), 1.0 + number)
            if number > 0 and self.own.random() < skips:
                continue
            self.pause()
            rows = block(rows) * scale
        rows.square().mean().backward()
        self.sharded_step.step()
        self.sharded_step.zero_grad()

    def replicated(self):
        self.net(self.torch.full((2, 8), self.own.random())).sum().backward()
        for p in self.net.parameters():
            p.grad = None

    def staged(self):
        """Calls among the ranks of a stage, of which the other stage makes more or fewer, of other kinds."""
        first = self.rank < self.size // 2
        ones = self.torch.ones(3 if first else 5)
        for _ in range(self.draw.randrange(3) + (0 if first else 1)):
            self.pause()
            self.it.full(self.it.from_local(ones, "P(sum)" if first else "P(max)", mesh=self.stage))

    def plain(self):
        """Plain tensors that are alike where ranks use them; the first does some more, for its log, which sends nothing."""
        for _ in range(self.draw.randrange(1, 4)):
            scale = self.torch.full((8,), self.draw.random())
            by_all = self.draw.random() < 0.5
            if by_all or self.rank == 0:
                _ = self.x * scale
        self.x = self.x * 0.5 + self.torch.full((8,), self.draw.random())

    def drawn(self):
        self.x = self.torch.nn.functional.dropout(self.x, 0.1)
        self.x = self.x + self.it.rand((8,), "R", mesh=self.mesh)

    def reading(self):
        self.read.append(self.x.sum().item())

    def run(self):
        self.sharded(skips=0)  # in the first step all ranks use the same
        actions = (self.sharded, self.replicated, self.staged, self.plain, self.drawn, self.reading)
        for _ in range(12):
            self.pause()
            self.draw.choice(actions)()
        self.reading()
        weights = [self.it.full(p.detach()) for p in self.blocks.parameters()]
        same = self.it.from_local(self.torch.tensor([*self.read, *(w.sum().item() for w in weights)]), "R", mesh=self.mesh)
        self.it.assert_replicas(same, name="what ranks read")
        self.it.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--backend", default="gloo", choices=("gloo", "shm"))
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--work", action="store_true", help="as one of the processes")
    options = parser.parse_args()
    if options.work:
        if options.apart:
            os.environ["INTARSIA_GUARD_HOST"] = "ab"[int(os.environ["RANK"]) % 2]
        for seed in range(options.seed, options.seed + options.count):
            Program(seed).run()
            os.write(1, f"healthy {seed}\n".encode())  # in one piece: all processes write to one pipe
        return 0
    good, each = 0, 10
    for first in range(options.seed, options.seed + options.count, each):
        number = min(each, options.seed + options.count - first)
        command = [sys.executable, __file__, "--work", "--seed", str(first), "--count", str(number), *["--apart"] * options.apart]
        env = {"OMP_NUM_THREADS": "1", "INTARSIA_BACKEND": options.backend}
        done = launch.run("plain", options.ranks, command, env=env, timeout=60 + 30 * number)
        for seed in range(first, first + number):
            good += done.stdout.count(f"healthy {seed}\n") == options.ranks
        if done.returncode != 0:
            print(f"programs {first} to {first + number - 1}:\n{done.stdout[-500:]}{done.stderr[-3000:]}")
    print(f"{good} of {options.count} healthy programs of {options.ranks} ranks over {options.backend} ran without an alarm")
    return 0 if good == options.count else 1


if __name__ == "__main__":
    sys.exit(main())
