"""Checkpoints beside a raw write or read of as many bytes by as many processes, and beside PyTorch's torch.distributed.checkpoint.

    python tests/launch/launch.py ... bench/checkpoint/speed.py FOLDER MIB TENSORS ROUNDS

On each rank: a state of MIB MiB in TENSORS tensors, half of them sharded by rows and half by columns, is saved by us in both forms, by DCP
and, as one file for each rank, written and synced without more; then loaded by us and read. In turns, ROUNDS times. Rank 0 prints one line of
JSON: the seconds of each, of the slowest rank. What was loaded is compared before anything is timed."""

import json
import os
import pathlib
import shutil
import sys
import time

import intarsia as it
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

BLOCK = 4 << 20


def state(mebibytes, tensors):
    columns = 1024 if tensors <= 64 else 64
    rows = (mebibytes << 20) // tensors // 4 // columns
    generator = torch.Generator().manual_seed(1)
    return {f"layers.{i}.weight": torch.randn(rows, columns, generator=generator) for i in range(tensors)}


def timed(work):
    """The seconds of the slowest rank."""
    dist.barrier()
    start = time.perf_counter()
    work()
    seconds = torch.tensor(time.perf_counter() - start)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return float(seconds)


def raw_write(path, memory):
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    at = 0
    while at < len(memory):
        at += os.write(descriptor, memory[at : at + BLOCK])
    os.fsync(descriptor)
    os.close(descriptor)


def raw_read(path, memory):
    with open(path, "rb", buffering=0) as file:
        at = 0
        while at < len(memory):
            at += file.readinto(memory[at : at + BLOCK])


def forget(folder):
    """The files are read from the disk, not from the system's memory."""
    for path in pathlib.Path(folder).rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def main(folder, mebibytes, tensors, rounds):
    dist.init_process_group("gloo")
    it.init("[x=2]")
    rank, root = dist.get_rank(), pathlib.Path(folder)
    full = state(mebibytes, tensors)
    mesh = init_device_mesh("cpu", (2,))
    theirs = {name: distribute_tensor(t, mesh, [Shard(i % 2)]) for i, (name, t) in enumerate(full.items())}
    ours = {name: it.distribute(t, f"S({i % 2})") for i, (name, t) in enumerate(full.items())}
    into = {name: torch.zeros_like(t) for name, t in ours.items()}
    mine = sum(it.local(t).numel() for t in ours.values()) * 4
    memory = memoryview(torch.randint(0, 255, (mine,), dtype=torch.uint8).numpy())
    back = memoryview(torch.zeros(mine, dtype=torch.uint8).numpy())
    raw = root / f"raw-{rank}"
    seconds = {name: [] for name in ("ours", "dcp", "raw", "load", "read", "hf")}
    for number in range(rounds + 1):
        once = {
            "raw": timed(lambda: raw_write(raw, memory)),
            "ours": timed(lambda: it.save_checkpoint(root / "ours", number, ours)),
            "hf": timed(lambda: it.save_checkpoint(root / "hf", number, ours, form="hf")),
            "dcp": timed(lambda: dcp.save(theirs, storage_writer=dcp.FileSystemWriter(root / f"dcp-{number}"), no_dist=False)),
        }
        dist.barrier()
        if rank == 0:
            forget(root)
        once["load"] = timed(lambda: it.load_checkpoint(root / "ours", into, step=number))
        once["read"] = timed(lambda: raw_read(raw, back))
        if number == 0:
            assert all(torch.equal(it.local(into[name]), it.local(t)) for name, t in ours.items()) and back == memory
            for t in into.values():
                t.zero_()
            it.load_checkpoint(root / "hf", into)
            assert all(torch.equal(it.local(into[name]), it.local(t)) for name, t in ours.items())
        else:
            for name, value in once.items():
                seconds[name].append(value)
        dist.barrier()
        if rank == 0:
            shutil.rmtree(root / "ours")
            shutil.rmtree(root / "hf")
            shutil.rmtree(root / f"dcp-{number}")
        raw.unlink()
    if rank == 0:
        print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *(int(word) for word in sys.argv[2:5]))
