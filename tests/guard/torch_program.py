"""One of four processes of a program of PyTorch alone, of which rank 2 misbehaves: torch_program.py FAULT STEPS

It knows nothing of Intarsia; faults.py runs it under `python -m intarsia run`. Prints the moment the fault begins, and what
the rank was told, or a number that it must not have.
"""

import contextlib
import datetime
import json
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

BAD, TIMEOUT = 2, 6.0
FAULTS = {}


def fault(act):
    FAULTS[act.__name__.removeprefix("do_")] = act
    return act


def model(widths=(8, 16, 8)):
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Linear(a, b) for a, b in zip(widths, widths[1:])))


class Job:
    """What every training script has: a model, its optimizer and steps."""

    def __init__(self):
        self.rank = dist.get_rank()
        self.bad = self.rank == BAD
        self.ddp = DistributedDataParallel(model())
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), 0.01)

    def step(self, module=None):
        self.optimizer.zero_grad()
        loss = (module or self.ddp)(torch.ones(3, 8)).sum()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def reduced(*sizes, dtype=torch.float32, op=dist.ReduceOp.SUM, group=None):
    t = torch.ones(*sizes, dtype=dtype)
    dist.all_reduce(t, op=op, group=group)
    return t.sum().item()


@fault
def do_dtype(job):
    return reduced(8, 4, dtype=torch.int32 if job.bad else torch.float32)


@fault
def do_transposed(job):
    return reduced(4, 8) if job.bad else reduced(8, 4)


@fault
def do_reduction(job):
    return reduced(8, 4, op=dist.ReduceOp.MAX if job.bad else dist.ReduceOp.SUM)


@fault
def do_smaller(job):
    return reduced(8, 3 if job.bad else 4)


@fault
def do_larger(job):
    return reduced(8, 50000 if job.bad else 4)


@fault
def do_gathered_smaller(job):
    t = torch.ones(2, 3 if job.bad else 4)
    out = [torch.empty_like(t) for _ in range(dist.get_world_size())]
    dist.all_gather(out, t)
    return sum(out).sum().item()


@fault
def do_scattered_otherwise(job):
    out = torch.empty(4 if job.bad else 2)
    dist.reduce_scatter_tensor(out, torch.ones(16 if job.bad else 8))
    return out.sum().item()


@fault
def do_other_root(job):
    t = torch.full((3,), float(job.rank))
    dist.broadcast(t, src=1 if job.bad else 0)
    return t.sum().item() + reduced(3, 3)


@fault
def do_other_collective(job):
    if job.bad:
        dist.barrier()
        return 0
    return reduced(3, 3)


@fault
def do_object(job):
    """The habit of those who exchange what is not a tensor: one rank has more to say."""
    if job.bad:
        reduced(1)
    out = [None] * dist.get_world_size()
    dist.all_gather_object(out, {"rank": job.rank})
    return len(out)


@fault
def do_extra_call(job):
    if job.bad:
        reduced(2, 2)
    return reduced(3, 3)


@fault
def do_left_out(job):
    if not job.bad:
        reduced(2, 2)
    return reduced(3, 3)


@fault
def do_swapped(job):
    first, second = (3, 2) if job.bad else (2, 3)
    return reduced(first, 2) + reduced(second, 2)


@fault
def do_swapped_groups(job):
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    groups = [None, pairs[job.rank // 2]]
    return [reduced(8, 8, group=g) for g in (reversed(groups) if job.bad else groups)]


@fault
def do_one_step_less(job):
    if not job.bad:
        job.step()
    return reduced(3, 3)


@fault
def do_accumulates_alone(job):
    """The habit of those who accumulate gradients: a rank with fewer batches reduces once less."""
    with job.ddp.no_sync() if job.bad else contextlib.nullcontext():
        job.step()
    return reduced(3, 3)


@fault
def do_sharded_one_step_less(job):
    module = model()
    for layer in module:
        fully_shard(layer)
    fully_shard(module)
    for _ in range(1 if job.bad else 2):
        module(torch.ones(3, 8)).sum().backward()
    return reduced(3, 3)


@fault
def do_sharded_skipped_layer(job):
    module = model((8, 8, 8, 16))
    for layer in module:
        fully_shard(layer)
    fully_shard(module)
    x = torch.ones(3, 8)
    for number, layer in enumerate(module):
        if not (job.bad and number == 1):
            x = layer(x)
    x.sum().backward()
    return reduced(3, 3)


@fault
def do_dtensor_read_on_one_rank(job):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    x = distribute_tensor(torch.ones(8, 2), mesh, [Shard(0)])
    if job.bad:
        x.full_tensor()
    return reduced(3, 3)


@fault
def do_exception(job):
    if job.bad:
        raise RuntimeError("an error of rank 2 alone")
    return job.step()


@fault
def do_killed(job):
    if job.bad:
        os.kill(os.getpid(), signal.SIGKILL)
    return job.step()


@fault
def do_killed_in_backward(job):
    if job.bad:
        next(job.ddp.parameters()).register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    return job.step()


@fault
def do_terminated(job):
    if job.bad:
        os.kill(os.getpid(), signal.SIGTERM)
    return reduced(3, 3)


@fault
def do_exits(job):
    if job.bad:
        sys.exit(0)
    return job.step()


@fault
def do_killed_while_it_waits(job):
    if job.bad:
        threading.Timer(0.5, os._exit, [7]).start()
    if job.rank == 0:
        time.sleep(60)
    return reduced(3, 3)


@fault
def do_stopped(job):
    if job.bad:
        os.kill(os.getpid(), signal.SIGSTOP)
    return job.step()


@fault
def do_endless_loop(job):
    end = time.time() + 30
    while job.bad and time.time() < end:
        pass
    return reduced(3, 3)


@fault
def do_blocked_read(job):
    if job.bad:
        inside, _outside = os.pipe()
        os.read(inside, 1)
    return reduced(3, 3)


def main(name, steps):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=TIMEOUT))
    job = Job()
    for _ in range(steps + 1):
        job.step()
    dist.barrier()
    print("BEGINS", time.time(), flush=True)
    try:
        print("NUMBER", FAULTS[name](job), flush=True)
    except Exception as error:
        print("TOLD", json.dumps([time.time(), str(error)]), flush=True)
        if job.bad:
            raise


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
