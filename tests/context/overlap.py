"""A ring of attention over a wire that is slow and costs no processor time: how long forward and backward take, beside what they would
take if every transfer were hidden behind what is computed meanwhile.

    launch.py -n RANKS -- overlap.py sleeping STEP_MS DELAY_MS   a kernel that sleeps for one step, and for two in backward: exact on any
                                                                 machine
    launch.py -n RANKS -- overlap.py real                        the device's kernel, beside the same ring where nothing is delayed, by
                                                                 turns; a transfer takes four fifths of a step

Rank 0 prints how much of the ideal forward and backward took: `... 1.03 and 1.02 of ideal`.
"""

import os
import statistics
import sys
import time

import intarsia as it
import torch

ROUNDS = 9


class Ring:
    """Attention over a ring in a world of its own, whose transfers take so many seconds."""

    def __init__(self, delay, size, heads, width, mask="causal", order=None, kernel=None):
        os.environ["INTARSIA_WIRE_DELAY"] = f"{delay * 1e6:.0f},0"
        self.world = it.World.connect(timeout=120)
        self.ranks = self.world.size()
        self.mesh = it.Mesh({"cp": self.ranks})
        torch.manual_seed(0)
        self.tensors = [self.laid_out(it.distribute, torch.randn(1, heads, size, width), "S(2)").requires_grad_() for _ in range(3)]
        self.grad = self.laid_out(it.from_local, torch.ones(it.local(self.tensors[0].detach()).shape), "S(2)")
        self.options = {"mask": mask, "schedule": "ring", "order": order, "kernel": kernel}
        self.seconds = []

    def laid_out(self, how, tensor, layout):
        return how(tensor, layout, mesh=self.mesh, world=self.world)

    def largest(self, *values):
        """Over ranks. Makes them begin together, too."""
        return it.full(self.laid_out(it.from_local, torch.tensor([values]), "S(0)")).max(0).values.tolist()

    def run(self):
        self.largest(0.0)
        begin = time.perf_counter()
        out = it.attention(*self.tensors, **self.options)
        forward = time.perf_counter() - begin
        self.largest(0.0)
        begin = time.perf_counter()
        out.backward(self.grad)
        self.seconds.append((forward, time.perf_counter() - begin))

    def medians(self, begin=1):
        """Of forward and backward, by the slowest rank; without the first rounds."""
        return self.largest(*(statistics.median(column) for column in zip(*self.seconds[begin:], strict=True)))


def sleeping_kernel(seconds):
    def forward(block):
        time.sleep(seconds)
        return torch.zeros_like(block.query), torch.zeros(block.query.shape[:-1])

    def backward(block, grad, out, logsumexp):
        time.sleep(2 * seconds)
        return torch.zeros_like(block.query), torch.zeros_like(block.key), torch.zeros_like(block.value)

    return forward, backward


def ideal(ranks, step, delay):
    """A ring of so many steps: a transfer and what is computed meanwhile, and the last step alone."""
    return (ranks - 1) * max(step, delay) + step


def sleeping(step, delay):
    ranks = int(os.environ["WORLD_SIZE"])
    ring = Ring(delay, 16 * ranks, 1, 8, "all", kernel=sleeping_kernel(step))
    for _ in range(ROUNDS):
        ring.run()
    forward, backward = ring.medians()
    # Gradients go round one step behind, and the last ones go home when nothing is left to compute.
    parts = forward / ideal(ranks, step, delay), backward / (ideal(ranks, 2 * step, delay) + delay)
    return ring.world, f"step {step * 1e3:.1f} ms, wire {delay * 1e3:.1f} ms: forward {forward * 1e3:.1f} ms, backward {backward * 1e3:.1f} ms", parts


def real():
    sizes = 4096, 4, 64
    order = it.SequenceOrder.head_tail(it.shard_lengths(4096, int(os.environ["WORLD_SIZE"])))
    free = Ring(0, *sizes, order=order)
    for _ in range(3):
        free.run()
    delay = round(0.4 * free.medians()[0], 4)  # of forward, which has two steps
    slow = Ring(delay, *sizes, order=order)
    begin = len(free.seconds)
    for i in range(ROUNDS):
        for ring in (free, slow) if i % 2 else (slow, free):
            ring.run()
    alone, delayed = free.medians(begin), slow.medians()
    # Gradients of the last step go home when nothing is left to compute.
    parts = delayed[0] / alone[0], delayed[1] / (alone[1] + delay)
    text = ", ".join(f"{f * 1e3:.1f} and {b * 1e3:.1f} ms" for f, b in (alone, delayed))
    return slow.world, f"wire {delay * 1e3:.1f} ms: forward and backward without it and with it {text}", parts


torch.set_num_threads(1)
world, text, parts = real() if sys.argv[1] == "real" else sleeping(*(float(a) * 1e-3 for a in sys.argv[2:]))
if world.rank() == 0:
    print(f"{world.size()} ranks, {text}, {parts[0]:.3f} and {parts[1]:.3f} of ideal", flush=True)
