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

STEPS = 4  # of which one time is made


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
        for _ in range(STEPS):
            self.model(self.batch).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return time.perf_counter() - begin


def main(pairs):
    torch.set_num_threads(1)
    on, off = Trained(True), Trained(False)
    on.seconds(), off.seconds()
    ratios = []
    for i in range(pairs):
        first, second = (on, off) if i % 2 else (off, on)
        times = {first: first.seconds(), second: second.seconds()}
        ratios.append(times[on] / times[off])
    if on.world.rank() == 0:
        middle = statistics.median(ratios)
        print(f"on/off {middle:.3f} ({min(ratios):.3f} to {max(ratios):.3f}, {pairs} pairs)", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
