"""A redistribution against the same collective called bare, and against PyTorch's DTensor, over Gloo on loopback.

    redistribute.py [--processes 2,4] [--pairs 30] [--sizes 4KiB,...] [--topology FILE] [--out FILE]

Starts itself under torchrun. For each size (of the whole float32 matrix) and change of layout, four sides take turns: the
collective of c10d, its form by all-to-all, Intarsia, DTensor. The bare ones make the copies that a user must make for the same
result, and no others; all results are compared first. A turn's time is that of the slowest rank, per call; what a call costs
the host is the CPU time of the thread that makes it, which holds no waiting.

  S0->R   all_gather into a new buffer       every rank sends its piece to each other
  P->R    all_reduce on a copy               reduce-scatter by all-to-all and adding, then all_gather
  P->S0   reduce_scatter into a new buffer   all-to-all and adding
  S0->S1  (has no collective of its own)     one transposing copy, all-to-all
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

SIZES = {
    "4KiB": (32, 32), "64KiB": (128, 128), "256KiB": (256, 256), "1MiB": (512, 512),
    "4MiB": (1024, 1024), "16MiB": (2048, 2048), "64MiB": (4096, 4096),
}  # fmt: skip
CALLS = {"4KiB": 20, "64KiB": 20, "256KiB": 10, "1MiB": 4, "4MiB": 2, "16MiB": 1, "64MiB": 1}


def cases(shape, dist, torch, lib, mesh, DTensor, placements):
    """{change: {side: callable}}"""
    world, rank = dist.get_world_size(), dist.get_rank()
    m, n = shape
    torch.manual_seed(rank)
    shard, full = torch.randn(m // world, n), torch.randn(m, n)
    Partial, Replicate, Shard = placements

    def gather():
        out = shard.new_empty(m, n)
        dist.all_gather_into_tensor(out, shard)
        return out

    def gather_by_exchange():
        out = shard.new_empty(m, n)
        dist.all_to_all_single(out, shard.repeat(world, 1))
        return out

    def reduce():
        out = full.clone()
        dist.all_reduce(out)
        return out

    def scatter():
        out = full.new_empty(m // world, n)
        dist.reduce_scatter_tensor(out, full)
        return out

    def scatter_by_exchange():
        terms = torch.empty_like(full)
        dist.all_to_all_single(terms, full)
        return terms.view(world, m // world, n).sum(0)

    def reduce_by_exchange():
        part, out = scatter_by_exchange(), full.new_empty(m, n)
        dist.all_gather_into_tensor(out, part)
        return out

    def exchange():
        send = shard.view(m // world, world, n // world).transpose(0, 1).contiguous()
        received = torch.empty_like(send)
        dist.all_to_all_single(received, send)
        return received.view(m, n // world)

    ours = {"S0": lib.from_local(shard, "S(0)"), "P": lib.from_local(full, "P(sum)")}
    theirs = {
        "S0": DTensor.from_local(shard, mesh, [Shard(0)], run_check=False),
        "P": DTensor.from_local(full, mesh, [Partial()], run_check=False),
    }
    layout = lib.layout_of(ours["S0"])
    texts = {"R": Replicate(), "S(0)": Shard(0), "S(1)": Shard(1)}
    to = {t.replace("(", "").rstrip(")"): (lib.to_layout(t, layout.mesh(), 2), p) for t, p in texts.items()}

    def sides(change, collective, by_exchange):
        start, end = change.split("->")
        text, placement = to[end]
        out = {"collective": collective} if collective else {}
        return out | {
            "exchange": by_exchange,
            "ours": lambda: lib.local(lib.redistribute(ours[start], text), text),
            "dtensor": lambda: theirs[start].redistribute(mesh, [placement]).to_local(),
        }

    return {
        "S0->R": sides("S0->R", gather, gather_by_exchange),
        "P->R": sides("P->R", reduce, reduce_by_exchange),
        "P->S0": sides("P->S0", scatter, scatter_by_exchange),
        "S0->S1": sides("S0->S1", None, exchange),
    }


def worker(args):
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    import intarsia as lib

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    lib.init()

    def turn(call, calls):
        dist.barrier()
        start, start_cpu = time.perf_counter(), time.thread_time()
        for _ in range(calls):
            call()
        took = [time.perf_counter() - start, time.thread_time() - start_cpu]
        t = torch.tensor(took, dtype=torch.float64) / calls * 1e6
        dist.all_reduce(t, dist.ReduceOp.MAX)
        return t.tolist()

    out = {}
    with torch.no_grad():
        for size in args.sizes.split(","):
            for change, sides in cases(SIZES[size], dist, torch, lib, mesh, DTensor, (Partial, Replicate, Shard)).items():
                first = None
                for call in sides.values():
                    got = call()
                    first = got if first is None else first
                    torch.testing.assert_close(got, first, rtol=1e-4, atol=1e-4)
                samples = {side: [] for side in sides}
                for _ in range(args.pairs):
                    for side, call in sides.items():
                        samples[side].append(turn(call, CALLS[size]))
                out.setdefault(change, {})[size] = samples
    if dist.get_rank() == 0:
        with open(args.worker, "w") as f:
            json.dump(out, f)
    lib.close()
    dist.destroy_process_group()


def figures(samples):
    """Medians, and ours against the faster of the bare ones: the median of pairs."""
    medians = {side: statistics.median(wall for wall, _ in times) for side, times in samples.items()}
    bare = min((side for side in medians if side in ("collective", "exchange")), key=medians.get)

    def ratio(side):
        return statistics.median(a[0] / b[0] for a, b in zip(samples[side], samples[bare]))

    def host(side):
        return statistics.median(a[1] - b[1] for a, b in zip(samples[side], samples[bare]))

    return {
        "medians_us": medians, "faster": bare, "ratio": ratio("ours"), "host_us": host("ours"),
        "dtensor_ratio": ratio("dtensor"), "dtensor_host_us": host("dtensor"),
    }  # fmt: skip


def run(processes, pairs, sizes, topology):
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}",
            os.path.abspath(__file__), "--worker", report, "--pairs", str(pairs), "--sizes", sizes,
        ]  # fmt: skip
        env = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        if topology:
            env["INTARSIA_TOPOLOGY"] = os.path.abspath(topology)
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1500)
        if done.returncode:
            sys.exit(done.stderr[-4000:])
        with open(report) as f:
            samples = json.load(f)
    return {change: {size: figures(s) for size, s in by_size.items()} for change, by_size in samples.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", default="2,4")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--topology", default="")
    parser.add_argument("--out", default="")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args)
    out = {}
    for processes in map(int, args.processes.split(",")):
        out[processes] = run(processes, args.pairs, args.sizes, args.topology)
        print(f"{processes} processes: median us of the faster bare form (c: collective, e: exchange), ours, DTensor; ratios to the bare form; what the host does more")
        for change, by_size in out[processes].items():
            for size, f in by_size.items():
                t = f["medians_us"]
                print(f"  {change:7} {size:>6}  {t[f['faster']]:10.1f} {f['faster'][0]}  {t['ours']:10.1f}  {t['dtensor']:10.1f}   "
                      f"{f['ratio']:.2f}, DTensor {f['dtensor_ratio']:.2f}; host {f['host_us']:+.1f} us, DTensor {f['dtensor_host_us']:+.1f} us",
                      flush=True)  # fmt: skip
    if args.out:
        with open(args.out, "w") as f:
            json.dump(out, f)


if __name__ == "__main__":
    main()
