"""What saving behind the training loop costs it.

    python tests/launch/launch.py ... bench/checkpoint/behind.py FOLDER MIB ROUNDS

Each rank trains: matrix products for about a second, then an update of a state of MIB MiB, sharded over the ranks. In turns, ROUNDS
times: a step without a save; a step that begins with a save, "behind" and "overlapped" (until `wait_staged` before the update), and
in the latter case the step after it, in which it is written; and the copy of as much memory, nothing else. Rank 0 prints one line of
JSON: of each the seconds, of the slowest rank, and those for which `save` and `wait_staged` held the step up. What was saved last is
loaded and compared."""

import collections
import json
import pathlib
import shutil
import sys
import time

import intarsia as it
import torch
import torch.distributed as dist

SECONDS = 1.2


def slowest(seconds):
    value = torch.tensor(seconds)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return float(value)


def main(folder, mebibytes, rounds):
    dist.init_process_group("gloo")
    it.init("[x=2]")
    root = pathlib.Path(folder)
    rows = (mebibytes << 20) // 16 // 4 // 1024
    state = {f"layers.{i}.weight": it.ones([rows, 1024], f"S({i % 2})") * i for i in range(16)}
    pieces = [it.local(t) for t in state.values()]
    copies = [torch.zeros_like(piece) for piece in pieces]
    a = torch.randn(512, 512)

    def products(count):
        for _ in range(count):
            a @ a

    products(20)
    start = time.perf_counter()
    products(50)
    count = torch.tensor(int(50 * SECONDS / (time.perf_counter() - start)))
    dist.broadcast(count, 0)

    def step(manager=None):
        """The seconds of the step, and those for which the save held it up."""
        dist.barrier()
        start = time.perf_counter()
        blocked = 0.0
        if manager is not None:
            manager.save(number, state)
            blocked += time.perf_counter() - start
        products(int(count))
        before = time.perf_counter()
        if manager is not None:
            manager.wait_staged()
        blocked += time.perf_counter() - before
        for tensor in state.values():
            tensor += 1
        return slowest(time.perf_counter() - start), slowest(blocked)

    def copy():
        dist.barrier()
        start = time.perf_counter()
        for piece, into in zip(pieces, copies):
            into.copy_(piece)
        return slowest(time.perf_counter() - start)

    managers = {mode: it.CheckpointManager(root / mode, keep=1, mode=mode) for mode in ("behind", "overlapped")}
    seconds = collections.defaultdict(list)
    for number in range(rounds + 1):
        once = {"plain": step()[0], "copy": copy()}
        for mode, manager in managers.items():
            once[mode], once[f"{mode}_blocked"] = step(manager)
            if mode == "overlapped":
                once["overlapped_next"] = step()[0]
            manager.wait()
        for name, value in once.items() if number > 0 else ():
            seconds[name].append(value)
    seconds["writing"] = [slowest(m.times.writing / m.times.saves) for m in managers.values()]
    into = {name: torch.zeros_like(t) for name, t in state.items()}
    it.load_checkpoint(root / "overlapped", into)
    # Two updates came after the save.
    assert all(torch.equal(it.local(into[name]) + 2, it.local(t)) for name, t in state.items())
    dist.barrier()
    if dist.get_rank() == 0:
        print(json.dumps(seconds), flush=True)
        shutil.rmtree(root)


main(sys.argv[1], *(int(word) for word in sys.argv[2:4]))
