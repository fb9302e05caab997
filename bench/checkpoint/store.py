"""Checkpoints to an object store beside s5cmd, which uploads files with as many bytes.

    python tests/launch/launch.py ... bench/checkpoint/store.py FOLDER MIB TENSORS ROUNDS

The store is that of AWS_ENDPOINT_URL, with the bucket `runs`. On each rank: a state of MIB MiB in TENSORS tensors is saved to it by us; then
s5cmd, one process, uploads one file for each rank with as many bytes. In turns, ROUNDS times. Rank 0 prints one line of JSON: the seconds of
each, of the slowest rank. What was saved is loaded and compared before anything is timed."""

import json
import pathlib
import subprocess
import sys

import intarsia as it
import torch
import torch.distributed as dist
from speed import state, timed

BUCKET = "runs"


def main(folder, mebibytes, tensors, rounds):
    dist.init_process_group("gloo")
    it.init("[x=2]")
    rank, root = dist.get_rank(), pathlib.Path(folder)
    full = state(mebibytes, tensors)
    ours = {name: it.distribute(t, f"S({i % 2})") for i, (name, t) in enumerate(full.items())}
    into = {name: torch.zeros_like(t) for name, t in ours.items()}
    mine = sum(it.local(t).numel() for t in ours.values()) * 4
    files = root / "files"
    files.mkdir(exist_ok=True)
    torch.randint(0, 255, (mine,), dtype=torch.uint8).numpy().tofile(files / f"rank-{rank}")
    s5cmd = str(pathlib.Path(sys.executable).parent / "s5cmd")
    seconds = {"ours": [], "s5cmd": [], "load": []}

    def upload(number):
        if rank == 0:
            subprocess.run([s5cmd, "--log", "error", "cp", f"{files}/", f"s3://{BUCKET}/s5cmd-{number}/"], check=True, timeout=300)

    for number in range(rounds + 1):
        once = {
            "ours": timed(lambda: it.save_checkpoint(f"s3://{BUCKET}/ours", number, ours)),
            "s5cmd": timed(lambda: upload(number)),
            "load": timed(lambda: it.load_checkpoint(f"s3://{BUCKET}/ours", into, step=number)),
        }
        if number == 0:
            assert all(torch.equal(it.local(into[name]), it.local(t)) for name, t in ours.items())
        else:
            for name, value in once.items():
                seconds[name].append(value)
        dist.barrier()
        if rank == 0:
            subprocess.run([s5cmd, "--log", "error", "rm", f"s3://{BUCKET}/*"], check=True, timeout=300)
        dist.barrier()
    if rank == 0:
        print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *(int(word) for word in sys.argv[2:5]))
