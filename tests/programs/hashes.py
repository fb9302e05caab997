"""The numbers that random programs leave in lockstep, as hashes: for comparing two builds of the library.

    hashes.py --seed S --count N --out FILE

FILE gets a line of JSON for each program: its seed, a hash of all values and gradients with their layouts, bit for bit, and
what was refused. Values are not compared with plain torch: check.py does."""

import argparse
import hashlib
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import intarsia as it  # noqa: E402
import torch  # noqa: E402

import compare  # noqa: E402
import generate  # noqa: E402
import lines_rows  # noqa: E402
import run  # noqa: E402
import workers  # noqa: E402


def add_tensor(digest, name, tensor):
    try:
        value = compare.full(tensor).contiguous()
    except Exception as error:
        if compare.STALE not in str(error):
            raise
        return digest.update(f"{name} is stale\n".encode())
    layout = it.describe(tensor) if it.has_layout(tensor) else "plain"
    digest.update(f"{name} {layout} {value.dtype} {list(tensor.stride())}\n".encode())
    digest.update(value.view(torch.uint8).numpy().tobytes() if value.numel() and value.dim() else bytes(str(value.tolist()), "ascii"))
    return None


def hash_of(side):
    """Of all that a run left: values and the gradients of those that keep them, by name."""
    digest = hashlib.sha256()
    for name, value in side.values().items():
        for end, tensor in compare.tensors_of(value):
            if tensor is None:
                digest.update(f"{name}{end} is None\n".encode())
                continue
            add_tensor(digest, name + end, tensor)
            if compare.keeps_gradient(tensor) and tensor.grad is not None:
                add_tensor(digest, f"{name}{end}.grad", tensor.grad)
    return digest.hexdigest()


def record_of(seed):
    found = {"seed": seed, "hash": ""}

    def look(_, side):
        found["hash"] = hash_of(side)

    program, _ = generate.generate(seed, count_rows=False)
    try:
        result = run.check(program, look=look)
    except run.Invalid:
        return found
    return found | {"refused": [each.line for each in result.refusals]}


def records_of(seeds):
    """In children: torch itself dies of some programs, which have no hash then."""
    seeds = list(seeds)
    while seeds:
        child = workers.Child(lambda report: [report(**record_of(seed)) for seed in seeds])
        while not child.ended:
            for record in child.reports():
                seeds.pop(0)
                yield record
        if seeds:
            yield {"seed": seeds.pop(0), "hash": ""}


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    generate.rows.samples(), lines_rows.lists_of_tensors()  # once, before children are forked
    with options.out.open("w") as out:
        for record in records_of(range(options.seed, options.seed + options.count)):
            print(json.dumps(record), file=out, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
