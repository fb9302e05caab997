"""One rank is slowed by a fifth of a step, in one phase; the rank and the phase must be named.

    stragglers.py [--count N] [--seed S] [--program sharded|ddp ...] [--ranks N]

Each program trains on processes of its own, and after each 64 steps another rank is slowed in another phase, at random; what
find_straggler says is compared. Between two slowdowns there are 64 steps without, whose result is printed alone: equal ranks
may really differ on a machine that is busy. The last line counts.
"""

import argparse
import os
import pathlib
import random
import re
import sys
import time

STEPS, SHARE = 66, 0.2  # two more than are kept
PHASES = ("data", "forward", "backward", "optimizer")
ROOT = pathlib.Path(__file__).resolve().parents[2]


# --- what processes do -------------------------------------------------------------------------------------------


class Slow:
    """Sleeps in one phase of one rank."""

    def __init__(self, rank):
        self.rank, self.where, self.seconds = rank, None, 0.0

    def here(self, phase):
        if self.where == (self.rank, phase):
            time.sleep(self.seconds)


def train(program, count, seed):
    import torch
    import torch.distributed as dist

    import intarsia as it

    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    slow = Slow(rank)
    torch.manual_seed(0)

    class Batches(torch.utils.data.IterableDataset):
        def __iter__(self):
            while True:
                slow.here("data")
                yield torch.ones(8, 32, 64)

    class Block(torch.nn.Sequential):
        def forward(self, x):
            slow.here("forward")
            x = super().forward(x)
            if x.requires_grad:
                x.register_hook(lambda gradient: slow.here("backward"))
            return x

    class Optimizer(torch.optim.AdamW):
        def step(self, closure=None):
            slow.here("optimizer")
            return super().step(closure)

    model = Block(*[torch.nn.TransformerEncoderLayer(64, 4, 256, 0.0, batch_first=True) for _ in range(2)])
    if program == "sharded":
        it.init({"dp": size})
        it.fully_shard(model)
        lay_out = lambda batch: it.from_local(batch, "S(0)")  # noqa: E731
    else:
        it.watch()
        dist.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
        lay_out = lambda batch: batch  # noqa: E731
    optimizer = Optimizer(model.parameters(), lr=1e-4)
    batches = iter(torch.utils.data.DataLoader(Batches(), batch_size=None))

    def window():
        """The straggler of the next steps."""
        for _ in range(STEPS):
            model(lay_out(next(batches))).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return it.find_straggler(), max(times.total() for times in it.step_times())

    _, step = window()
    draw = random.Random(seed)
    for _ in range(count):
        slow.where = (draw.randrange(size), draw.choice(PHASES))
        slow.seconds = SHARE * step
        found, _ = window()
        slowed, slow.where = slow.where, None
        calm, step = window()
        if rank == 0:
            says = str(found) if found else "nobody is slow"
            right = found is not None and (found.rank, found.phase) == slowed
            print(f"{'named' if right else 'MISSED'}: rank {slowed[0]} in {slowed[1]} by {slow.seconds * 1e3:.1f} ms; said: {says};", end=" ")
            print(f"without: {calm or 'nobody is slow'}", flush=True)


# --- who starts them ---------------------------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=5, help="slowdowns in each program")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--program", nargs="+", default=["sharded", "ddp"], choices=["sharded", "ddp"])
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests" / "launch"))
    import launch

    named = total = 0
    for i, program in enumerate(options.program):
        command = [sys.executable, __file__, "--train", program, str(options.count), str(options.seed + i)]
        done = launch.run("plain", options.ranks, command, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        lines = re.findall(r"^(?:named|MISSED): .*", done.stdout, re.M)
        assert len(lines) == options.count, done.stdout + done.stderr
        print(*(f"{program}: {line}" for line in lines), sep="\n", flush=True)
        named += sum(line.startswith("named") for line in lines)
        total += len(lines)
    print(f"{named} of {total} slowdowns of {SHARE:.0%} were named, with the right rank and phase")
    return 0 if named == total else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        sys.exit(main())
