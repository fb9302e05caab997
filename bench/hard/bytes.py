"""Bytes that a rank hands to collectives for ops whose "hard" dimension is cut over 4 ranks: ours, from the bill, and
DTensor's, counted as its collectives are called. Nothing is sent: ours runs in lockstep, DTensor on a fake process group.

    python bench/hard/bytes.py

Prints one line of JSON: per op, forward and backward bytes of both, and the formula of docs/tensors.md.
"""

import json
import logging
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed import fake_pg  # noqa: F401 - makes the backend "fake" known
from torch.utils._python_dispatch import TorchDispatchMode

import intarsia

# So many rows that sums over them are reductions: of few bytes, they are exchanges, which the bill counts once for each rank.
RANKS, ROWS, WIDTH, CLASSES, KERNEL = 4, 512, 256, 512, 3
IMAGE = (2, 8, 32, 16)  # samples, channels, height, width
E = 4  # bytes of a float
COLLECTIVES = ("all_gather", "all_reduce", "all_to_all", "broadcast", "reduce_scatter")

# name: (inputs as (sizes, cut dimension or None, kind), the op, bytes forward, bytes backward)
PIECE = ROWS * WIDTH // RANKS * E
HALO = IMAGE[0] * IMAGE[1] * IMAGE[3] * (KERNEL // 2) * 2 * E
OPS = {
    "softmax": ([((ROWS, WIDTH), 1, "x")], lambda x: x.softmax(-1), 2 * ROWS * E, ROWS * E),
    "log_softmax": ([((ROWS, WIDTH), 1, "x")], lambda x: x.log_softmax(-1), 2 * ROWS * E, ROWS * E),
    "layer_norm": (
        [((ROWS, WIDTH), 1, "x"), ((WIDTH,), 0, "x"), ((WIDTH,), 0, "x")],
        lambda x, w, b: F.layer_norm(x, (WIDTH,), w, b),
        2 * ROWS * E,
        2 * ROWS * E,
    ),
    "rms_norm": (
        [((ROWS, WIDTH), 1, "x"), ((WIDTH,), 0, "x")],
        lambda x, w: F.rms_norm(x, (WIDTH,), w),
        ROWS * E,
        2 * ROWS * E,
    ),
    # The largest and the sum of each sample; the loss itself stays a sum of terms.
    "cross_entropy": (
        [((ROWS, CLASSES), 1, "x"), ((ROWS,), None, "class")],
        lambda x, t: F.cross_entropy(x, t),
        2 * ROWS * E,
        0,
    ),
    # The last element of each rank; autograd's gradient is flip, cumsum, flip, and a flip moves every element.
    "cumsum": ([((ROWS, WIDTH), 1, "x")], lambda x: x.cumsum(-1), ROWS * E, ROWS * E + 2 * PIECE),
    "sort": ([((ROWS, WIDTH), 1, "x")], lambda x: x.sort(-1)[0], PIECE, PIECE),
    # The rows that were looked up, when they are used; the gradient of the table is cut from the start.
    "embedding": (
        [((CLASSES, WIDTH), 0, "x"), ((ROWS,), None, "class")],
        lambda w, t: F.embedding(t, w).square(),
        ROWS * WIDTH * E,
        0,
    ),
    "conv2d": (
        [(IMAGE, 2, "x"), ((8, 8, KERNEL, KERNEL), None, "x")],
        lambda x, w: F.conv2d(x, w, padding=KERNEL // 2),
        HALO,
        2 * HALO + 8 * 8 * KERNEL * KERNEL * E,
    ),
}


def made(sizes, kind):
    torch.manual_seed(0)
    return torch.randint(0, CLASSES, sizes) if kind == "class" else torch.randn(sizes)


class Sent(TorchDispatchMode):
    """Adds up what is handed to functional collectives."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(t is DTensor for t in types):
            return NotImplemented
        if "c10d_functional" in func.namespace and func._opname.startswith(COLLECTIVES):
            tensors = args[0] if isinstance(args[0], (list, tuple)) else [args[0]]
            self.bytes += sum(t.numel() * t.element_size() for t in tensors)
        return func(*args, **(kwargs or {}))


def theirs(mesh, inputs, op):
    tensors = []
    for sizes, dim, kind in inputs:
        t = distribute_tensor(made(sizes, kind), mesh, [Replicate() if dim is None else Shard(dim)], src_data_rank=None)
        tensors.append(t.requires_grad_() if kind == "x" else t)
    try:
        with Sent() as forward:
            y = op(*tensors)
        with Sent() as backward:
            y.backward(torch.ones_like(y))
    except Exception as error:  # noqa: BLE001 - that it cannot is a result
        return {"error": f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no text'])[0][:100]}"}
    return {"forward": forward.bytes, "backward": backward.bytes}


def ours(inputs, op):
    with intarsia.lockstep(f"[x={RANKS}]"):
        tensors, plain = [], []
        for sizes, dim, kind in inputs:
            whole = made(sizes, kind)
            t = intarsia.distribute(whole, "R" if dim is None else f"S({dim})")
            tensors.append(t.requires_grad_() if kind == "x" else t)
            plain.append(whole.clone().requires_grad_() if kind == "x" else whole)
        expected = op(*plain)
        expected.backward(torch.ones_like(expected))
        intarsia.clear_bill()
        y = op(*tensors)
        forward = intarsia.bill()
        intarsia.clear_bill()
        y.backward(torch.ones_like(y))
        backward = intarsia.bill()
        torch.testing.assert_close(intarsia.full(y), expected, rtol=1e-4, atol=1e-4)
        for t, p in zip(tensors, plain):
            if p.requires_grad:
                torch.testing.assert_close(intarsia.full(t.grad), p.grad, rtol=1e-4, atol=1e-4)
    return {
        "forward": forward.bytes() // RANKS,
        "backward": backward.bytes() // RANKS,
        "transitions": [forward.transitions(), backward.transitions()],
    }


def main():
    dist.init_process_group("fake", rank=0, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    result = {}
    for name, (inputs, op, forward, backward) in OPS.items():
        formula = {"forward": forward, "backward": backward}
        result[name] = {"ours": ours(inputs, op), "theirs": theirs(mesh, inputs, op), "formula": formula}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
