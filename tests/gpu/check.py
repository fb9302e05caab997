"""One rank of tests/gpu/run: the library on a device, beside the same program on one device and beside PyTorch.

    torchrun --nproc-per-node N check.py [--device cuda|cpu] [--times N]

Each check prints one row on rank 0: its name, `ok` or what went wrong, and what it measured. The last line counts them; exits with 0
only if all are ok. Numbers are compared in float64; times are ratios of medians, measured by turns.
"""

import argparse
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

import intarsia as it

LAYOUTS = ("R", "S(0)", "S(1)")
FORMS = ("plain", "parallelize", "fully_shard", "replicate")


class Bench:
    def __init__(self, device, times):
        self.times = times
        self.world = it.world()
        self.size, self.rank = self.world.size(), self.world.rank()
        self.device = self.world.device()
        self.kind = device
        self.mesh = it.init({"dp": self.size})

    def randn(self, *sizes):
        """The same on all ranks, and on every kind of device."""
        return torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes)), dtype=torch.float64).to(self.device)

    def finish(self):
        if self.kind == "cuda":
            torch.cuda.synchronize()

    def seconds(self, run):
        self.finish()
        begin = time.perf_counter()
        run()
        self.finish()
        return time.perf_counter() - begin

    def ratio(self, ours, theirs):
        """Of medians, by turns, after two warm-up calls of each."""
        taken = [[], []]
        for turn in range(self.times + 2):
            for run, into in zip((ours, theirs), taken):
                spent = self.seconds(run)
                if turn > 1:
                    into.append(spent)
        return statistics.median(taken[0]) / statistics.median(taken[1])


def close(mine, expected):
    torch.testing.assert_close(mine, expected, rtol=1e-9, atol=1e-12)


def where(b):
    assert b.device.type == b.kind, f"{b.device} instead of {b.kind}"
    return f"{b.device}, {b.size} ranks, torch {torch.__version__}"


def layouts(b):
    """Every pair of layouts, even, uneven and with empty pieces."""
    count = 0
    for rows in (4 * b.size, 2 * b.size + 1, 1):
        plain = b.randn(rows, 3)
        partial = it.from_local(plain / b.size, "P(sum)", mesh=b.mesh)
        for first in (*LAYOUTS, None):
            start = partial if first is None else it.distribute(plain, first)
            for second in LAYOUTS:
                close(it.full(it.redistribute(start, second)), plain)
                count += 1
    return f"{count} pairs"


def ops(b):
    """Forward and backward of common ops, beside plain tensors."""
    steps = {
        "mm": lambda x, w: x @ w, "softmax": lambda x, w: (x @ w).softmax(-1), "norm": lambda x, w: nn.functional.layer_norm(x @ w, (8,)),
        "gelu": lambda x, w: nn.functional.gelu(x @ w), "sum": lambda x, w: (x @ w).sum(0), "cumsum": lambda x, w: (x @ w).cumsum(0),
        "loss": lambda x, w: nn.functional.cross_entropy(x @ w, torch.zeros(len(x), dtype=torch.long, device=b.device)),
        "attention": lambda x, w: nn.functional.scaled_dot_product_attention(*[(x @ w).view(1, 1, -1, 8)] * 3),
        "sort": lambda x, w: (x @ w).sort(0).values, "index": lambda x, w: (x @ w)[torch.tensor([2, 0], device=b.device)],
    }  # fmt: skip
    for name, step in steps.items():
        for layout in LAYOUTS:
            x, w = b.randn(2 * b.size + 1, 6), b.randn(6, 8)
            expected = [each.clone().requires_grad_() for each in (x, w)]
            mine = [it.distribute(x, layout).requires_grad_(), it.distribute(w, "R").requires_grad_()]
            results = [step(*operands) for operands in (mine, expected)]
            for result in results:
                result.square().sum().backward()
            close(it.full(results[0]), results[1])
            for left, right in zip(mine, expected):
                close(it.full(left.grad), right.grad)
    return f"{len(steps)} ops in {len(LAYOUTS)} layouts"


def model(b):
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).double()
    return made.to(b.device)


def train(b, form, steps=5):
    """The losses of a few steps, and the parameters afterwards."""
    net = model(b)
    if form == "parallelize":
        it.parallelize(net, b.mesh, {"0.*": "S(0)", "3.weight": "S(1)"})
    elif form == "fully_shard":
        it.fully_shard(net)
    elif form == "replicate":
        it.replicate(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        batch = b.randn(2 * b.size, 16) + step
        if form == "fully_shard":
            batch = it.distribute(batch, "S(0)")
        elif form == "replicate":
            batch = batch.chunk(b.size)[b.rank]
        optimizer.zero_grad()
        loss = net(batch).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    if form == "replicate":
        losses = [it.full(it.from_local(loss / b.size, "P(sum)", mesh=b.mesh)) for loss in losses]
    full = [it.full(each) if it.has_layout(each) else each for each in (*losses, *net.parameters())]
    return [each.detach() for each in full]


def training(b):
    expected = train(b, "plain")
    for form in FORMS[1:]:
        for mine, plain in zip(train(b, form), expected, strict=True):
            close(mine, plain)
    return ", ".join(FORMS[1:])


def draws(b):
    """Dropout by global index: the same numbers on every layout."""
    results = []
    for layout in LAYOUTS:
        torch.manual_seed(1)
        results.append(it.full(nn.functional.dropout(it.distribute(b.randn(4 * b.size, 8), layout), 0.5)))
    for result in results[1:]:
        close(result, results[0])
    return f"{(results[0] == 0).double().mean().item():.2f} dropped"


def reductions(b):
    """Ours beside torch.distributed's, 1 KiB and 16 MiB; a group of torch.distributed is made for it."""
    dist.init_process_group("nccl" if b.kind == "cuda" else "gloo", **({"device_id": b.device} if b.kind == "cuda" else {}))
    try:
        ratios = []
        for count in (256, 4 << 20):
            plain = torch.ones(count, device=b.device)
            partial = it.from_local(plain, "P(sum)", mesh=b.mesh)
            ratios.append(b.ratio(lambda: it.redistribute(partial, "R"), lambda: dist.all_reduce(plain.clone())))
        return f"ours/torch {ratios[0]:.2f} (1 KiB), {ratios[1]:.2f} (16 MiB)"
    finally:
        dist.destroy_process_group()


def overhead(b):
    x = it.distribute(torch.ones(4 * b.size, 4, device=b.device), "S(0)")
    y = torch.ones(4, 4, device=b.device)
    with torch.no_grad():
        return f"100 adds of pieces, ours/plain {b.ratio(lambda: [x + x for _ in range(100)], lambda: [y + y for _ in range(100)]):.2f}"


CHECKS = (where, layouts, ops, training, draws, overhead, reductions)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--times", type=int, default=20)
    options = parser.parse_args()
    local = int(os.environ.get("LOCAL_RANK", 0))
    if options.device == "cuda":
        torch.cuda.set_device(local)
        it.connect(backend="nccl", timeout=120)
    else:
        it.connect(timeout=120)
    b = Bench(options.device, options.times)
    right = 0
    for check in CHECKS:
        try:
            state, figure = "ok", check(b)
            right += 1
        except Exception as error:  # the next check may still tell something
            state, figure = "FAILED", f"{type(error).__name__}: {str(error)[:600]}"
        if b.rank == 0 or state != "ok":
            print(f"{check.__name__:12} {state:7} {f'rank {b.rank}: ' if state != 'ok' else ''}{figure}", flush=True)
    if b.rank == 0:
        print(f"{right} of {len(CHECKS)} checks are ok on {b.size} x {options.device}", flush=True)
    return 0 if right == len(CHECKS) else 1


if __name__ == "__main__":
    sys.exit(main())
