"""A training step of ours beside PyTorch's, beside the same written by hand, and beside the computation alone.

    PYTHONPATH=build/release/python python bench/training/train_step.py [--steps N] [--only ours_fsdp,bare_fsdp] [--json FILE]

Model: dim 256, 4 layers, 4 heads, SwiGLU 704, vocabulary 1,024; 4 x 128 tokens a step, AdamW, float32; and a chain of 1,000
matrices of 64x64. Two processes over Gloo on loopback, one thread each. One launch builds all modes; their steps take turns, so
that what else the machine does meets all alike. Each begins from the same values and sees the same batches: losses of the first
steps and all parameters after them are compared with one device. A step's time is that of the slower rank, from a barrier on.

  local_dp, local_tp   the computation of one rank alone, both ranks at once, nothing sent
  ddp, fsdp2, tp       PyTorch's; tp gathers logits, tp_cut_loss uses loss_parallel
  ours_dp              replicate; ours_fsdp: fully_shard; ours_tp: parallelize, the logits stay cut; ours_tp_gathered
  bare_dp, bare_tp     by hand, with torch.distributed and plain tensors (bare.py)
  bare_fsdp            by hand, shards cut by parameter as ours are; bare_fsdp_flat: cut anyhow, which spares copies
  many_local, many_fsdp2, many_ours   the chain
"""

import argparse
import gc
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

HERE = pathlib.Path(__file__).resolve().parent
WARM_UP = 5
APART = 1e-4  # of what the steps changed in a parameter; float32 rounds to 6e-8, and sums here are of up to 1,024 terms
LOSSES_APART = 1e-5


# ---- in each process -----------------------------------------------------------------------------

MEASURED = ("times", "cpu", "faults")


def now():
    """Milliseconds, those that all threads of the process computed, and its page faults."""
    return time.perf_counter() * 1e3, time.process_time() * 1e3, resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def compare(name, mode, losses, reference, reference_losses, names, start):
    """Checks a mode after the warm-up against one device, and says how far it is off."""
    for step, (got, expected) in enumerate(zip(losses, reference_losses, strict=True)):
        if abs(got - expected) > LOSSES_APART * abs(expected):
            raise AssertionError(f"{name}: the loss of step {step} is {got}, on one device {expected}")
    worst = 0.0
    for parameter in names:
        expected = reference.whole(parameter)
        off = (mode.whole(parameter) - expected).norm() / (expected - start[parameter]).norm()
        if not off <= APART:
            raise AssertionError(f"{name}: {parameter} is off by {off:.1e} of what the steps changed, at most {APART}")
        worst = max(worst, off.item())
    return {
        "losses": max(abs(g / e - 1) for g, e in zip(losses, reference_losses)),
        "parameters": worst,
    }


def warm_up(builders, reference, parameters_of, form):
    """Builds modes, trains each for some steps and compares it with one device."""
    import modes

    start = {name: p.detach().clone() for name, p in parameters_of().named_parameters()}
    expected = reference(form)
    expected_losses = [expected.step(i).item() for i in range(WARM_UP)]
    built, apart = {}, {}
    for name, build in builders.items():
        mode = built[name] = build(form)
        losses = [modes.value(mode.step(i)) for i in range(WARM_UP)]
        if mode.whole:
            apart[name] = compare(name, mode, losses, expected, expected_losses, start, start)
    return built, apart


def worker(args):
    import intarsia
    import modes
    import torch
    import torch.distributed as dist

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    intarsia.connect()
    wanted = args.only.split(",") if args.only else [*modes.LLAMA, *modes.MANY]
    if not hasattr(intarsia, "replicate") and "ours_dp" in wanted:
        wanted.remove("ours_dp")
        if dist.get_rank() == 0:
            print("ours_dp is left out: this build has no intarsia.replicate", flush=True)
    built, apart = {}, {}
    for table, reference, make in ((modes.LLAMA, modes.plain, modes.llama), (modes.MANY, modes.many_plain, modes.chain)):
        chosen = {name: build for name, build in table.items() if name in wanted}
        if chosen:
            more = warm_up(chosen, reference, make, args.optimizer)
            built |= more[0]
            apart |= more[1]
    samples = {name: [] for name in built}
    order = list(built)
    gc.collect()
    gc.disable()
    for i in range(args.steps):
        for name in order[i % len(order) :] + order[: i % len(order)]:
            dist.barrier()
            before = now()
            built[name].step((WARM_UP + i) % modes.DATA)
            samples[name].append([b - a for a, b in zip(before, now(), strict=True)])
        gc.collect()
    slowest = torch.tensor([samples[name] for name in order], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        reports = {name: mode.report() for name, mode in built.items() if mode.report()}
        found = {kind: {name: slowest[n, :, k].tolist() for n, name in enumerate(order)} for k, kind in enumerate(MEASURED)}
        found |= {"apart": apart, "reports": reports}
        pathlib.Path(args.worker).write_text(json.dumps(found))
    built.clear()
    intarsia.close()
    dist.destroy_process_group()


# ---- the launch and the table --------------------------------------------------------------------


def ratios(times, middle):
    """What the promise is about, as far as the modes ran: {name: (value, limit)}. Steps are compared with those of the same
    turn, so that what slows all down for a while does not count; `middle` is taken over the turns."""
    out = {}

    def above(name, other):
        return middle(a - b for a, b in zip(times[name], times[other], strict=True))

    def overhead(name, ours, theirs, local, limit):
        if {ours, theirs, local} <= times.keys():
            out[name] = (above(ours, local) / above(theirs, local), limit)

    def over(name, ours, other, limit):
        if {ours, other} <= times.keys():
            out[name] = (middle(a / b for a, b in zip(times[ours], times[other], strict=True)), limit)

    overhead("dp: (ours - local) / (DDP - local)", "ours_dp", "ddp", "local_dp", 1.0)
    overhead("fsdp: (ours - local) / (FSDP2 - local)", "ours_fsdp", "fsdp2", "local_dp", 0.7)
    overhead("tp: (ours - local) / (PyTorch's - local)", "ours_tp", "tp", "local_tp", 0.6)
    for kind in ("dp", "fsdp", "tp"):
        over(f"{kind}: ours / bare", f"ours_{kind}", f"bare_{kind}", 1.10)
    over("many: ours / FSDP2", "many_ours", "many_fsdp2", 0.4)
    overhead("(tp, both with cut logits)", "ours_tp", "tp_cut_loss", "local_tp", None)
    overhead("(tp, both with gathered logits)", "ours_tp_gathered", "tp", "local_tp", None)
    over("(fsdp: ours / bare_fsdp_flat)", "ours_fsdp", "bare_fsdp_flat", None)
    return out


def launch(args):
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", __file__,
            "--worker", str(report), "--steps", str(args.steps), "--only", args.only, "--optimizer", args.optimizer,
        ]  # fmt: skip
        env = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=3000)
        print(done.stdout, end="", flush=True)
        if done.returncode:
            sys.exit(f"a process failed:\n{done.stderr[-6000:]}")
        return json.loads(report.read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=25, help="timed steps of each mode")
    parser.add_argument("--only", default="", help="modes, with commas")
    parser.add_argument("--optimizer", choices=["loop", "foreach", "fused"], default="loop", help="form of AdamW")
    parser.add_argument("--json", default="")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        sys.path.insert(0, str(HERE))
        return worker(args)
    found = launch(args)
    medians, cpu, faults = (
        {name: statistics.median(values) for name, values in found[kind].items()} for kind in MEASURED
    )
    best = {name: min(times) for name, times in found["times"].items()}
    print(f"{args.steps} steps of each in turns, AdamW as {args.optimizer}; ms a step, of the slower rank; all threads' CPU time")
    print(f"{'':18}  {'median':>8}  {'best':>8}  {'CPU':>8}  {'faults':>8}  off from one device: losses, parameters")
    for name, median in medians.items():
        off = found["apart"].get(name)
        text = f"{off['losses']:.1e}, {off['parameters']:.1e}" if off else "-"
        print(f"{name:18}  {median:8.2f}  {best[name]:8.2f}  {cpu[name]:8.2f}  {faults[name]:8.0f}  {text}")
    result = {
        "medians": ratios(found["times"], statistics.median),
        "best": ratios({name: [t] for name, t in best.items()}, min),
    }
    for name, (ratio, limit) in result["medians"].items():
        wanted = f"at most {limit:.2f}" if limit else "not promised"
        print(f"{name:44} {ratio:6.3f}  ({wanted}; by the best steps {result['best'][name][0]:.3f})")
    if args.json:
        whole = found | {"medians": medians, "cpu_medians": cpu, "best": best, "ratios": result, "steps": args.steps, "optimizer": args.optimizer}
        pathlib.Path(args.json).write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
