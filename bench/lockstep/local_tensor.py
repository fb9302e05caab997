"""PyTorch's LocalTensor on the work of tests/perf/lockstep_cost.cpp: the rival of promises/lockstep/1-cost.

    python bench/lockstep/local_tensor.py --mesh 4,4,4,4

Prints one line of JSON: seconds of set-up, and microseconds per rank of a matmul and of a redistribute. As there,
set-up ends after a first matmul and redistribute, and times are the least of several calls. They are CPU times: calls
are long enough that on a shared machine others run in between.
"""

import argparse
import json
import logging
import math
import time
import warnings

import torch
import torch.distributed as dist
from torch.distributed._local_tensor import LocalTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

CALLS = 5


def least(call):
    """The least seconds of several calls."""
    seconds = []
    for _ in range(CALLS):
        start = time.process_time()
        call()
        seconds.append(time.process_time() - start)
    return min(seconds)


def measure(sizes):
    ranks = math.prod(sizes)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    rows = [Shard(0)] * (len(sizes) - 1) + [Replicate()]
    columns = [Replicate()] * (len(sizes) - 1) + [Shard(1)]
    whole_a, whole_w = torch.randn(ranks * 4, 64), torch.randn(64, 64)
    start = time.process_time()
    with LocalTensorMode(ranks), torch.no_grad():
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=tuple(f"d{i}" for i in range(len(sizes))))
        a, w = distribute_tensor(whole_a, mesh, rows), distribute_tensor(whole_w, mesh, columns)
        made = time.process_time()
        y = a @ w
        z = y.redistribute(mesh, rows)
        setup = time.process_time() - start
        pieces = z.to_local()._local_tensors
        for rank in (0, ranks - 1):
            group = rank // sizes[-1] * sizes[-1]
            whole = (whole_a @ whole_w)[4 * group : 4 * (group + sizes[-1])]
            torch.testing.assert_close(pieces[rank], whole)
        matmul, redistribute = least(lambda: a @ w), least(lambda: y.redistribute(mesh, rows))
    return {
        "mesh": list(sizes),
        "ranks": ranks,
        "setup": setup,
        "setup_before_ops": made - start,
        "mm": 1e6 * matmul / ranks,
        "redistribute": 1e6 * redistribute / ranks,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--mesh", default="4,4,4,4", help="sizes of the axes")
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    print(json.dumps(measure(tuple(int(n) for n in parser.parse_args().mesh.split(",")))))
