"""A training step of a transformer with the guard and without it, one after the other, on the processes of a launcher.

    guard_step.py PAIRS

Rank 0 prints the ratio of the median pair and the spread: `on/off 1.003 (0.981 to 1.022, 15 pairs)`.
"""

import os
import statistics
import sys
import time

import torch

import intarsia as it

STEPS = 15  # of each, alternating, whose medians make a pair: other work of the machine touches both


class Trained:
    """A sharded transformer in a world of its own."""

    def __init__(self, guarded):
        os.environ["INTARSIA_GUARD"] = "on" if guarded else "off"
        self.world = it.World.connect(timeout=120)
        self.mesh = it.Mesh({"dp": self.world.size()})
        torch.manual_seed(0)
        layers = [torch.nn.TransformerEncoderLayer(128, 4, 512, 0.0, batch_first=True) for _ in range(4)]
        self.model = torch.nn.Sequential(*layers)
        it.fully_shard(self.model, mesh=self.mesh, world=self.world)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.batch = it.from_local(torch.ones(4, 32, 128), "S(0)", mesh=self.mesh, world=self.world)

    def seconds(self):
        begin = time.perf_counter()
        self.model(self.batch).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - begin


def ratio(on, off, on_first):
    times = {on: [], off: []}
    for _ in range(STEPS):
        for trained in (on, off) if on_first else (off, on):
            times[trained].append(trained.seconds())
    return statistics.median(times[on]) / statistics.median(times[off])


def main(pairs):
    torch.set_num_threads(1)
    on, off = Trained(True), Trained(False)
    ratio(on, off, True)
    ratios = [ratio(on, off, i % 2 == 0) for i in range(pairs)]
    if on.world.rank() == 0:
        middle = statistics.median(ratios)
        print(f"on/off {middle:.3f} ({min(ratios):.3f} to {max(ratios):.3f}, {pairs} pairs)", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
