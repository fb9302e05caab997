"""The most memory that a rank has while a head-tail ring computes attention, forward and backward: inputs, output, gradients and what travels.

    launch.py -n RANKS -- memory.py POSITIONS [SCHEDULE]

Rank 0 prints the largest peak of the ranks in bytes for each position that a rank holds.
"""

import sys

import intarsia as it
import torch

HEADS, WIDTH = 1, 32


def main(size, schedule="ring"):
    ranks = it.world().size()
    it.init(f"[cp={ranks}]")
    order = it.SequenceOrder.head_tail(it.shard_lengths(size, ranks))
    meter = it.MemoryMeter()
    meter.reset()
    before = meter.live()
    # Pieces are made by ranks for themselves: no rank makes the full sequence.
    q, k, v = (it.from_local(torch.full((1, HEADS, size // ranks, WIDTH), 0.01), "S(2)").requires_grad_() for _ in range(3))
    out = it.attention(q, k, v, "causal", schedule=schedule, order=order)
    out.backward(it.from_local(torch.ones(1, HEADS, size // ranks, WIDTH), "S(2)"))
    peak = torch.tensor([meter.peak() - before], dtype=torch.float64)
    worst = float(it.full(it.from_local(peak, "S(0)")).max())
    if it.world().rank() == 0:
        print(f"{size} positions on {ranks} ranks: {worst / (size / ranks):.0f} bytes for each position of a rank", flush=True)


torch.set_num_threads(1)
main(int(sys.argv[1]), *sys.argv[2:])
