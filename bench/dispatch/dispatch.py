"""Host cost of ops on small tensors: plain, ours and PyTorch's DTensor, in one process and in turns.

    PYTHONPATH=build/release/python python bench/dispatch/dispatch.py [--out FILE]

Results are compared first, on two processes whose collectives are real. Then, in microseconds of CPU time:
  warm         per call, the best of many short rounds in which the three take turns; what ours and DTensor cost over
               plain is the median over rounds of the difference, for in one round all have the same machine
  new shape    a call on a shape that its case never saw, median of several; plain tensors go first, and pay what
               torch itself remembers by shape
  first call   the first of all, each in a fresh process
"""

import argparse
import os
import pathlib
import pickle
import statistics
import subprocess
import sys

import torch

BENCH = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(BENCH), str(BENCH.parent / "tests" / "launch")]
import launch  # noqa: E402
from cases import ALL, BLOCKS, LOCAL, make_case  # noqa: E402
from measure import once, say, spin_probe, take_turns, write_json  # noqa: E402
from sides import WORLD, Bare, Ours, Rival, start, start_real  # noqa: E402

NAMES = ("bare", "ours", "dtensor")


def compare(sides, cases, names=ALL):
    """All results and gradients of the three are the same numbers; returns how many were compared."""
    compared = 0
    for name in names:
        expected = [side_piece.clone() for side_piece in map(sides[0].piece, cases["bare"][name].results())]
        for side in sides[1:]:
            got = [side.piece(t) for t in cases[side.name][name].results()]
            for e, g in zip(expected, got, strict=True):
                torch.testing.assert_close(g, e, rtol=1e-5, atol=1e-5, msg=lambda m: f"{side.name} {name}: {m}")
                compared += 1
    return compared


def make_sides():
    """The three, and their cases by side and name."""
    sides = [Bare(), Ours(), Rival()]
    return sides, {side.name: {name: make_case(side, name) for name in ALL} for side in sides}


def compare_as_rank(rank, port):
    """One of the processes that compare."""
    start_real(rank, port)
    count = compare(*make_sides())
    if rank == 0:
        say(f"{count} results and gradients of ours and DTensor equal the plain ones on {WORLD} processes")
    # Not before the other has its last result.
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def compare_on_processes():
    """Compares results where collectives give some; ends the program where they differ."""
    (port,) = launch.free_ports(1)
    ranks = [subprocess.Popen([sys.executable, __file__, "--compare-as", f"{rank}", f"{port}"]) for rank in range(WORLD)]
    try:
        codes = [process.wait(timeout=300) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    if any(codes):
        sys.exit("results are not the same on all sides")


def plain_views():
    """Our views make autograd replay views on this thread from then on; plain tensors shall not pay for that."""
    torch._C._set_view_replay_enabled(False)


def warm(cases, sweeps, rounds, seconds):
    """{case: summary}; the whole list is swept several times."""
    samples = {name: {} for name in cases["bare"]}
    for _ in range(sweeps):
        for name in samples:
            calls = {side: cases[side][name].call for side in NAMES}
            with torch.set_grad_enabled(cases["bare"][name].grad):
                take_turns(calls, rounds, seconds, samples[name], plain_views)
    return {name: summary(of) for name, of in samples.items()}


def summary(samples):
    """The best of each side, and beside plain ones in the same round: difference and quotient."""
    row = {side: min(s) for side, s in samples.items()}
    for side in NAMES[1:]:
        pairs = list(zip(samples[side], samples["bare"], strict=True))
        row[f"{side}_over"] = statistics.median(t - bare for t, bare in pairs)
        row[f"{side}_ratio"] = statistics.median(t / bare for t, bare in pairs)
    return row


def new_shapes(sides, count=9):
    """{case: {side: median}} for shapes that were not seen before."""
    out = {}
    for name in ALL:
        spent = {side.name: [] for side in sides}
        for i in range(3 if name in BLOCKS else count):
            for side in sides:
                case = make_case(side, name, 10 + 2 * i)
                plain_views()
                with torch.set_grad_enabled(case.grad):
                    spent[side.name].append(once(case.call))
        out[name] = {side: statistics.median(s) for side, s in spent.items()}
    return out


def in_fresh_process(work):
    """What `work` returns in a forked process."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.write(write, pickle.dumps(work()))
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read, "rb") as f:
        data = f.read()
    if os.waitpid(pid, 0)[1] != 0:
        sys.exit("a process that measured first calls failed")
    return pickle.loads(data)


def first_calls(names):
    """{case: {side: microseconds}}, and the first tensor that each side makes."""

    def first(side_type, name):
        side = side_type()
        make = once(lambda: side.put(torch.ones(8, 8), 0))
        case = make_case(side, name)
        with torch.set_grad_enabled(case.grad):
            return make, once(case.call)

    out = {"first tensor": {}}
    for name in names:
        out[name] = {}
        for side_type in (Bare, Ours, Rival):
            make, call = in_fresh_process(lambda t=side_type, n=name: first(t, n))
            out["first tensor"].setdefault(side_type.name, make)
            out[name][side_type.name] = call
    return out


def table_of_warm(rows):
    say(f"\n{'warm, us':30}{'bare':>9}{'ours':>9}{'DTensor':>10}{'ours/bare':>11}{'DT/bare':>9}{'ours over':>11}{'DT over':>9}{'DT/ours':>9}")
    for name, t in rows.items():
        line = f"{name:30}{t['bare']:9.2f}{t['ours']:9.2f}{t['dtensor']:10.1f}{t['ours_ratio']:11.2f}{t['dtensor_ratio']:9.2f}"
        over = t["ours_over"], t["dtensor_over"]
        say(f"{line}{over[0]:11.2f}{over[1]:9.1f}{over[1] / over[0]:9.1f}")


def table(title, rows):
    say(f"\n{title:30}{'bare':>9}{'ours':>9}{'DTensor':>10}{'DT/ours':>9}")
    for name, t in rows.items():
        say(f"{name:30}{t['bare']:9.1f}{t['ours']:9.1f}{t['dtensor']:10.1f}{t['dtensor'] / t['ours']:9.1f}")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--sweeps", type=int, default=16, help="times the whole list is measured")
    ap.add_argument("--rounds", type=int, default=6, help="rounds per case and sweep")
    ap.add_argument("--round-seconds", type=float, default=0.005)
    ap.add_argument("--no-first", action="store_true", help="leave out first calls")
    ap.add_argument("--out", help="JSON of all figures")
    ap.add_argument("--compare-as", nargs=2, type=int, metavar=("RANK", "PORT"), help="only compare, as one of two processes")
    args = ap.parse_args()
    torch.set_num_threads(1)
    if args.compare_as:
        return compare_as_rank(*args.compare_as)
    compare_on_processes()
    start()
    first = {} if args.no_first else first_calls(ALL)
    sides, cases = make_sides()
    compare(sides, cases, LOCAL)  # what is timed is what was compared
    probe = spin_probe()
    result = {"warm": warm(cases, args.sweeps, args.rounds, args.round_seconds),
              "new_shape": new_shapes(sides), "first_call": first}  # fmt: skip
    table_of_warm(result["warm"])
    table("new shape, us (plain first)", result["new_shape"])
    if first:
        table("first call, us", first)
    say(f"\na fixed loop takes {probe:.2f} and {spin_probe():.2f} times its best, before and after (1.1: others share the core)")
    if args.out:
        write_json(args.out, result)


if __name__ == "__main__":
    main()
