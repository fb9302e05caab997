"""First calls of an op on a mesh, ours and DTensor's, in one process with a fake process group (nothing is sent).

    python bench/cold/cold.py

Prints one line of JSON: for 1 to 4 mesh axes of 2 ranks and each op, microseconds of DTensor's first and repeated call,
of ours, and of ours with an emptied cache (medians of many). They are CPU time of the thread that calls, which does not
count what other programs do meanwhile.
"""

import json
import logging
import statistics
import time
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from torch.testing._internal.distributed import fake_pg  # noqa: F401 - makes the backend "fake" known

import intarsia

SIZE, AXES, REPEATS = 256, 4, 200


def microseconds(call, repeats=1, before=None):
    times = []
    for _ in range(repeats):
        if before:
            before()
        start = time.thread_time_ns()
        call()
        times.append((time.thread_time_ns() - start) / 1e3)
    return statistics.median(times)


def ops(a, b, c):
    return {
        "add": lambda: a + b,
        "mm": lambda: a @ b,
        "addmm": lambda: torch.addmm(c, a, b),
    }


def theirs(axes):
    mesh = init_device_mesh("cpu", (2,) * axes)
    whole = [Replicate()] * axes

    def made(placements, rows):
        return DTensor.from_local(torch.zeros(rows, SIZE), mesh, placements, shape=torch.Size((SIZE, SIZE)), stride=(SIZE, 1))

    a, b, c = made([Shard(0)] + whole[1:], SIZE // 2), made(whole, SIZE), made(whole, SIZE)
    return {name: {"first": microseconds(op), "again": microseconds(op, 50)} for name, op in ops(a, b, c).items()}


def ours(axes):
    mesh = intarsia.Mesh([(f"a{i}", 2) for i in range(axes)])
    whole = ",".join(["R"] * axes)
    rows = ",".join(["S(0)"] + ["R"] * (axes - 1))
    a = intarsia.from_local(torch.zeros(SIZE // 2, SIZE), rows, mesh=mesh, shape=[SIZE, SIZE])
    b, c = (intarsia.from_local(torch.zeros(SIZE, SIZE), whole, mesh=mesh) for _ in range(2))
    out = {}
    for name, op in ops(a, b, c).items():
        out[name] = {"first": microseconds(op)}
        out[name]["again"] = microseconds(op, REPEATS)
        out[name]["emptied"] = microseconds(op, REPEATS, before=intarsia.clear_cache)
    return out


def main():
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=64)
    intarsia.connect()
    with torch.no_grad():
        print(json.dumps({axes: {"ours": ours(axes), "theirs": theirs(axes)} for axes in range(1, AXES + 1)}))


if __name__ == "__main__":
    main()
