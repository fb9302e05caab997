"""A spec computed in C++ and in Python is the same.

In Python most ops have Meta kernels written in Python, which a C++ process has not. spec_dump.cpp runs
ops in C++ and prints what came out; this file runs the same ops. INTARSIA_SPEC_DUMP names the program.
"""

import os
import sys

import intarsia as it
import torch
from _harness import launch, run
from torch.nn import functional as F

W, INDEX, KERNEL = torch.ones(5, 6), torch.arange(3), torch.ones(4, 4, 3, 3)
CASES = {
    "relu": lambda x: torch.relu(x),
    "gelu": lambda x: F.gelu(x),
    "linear": lambda x: F.linear(x, W),
    "matmul": lambda x: x @ x.t(),
    "layer_norm": lambda x: F.layer_norm(x, (6,)),
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(0),
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x.mean(),
    "var": lambda x: x.var(1),
    "amax": lambda x: x.amax(1),
    "argmax": lambda x: x.argmax(1),
    "norm": lambda x: torch.linalg.vector_norm(x),
    "cumsum": lambda x: x.cumsum(0),
    "index": lambda x: x[INDEX],
    "index_select": lambda x: x.index_select(1, INDEX),
    "embedding": lambda x: F.embedding(INDEX, x),
    "nll": lambda x: F.nll_loss(x, torch.zeros(4, dtype=torch.long)),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.zeros(4, dtype=torch.long)),
    "conv2d": lambda x: F.conv2d(x.reshape(4, 1, 6, 1).expand(4, 4, 6, 5), KERNEL),
    "transpose": lambda x: x.t(),
    "view": lambda x: x.reshape(2, 2, 6),
    "flatten": lambda x: x.flatten(),
    "cat": lambda x: torch.cat([x, x], 1),
    "stack": lambda x: torch.stack([x, x]),
    "split": lambda x: x.split(3, 1),
    "topk": lambda x: torch.topk(x, 2),
    "max": lambda x: torch.max(x, 0),
    "where": lambda x: torch.where(x > 3, x, 0.0),
    "add": lambda x: x + torch.ones(6),
    "double": lambda x: x.to(torch.double) + 1,
    "attention": lambda x: F.scaled_dot_product_attention(*[x.reshape(4, 1, 3, 2)] * 3),
    "triu": lambda x: torch.triu(x),
    "flip": lambda x: x.flip(0),
    "pad": lambda x: F.pad(x, (1, 1)),
}


def dump():
    """The same lines as spec_dump.cpp."""
    mesh = it.init()
    whole = torch.arange(24.0).reshape(4, 6)
    for layout in ("S(0)", "S(1)", "R"):
        for name, call in CASES.items():
            try:
                results = call(it.distribute(whole, layout, mesh=mesh))
                results = [results] if torch.is_tensor(results) else results
                text = "".join(f" {it.describe(t)} strides {list(t.stride())}" for t in results)
            except (RuntimeError, ValueError):
                text = " refused"
            if it.world().rank() == 0:
                print(f"{name} {layout}:{text}")


def lines_of(command):
    result = launch.run("plain", 2, command, env={"OMP_NUM_THREADS": "1"}, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_cpp_and_python_compute_the_same_specs():
    program = os.environ.get("INTARSIA_SPEC_DUMP")
    if not program:
        print("skipped: INTARSIA_SPEC_DUMP names no program")
        return
    ours = lines_of([sys.executable, __file__, "--dump"])
    theirs = lines_of([program])
    assert len(ours) == 3 * len(CASES)
    differing = [f"Python: {a}\n   C++: {b}" for a, b in zip(ours, theirs, strict=True) if a != b]
    assert not differing, "\n".join(differing)


if __name__ == "__main__":
    dump() if "--dump" in sys.argv else run(globals())
