"""Models that are made, sharded, trained for a step and dropped, on the processes of a launcher.

    models_come_and_go.py HOW N      HOW: fully_shard, parallelize or replicate

Each rank prints what its process holds in the middle and at the end, as
`rank 0: descriptors 30 30, threads 8 8, KiB 90112 90240`. A model has 2 MiB of parameters.
"""

import ctypes
import gc
import os
import sys

import torch

import intarsia as it


def held():
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what is free, and only not yet given back, is not held
    pages = int(open("/proc/self/statm").read().split()[1])
    # The listing itself has a descriptor.
    return len(os.listdir("/proc/self/fd")) - 1, len(os.listdir("/proc/self/task")), pages * 4


def train_one(how):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256))
    if how == "fully_shard":
        it.fully_shard(model)
    elif how == "parallelize":
        it.parallelize(model, it.mesh(), {"0.*": "S(0)", "2.weight": "S(1)"})
    else:
        replica = it.replicate(model)  # noqa: F841  lives as long as the model
    optimizer = torch.optim.AdamW(model.parameters())
    loss = model(torch.ones(4, 256)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def main(how, n):
    torch.set_num_threads(1)
    it.init({"dp": int(os.environ["WORLD_SIZE"])}, timeout=60)
    for i in range(n):
        train_one(how)
        if i == n // 2:
            middle = held()
    pairs = [f"{a} {b}" for a, b in zip(middle, held(), strict=True)]
    print(f"rank {it.world().rank()}: descriptors {pairs[0]}, threads {pairs[1]}, KiB {pairs[2]}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
