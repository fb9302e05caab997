"""Planted faults and healthy programs, each compared with its serial program.

    launch.py -n 2 -- corpus.py bugs|healthy [--only TEXT] [--every N] [--show]

The first rank prints a line for each: whether it was as it should be, and which module was named.
"""

import argparse
import sys
import warnings

import intarsia as it
import models
import our_bugs
import torch
import torch.distributed as dist
import torch_bugs

warnings.filterwarnings("ignore")


class References:
    """One for each task: it is the same for many programs."""

    def __init__(self):
        self._made = {}

    def of(self, task):
        if task not in self._made:
            self._made[task] = it.EquivReference(self._program(task))
        return self._made[task]

    def _program(self, task):
        if task == "clipped":
            return lambda: models.train(models.MLP, before_step=torch_bugs.clip)
        return lambda: models.train(task)


def bugs():
    for name, (program, task, modules) in {**torch_bugs.BUGS, **our_bugs.BUGS}.items():
        yield name, program, task, modules


def healthy():
    for name, (program, task) in torch_bugs.HEALTHY.items():
        yield name, program, task, None
    for dtype in (torch.float32, torch.bfloat16):
        for text, task in models.TASKS.items():
            there = our_bugs.in_dtype(task, dtype)
            for name, program in our_bugs.layouts_of(there).items():
                yield f"{text} {str(dtype).removeprefix('torch.')}: {name}", program, there, None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("which", choices=["bugs", "healthy"])
    parser.add_argument("--only", default="")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--show", action="store_true")
    a = parser.parse_args()
    dist.init_process_group("gloo")
    it.init()
    references = References()
    right = named = total = alone = 0
    for i, (name, program, task, modules) in enumerate(bugs() if a.which == "bugs" else healthy()):
        if a.only not in name or i % a.every:
            continue
        dist.barrier()
        total += 1
        alone += name in torch_bugs.BUGS or name in torch_bugs.HEALTHY
        try:
            report = references.of(task).compare(program)
        except Exception as error:
            print(f"{name}: rank {dist.get_rank()} failed: {type(error).__name__}: {error}", flush=True)
            continue
        right += report.equal == (modules is None)
        ok = modules is not None and report.module in modules
        named += ok
        if dist.get_rank() == 0:
            what = f"equal, {report.ratio:.2g}" if report.equal else f"parts in '{report.module}' of step {report.first.key.step}"
            wrong = "" if report.equal == (modules is None) and (modules is None or ok) else f"   <- expected {modules or 'equal'}"
            print(f"{name}: {what}{wrong}", flush=True)
            if a.show:
                print(report, flush=True)
    if dist.get_rank() == 0:
        print(f"{right} of {total} as they should be, {named} named, {alone} with PyTorch alone")
    dist.destroy_process_group()


sys.exit(main())
