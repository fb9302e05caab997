"""Causal ring attention on two or more processes: Intarsia's beside one written by hand with torch.distributed and the same op.

    launch.py -n 2 -- python ring_by_hand.py [--size N] [--heads H] [--pairs K]

Both are zigzag: each rank has a run from the front and one from the back. Prints, from rank 0, the median of each, and of the ratios of
alternating pairs; and how much their gradients differ.
"""

import argparse
import statistics
import time

import intarsia as it
import torch
import torch.distributed as dist

FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def merge(out, lse, new, new_lse):
    if out is None:
        return new.clone(), new_lse.clone()
    total = torch.logaddexp(lse, new_lse)
    return out * (lse - total).exp().unsqueeze(-1) + new * (new_lse - total).exp().unsqueeze(-1), total


class Ring(torch.autograd.Function):
    """What a careful user writes: halves of the sequence, receives that are under way while it computes."""

    @staticmethod
    def tiles(rank, source, half):
        """Of (queries, keys, causal), for the front and the back half of each."""
        front, back = slice(0, half), slice(half, 2 * half)
        if rank == source:
            return [(front, front, True), (back, front, False), (back, back, True)]
        return [(slice(0, 2 * half), front, False)] if source < rank else [(back, slice(0, 2 * half), False)]

    @staticmethod
    def exchange(tensor):
        rank, size = dist.get_rank(), dist.get_world_size()
        arriving = torch.empty_like(tensor)
        work = [dist.isend(tensor, (rank + 1) % size), dist.irecv(arriving, (rank - 1) % size)]
        return arriving, work

    @staticmethod
    def forward(ctx, q, k, v):
        rank, size, half = dist.get_rank(), dist.get_world_size(), q.size(2) // 2
        kv = torch.stack([k, v])
        outs, sums = [None, None], [None, None]
        for step in range(size):
            arriving, work = Ring.exchange(kv) if step + 1 < size else (None, [])
            for queries, keys, causal in Ring.tiles(rank, (rank - step) % size, half):
                out, lse = FLASH(q[:, :, queries], kv[0][:, :, keys], kv[1][:, :, keys], 0.0, causal)
                for part in range(2):
                    rows = slice(part * half, (part + 1) * half)
                    if queries.start <= rows.start and rows.stop <= queries.stop:
                        mine = slice(rows.start - queries.start, rows.stop - queries.start)
                        outs[part], sums[part] = merge(outs[part], sums[part], out[:, :, mine], lse[:, :, mine])
            for w in work:
                w.wait()
            kv = arriving
        out, lse = torch.cat(outs, 2), torch.cat(sums, 2)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, lse = ctx.saved_tensors
        rank, size, half = dist.get_rank(), dist.get_world_size(), q.size(2) // 2
        kv, dq, behind, behind_work = torch.stack([k, v]), torch.zeros_like(q), None, []
        for step in range(size):
            arriving, work = Ring.exchange(kv) if step + 1 < size else (None, [])
            dkv = torch.zeros_like(kv)
            for queries, keys, causal in Ring.tiles(rank, (rank - step) % size, half):
                a, b, c = FLASH_BACKWARD(
                    grad[:, :, queries], q[:, :, queries], kv[0][:, :, keys], kv[1][:, :, keys],
                    out[:, :, queries], lse[:, :, queries], 0.0, causal,
                )  # fmt: skip
                dq[:, :, queries] += a
                dkv[0][:, :, keys] += b
                dkv[1][:, :, keys] += c
            for w in behind_work:
                w.wait()
            if behind is not None:
                dkv += behind
            for w in work:
                w.wait()
            behind, behind_work = Ring.exchange(dkv)
            kv = arriving
        for w in behind_work:
            w.wait()
        return dq, behind[0], behind[1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--head-size", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=15)
    given = parser.parse_args()
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    ranks, rank = dist.get_world_size(), dist.get_rank()
    it.init(f"[cp={ranks}]")  # takes over torch's group
    order = it.SequenceOrder.head_tail(it.shard_lengths(given.size, ranks))
    full = [torch.randn(1, given.heads, given.size, given.head_size) for _ in range(3)]
    ours = [it.distribute(it.in_order(t, order, 2), "S(2)").requires_grad_() for t in full]
    theirs = [it.local(t.detach()).clone().requires_grad_() for t in ours]
    grad = torch.randn_like(theirs[0])
    our_grad = it.from_local(grad, "S(2)")

    def run_ours():
        it.attention(*ours, "causal", order=order, schedule="ring").backward(our_grad)

    def run_theirs():
        Ring.apply(*theirs).backward(grad)

    def seconds(step, tensors):
        for t in tensors:
            t.grad = None
        dist.barrier()
        begin = time.perf_counter()
        step()
        dist.barrier()
        return time.perf_counter() - begin

    seconds(run_ours, ours), seconds(run_theirs, theirs)
    off = max(float((it.local(a.grad) - b.grad).abs().max() / b.grad.abs().max()) for a, b in zip(ours, theirs, strict=True))
    times = [(seconds(run_ours, ours), seconds(run_theirs, theirs)) for _ in range(given.pairs)]
    ratios = sorted(a / b for a, b in times)
    if rank == 0:
        mine, hand = (statistics.median(column) for column in zip(*times, strict=True))
        print(
            f"ranks {ranks} ours {mine:.4f} s by_hand {hand:.4f} s ratio {statistics.median(ratios):.3f} "
            f"from {ratios[0]:.3f} to {ratios[-1]:.3f} difference {off:.2e}",
            flush=True,
        )


main()
