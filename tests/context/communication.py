"""What attention and scans send, counted by the ledger on every process, beside the formulas of docs/context.md, which are worked out here from the
mask alone, query by query and key by key.

    launch.py -n RANKS -- communication.py

Rank 0 prints a line for each case, and as the last one how many agree.
"""

import itertools
import math
import sys

import intarsia as it
import torch
from intarsia import _C


def counted(ledger):
    """Bytes handed to the backend by this rank. A permute is a send and a receive; the receive is the other's send."""
    kinds = [kind for kind in _C.CallKind.__members__.values() if kind != _C.CallKind.recv]
    return sum(ledger.totals(kind).bytes for kind in kinds)


def over_ranks(value):
    return int(it.full(it.from_local(torch.tensor([value]), "S(0)")).sum())


def foreign_keys(mask, order, size, ranks):
    """Pairs of a rank and a key of another rank that one of its queries sees."""
    positions = order.positions(size)
    lengths = it.shard_lengths(size, ranks)
    ends = list(itertools.accumulate(lengths))
    held = [set(positions[end - length : end]) for end, length in zip(ends, lengths, strict=True)]
    count = 0
    for mine in held:
        seen = {k for k in range(size) if k not in mine and any(mask.sees(0, q, k) for q in mine)}
        count += len(seen)
    return count


def expected(schedule, mask, order, shape, dtype, ranks):
    """Bytes of all ranks together, forward and backward; all that they may be."""
    batch, heads, key_heads, size, width, value_width = shape
    element = torch.finfo(dtype).bits // 8
    one_key = batch * key_heads * (width + value_width)
    if schedule == "gather":
        foreign = foreign_keys(mask, order, size, ranks)
        return {(foreign * one_key * element, foreign * one_key * (element + 4))}
    if schedule == "ring":
        return {((ranks - 1) * size * one_key * element, size * one_key * ((ranks - 1) * element + ranks * 4))}
    # Of queries, keys, values and output a rank keeps one part. Where parts are in one piece in memory, the backend is handed that too.
    there = (batch * heads * size * (width + value_width) + size * one_key) * element
    return {(there, there), (there * (ranks - 1) // ranks,) * 2}


def expected_of_scan(schedule, numbers, ranks):
    """For a state of so many float32."""
    if schedule == "gather":
        return ranks * numbers * 4, ranks * ranks * numbers * 4
    steps = 1 + math.ceil(math.log2(ranks - 1)) if ranks > 1 else 0
    return (steps * ranks * numbers * 4,) * 2


def check_scans(ledger, ranks):
    """Of a recurrence on [2, size, 3], whose states are two of [2, 1, 3], for sequences of several lengths."""
    right = total = 0
    for schedule, size in itertools.product(("gather", "doubling"), (16, 400)):
        x, decay = (it.distribute(torch.rand(2, size, 3), "S(1)").requires_grad_() for _ in range(2))
        before = counted(ledger)
        out = it.linear_recurrence(decay, x, schedule=schedule)
        between = counted(ledger)
        out.backward(it.from_local(it.local(out.detach()), it.layout_of(out), shape=list(out.shape)))
        after = counted(ledger)
        got = over_ranks(between - before), over_ranks(after - between)
        want = expected_of_scan(schedule, 2 * 2 * 3, ranks)
        total += 1
        right += got == want
        if it.world().rank() == 0 and got != want:
            print(f"scan {schedule} of {size}: forward {got[0]}, backward {got[1]}; expected {want[0]}, {want[1]}")
    return right, total


def main():
    it.init(f"[cp={it.world().size()}]")
    ranks, ledger = it.world().size(), it.world().ledger()
    torch.manual_seed(0)
    masks = ["all", "causal", "window(7,0)", "window(3,2)+sinks(2)", "causal+documents(0,9,30)", "causal+prefix(5)"]
    shapes = [(1, 4, 4, 48, 8, 8), (2, 8, 4, 44, 4, 4), (1, 4, 4, 37, 8, 4)]
    right = total = 0
    for shape, text, dtype in itertools.product(shapes, masks, (torch.float32, torch.bfloat16)):
        batch, heads, key_heads, size, width, value_width = shape
        lengths = it.shard_lengths(size, ranks)
        mask = it.AttentionMask.parse(text)
        orders = [it.SequenceOrder(), it.SequenceOrder.head_tail(lengths)]
        full = [torch.randn(batch, h, size, w).to(dtype) for h, w in ((heads, width), (key_heads, width), (key_heads, value_width))]
        for order, schedule in itertools.product(orders, ("gather", "ring", "heads")):
            if schedule == "heads" and key_heads % ranks != 0:
                continue
            q, k, v = (it.distribute(t, "S(2)").requires_grad_() for t in full)
            before = counted(ledger)
            out = it.attention(q, k, v, mask, order=order, schedule=schedule)
            between = counted(ledger)
            out.backward(it.from_local(it.local(out.detach()), it.layout_of(out), shape=list(out.shape)))
            after = counted(ledger)
            got = over_ranks(between - before), over_ranks(after - between)
            want = expected(schedule, mask, order, shape, dtype, ranks)
            total += 1
            right += got in want
            if it.world().rank() == 0 and got not in want:
                print(f"{shape} {text} {dtype} {schedule} {order}: forward {got[0]}, backward {got[1]}; expected {want}")
    more = check_scans(ledger, ranks)
    right, total = right + more[0], total + more[1]
    if it.world().rank() == 0:
        print(f"{right} of {total} equal on {ranks} processes", flush=True)
    sys.exit(0 if right == total else 1)


main()
