"""What the plans of PyTorch's DTensor move, beside what no plan can do without.

    python bench/planner/dtensor.py --meshes 2x2,2x3x2 --pairs 200 --out records.json

Both of its planners: 'greedy', which is its default, and 'graph', a search by its own costs; each without and with all flattened
sub-meshes registered ('+flat', by which it joins neighbouring collectives). Pairs of layouts of Replicate and Shard(d), by
chance where there are many, over shapes that every cut divides. A plan is replayed by the meaning of its collectives:
for a group of n ranks and c bytes on each before the step a rank receives (n-1)c in an all_gather and (n-1)c/n in an
all_to_all (a real one, though on CPU it is done by all_gather). Plans that take an outer cut away before the inner one, or end
elsewhere, are counted as wrong.
"""

import argparse
import itertools
import logging
import math
import pathlib
import random
import sys
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor import _redistribute as redistribute
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.testing._internal.distributed.fake_pg import FakeStore

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from measure import write_json  # noqa: E402

ELEMENT_SIZE = 4
LEAST_ELEMENTS = 1 << 20
NAMES = "abcdefgh"


def even_shape(ranks, dims):
    """Every dimension divides by the number of ranks."""
    shape = [ranks] * dims
    while math.prod(shape) < LEAST_ELEMENTS:
        shape[0] *= 2
    return tuple(shape)


def cuts_of(codes, dims):
    """For each dimension the mesh axes that cut it, the outermost first."""
    return tuple(tuple(a for a, code in enumerate(codes) if code == d) for d in range(dims))


def moved(cuts, axis, to):
    """The cuts after an axis left its dimension, for another or for none."""
    out = [tuple(a for a in cut if a != axis) for cut in cuts]
    if to is not None:
        out[to] += (axis,)
    return tuple(out)


def replay(steps, start, goal, mesh, whole):
    """Bytes that a rank receives, and what is wrong with the plan."""
    cuts, received = start, 0
    for step in steps:
        before, after = step.src_dst_placements
        flat = isinstance(step, redistribute._FlattenedTransformInfo)
        axes = step.original_mesh_dims if flat else (step.mesh_dim,)
        n = math.prod(mesh[a] for a in axes)
        held = whole // math.prod(mesh[a] for cut in cuts for a in cut)
        kind = step._comm_type_key()
        received += {"all_gather": (n - 1) * held, "all_to_all": (n - 1) * held // n}.get(kind, 0)
        if before.is_shard() and set(cuts[before.dim][-len(axes) :]) != set(axes):
            return received, "an outer cut leaves before the inner one"
        for a in sorted(axes):
            cuts = moved(cuts, a, after.dim if after.is_shard() else None)
    return received, None if cuts == goal else "ends in another layout"


def missing(start, goal, mesh, shape):
    """Bytes of its new piece that the rank does not hold which misses most."""

    def held(cuts, at):
        for size, cut in zip(shape, cuts):
            begin = 0
            for a in cut:
                size //= mesh[a]
                begin += at[a] * size
            yield begin, begin + size

    most = 0
    for at in itertools.product(*map(range, mesh)):
        old, new = list(held(start, at)), list(held(goal, at))
        kept = math.prod(max(0, min(x[1], y[1]) - max(x[0], y[0])) for x, y in zip(old, new))
        most = max(most, math.prod(y[1] - y[0] for y in new) - kept)
    return most * ELEMENT_SIZE


def random_pairs(axes, dims, count, seed):
    layouts = list(itertools.product([None, *range(dims)], repeat=axes))
    pairs = [(x, y) for x in layouts for y in layouts if x != y]
    return pairs if len(pairs) <= count else random.Random(seed).sample(pairs, count)


def text(codes):
    return ",".join("R" if c is None else f"S({c})" for c in codes)


def start(mesh, flat):
    """A mesh on the fake process group."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=math.prod(mesh))
    names = tuple(NAMES[: len(mesh)])
    out = init_device_mesh("cpu", mesh, mesh_dim_names=names)
    if flat:
        for k in range(2, len(names) + 1):
            for some in itertools.combinations(names, k):
                out[some]._flatten("_".join(some))
    return out


def plan(source, target, graph, mesh):
    redistribute.clear_redistribute_planner_cache()
    steps = redistribute._gen_transform_infos_non_cached(source, target, graph)
    return redistribute._optimize_transform_infos(steps, mesh, source.placements, target.placements)


def records(mesh, dims, flat, count, seed):
    shape = even_shape(math.prod(mesh), dims)
    meta = TensorMeta(torch.Size(shape), torch.empty(shape, device="meta").stride(), torch.float32)
    device_mesh = start(mesh, flat)
    for x, y in random_pairs(len(mesh), dims, count, seed):
        cuts = [cuts_of(codes, dims) for codes in (x, y)]
        specs = [
            DTensorSpec(device_mesh, tuple(Replicate() if c is None else Shard(c) for c in codes), tensor_meta=meta)
            for codes in (x, y)
        ]
        for graph in (False, True):
            received, wrong = replay(
                plan(*specs, graph, device_mesh), *cuts, mesh, math.prod(shape) * ELEMENT_SIZE
            )
            yield {
                "planner": ("graph" if graph else "greedy") + ("+flat" if flat else ""),
                "mesh": "[" + ",".join(f"{n}={s}" for n, s in zip(NAMES, mesh)) + "]",
                "shape": shape,
                "pair": f"{text(x)} -> {text(y)}",
                "received": received,
                "missing": missing(*cuts, mesh, shape),
                "wrong": wrong,
            }
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--meshes", default="2,3,4x2,2x3,2x2x2,2x3x2")
    parser.add_argument("--dims", default="2,3")
    parser.add_argument("--pairs", type=int, default=200, help="for each mesh and number of dimensions")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    out = []
    for mesh_text in options.meshes.split(","):
        mesh = tuple(int(n) for n in mesh_text.split("x"))
        for dims in map(int, options.dims.split(",")):
            for flat in (False, True) if len(mesh) > 1 else (False,):
                out.extend(records(mesh, dims, flat, options.pairs, options.seed))
    write_json(options.out, out)


if __name__ == "__main__":
    main()
