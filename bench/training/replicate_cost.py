"""A data parallel step three ways, in turns: replicate, torch's DistributedDataParallel, and one all_reduce by hand.

    PYTHONPATH=build/release/python python bench/training/replicate_cost.py [--rounds N] [--processes N]

Gradients are compared first. By hand: all gradients are joined in one flat buffer after backward, reduced by one
c10d all_reduce, and copied back. Times are medians over rounds of forward and backward on rank 0; the ratios of ours to
both are the last line of each model, medians of the ratios of the same round.
"""

import argparse
import copy
import os
import pathlib
import random
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def models():
    import torch

    def layers(count, width):
        parts = []
        for _ in range(count):
            parts += [torch.nn.Linear(width, width), torch.nn.Tanh()]
        return torch.nn.Sequential(*parts)

    yield "12 layers of 512, 12.6 MB", layers(12, 512), torch.randn(128, 512)
    yield "500 layers of 16, 1,000 parameters", layers(500, 16), torch.randn(16, 16)
    yield "2 layers of 2048, 33.6 MB", layers(2, 2048), torch.randn(64, 2048)


class Side:
    def __init__(self, model):
        self.model = copy.deepcopy(model)
        self.forward = self.model

    def step(self, batch):
        for p in self.model.parameters():
            p.grad = None
        self.forward(batch).square().mean().backward()


class Ours(Side):
    def __init__(self, model):
        import intarsia

        super().__init__(model)
        self.replica = intarsia.replicate(self.model)


class Ddp(Side):
    def __init__(self, model):
        import torch

        super().__init__(model)
        self.forward = torch.nn.parallel.DistributedDataParallel(self.model, gradient_as_bucket_view=True)


class Hand(Side):
    def step(self, batch):
        import torch

        super().step(batch)
        parameters = list(self.model.parameters())
        flat = torch.cat([p.grad.view(-1) for p in parameters])
        torch.distributed.all_reduce(flat)
        flat /= torch.distributed.get_world_size()
        for p, g in zip(parameters, flat.split([p.numel() for p in parameters])):
            p.grad.copy_(g.view_as(p))


def compare(sides, batch):
    import torch

    for _ in range(2):  # the second with the buckets as they stay
        for side in sides.values():
            side.step(batch)
        for name, side in sides.items():
            for p, q in zip(side.model.parameters(), sides["hand"].model.parameters()):
                torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-6, msg=name)


def rank_main(rounds):
    import torch
    import torch.distributed as dist

    sys.path.insert(0, str(ROOT / "build/release/python"))
    import intarsia

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    intarsia.init({"dp": dist.get_world_size()})
    torch.manual_seed(0)
    for title, model, batch in models():
        batch = batch + dist.get_rank()
        sides = {"ours": Ours(model), "ddp": Ddp(model), "hand": Hand(model)}
        compare(sides, batch)
        times = {name: [] for name in sides}
        shuffle = random.Random(0)  # the same on all ranks; each side comes after each other one
        for _ in range(rounds):
            for name in shuffle.sample(list(sides), len(sides)):
                dist.barrier()
                begin = time.perf_counter()
                sides[name].step(batch)
                times[name].append(time.perf_counter() - begin)
        if dist.get_rank() == 0:
            medians = {name: statistics.median(t) for name, t in times.items()}
            ratios = [statistics.median(a / b for a, b in zip(times["ours"], times[o])) for o in ("ddp", "hand")]
            print(f"{title}: " + ", ".join(f"{name} {t * 1e3:.2f} ms" for name, t in medians.items()))
            print(f"  ours over ddp {ratios[0]:.3f}, over the one by hand {ratios[1]:.3f}", flush=True)
    intarsia.close()
    dist.destroy_process_group()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--rounds", type=int, default=60)
    ap.add_argument("--processes", type=int, default=2)
    arguments = ap.parse_args()
    if "RANK" in os.environ:
        return rank_main(arguments.rounds)
    sys.path.insert(0, str(ROOT / "tests" / "launch"))
    import launch

    command = [sys.executable, __file__, "--rounds", str(arguments.rounds)]
    result = launch.run("plain", arguments.processes, command, env={"OMP_NUM_THREADS": "1"}, timeout=600)
    print(result.stdout, result.stderr if result.returncode else "", sep="", end="")
    sys.exit(result.returncode)


if __name__ == "__main__":
    main()
