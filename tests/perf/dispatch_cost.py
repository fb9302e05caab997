"""Instructions that an op on distributed tensors costs over the same op on plain ones.

    dispatch_cost.py PROGRAM [--check BASELINE] [--update BASELINE] [--limit RATIO]

Runs PROGRAM (tests/perf/dispatch_cost.cpp) under callgrind and prints a table. With --check it fails when
an op costs 10 % more than the recorded overhead; with --limit, when `add` costs more than this part of a
plain one.
"""

import argparse
import glob
import json
import os
import re
import subprocess
import sys
import tempfile

CALLS = 50  # of one round


def measure(program, only=None):
    """{case: {"bare": instructions per call, "ours": ...}}, each of its cheapest round"""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "cg")
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}", program]
        done = subprocess.run(command + ([only] if only else []), capture_output=True, text=True, timeout=600,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip
        if done.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
        counts = {}
        for path in sorted(glob.glob(out + ".*")):
            text = open(path).read()
            trigger = re.search(r"desc: Trigger: Client Request: (\S+) (bare|ours)", text)
            total = re.search(r"^(?:totals|summary): (\d+)", text, re.M)
            if trigger and total:
                case_counts = counts.setdefault(trigger[1], {})
                count = int(total[1]) / CALLS
                case_counts[trigger[2]] = min(count, case_counts.get(trigger[2], count))
        return counts


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("program")
    ap.add_argument("--case", help="only this one")
    ap.add_argument("--check", metavar="BASELINE")
    ap.add_argument("--limit", type=float)
    ap.add_argument("--update", metavar="BASELINE")
    args = ap.parse_args()
    counts = measure(args.program, args.case)
    add = counts["add"]["bare"] if "add" in counts else None
    overhead = {}
    print(f"{'op':8} {'bare':>9} {'ours':>9} {'over':>9}" + ("  over / bare add" if add else ""))
    for name, c in counts.items():
        overhead[name] = c["ours"] - c["bare"]
        ratio = f"  {overhead[name] / add:.3f}" if add else ""
        print(f"{name:8} {c['bare']:9.0f} {c['ours']:9.0f} {overhead[name]:9.0f}{ratio}")
    if args.update:
        with open(args.update, "w") as f:
            json.dump({k: round(v) for k, v in overhead.items()}, f, indent=1)
            f.write("\n")
    failed = []
    if args.check:
        with open(args.check) as f:
            baseline = json.load(f)
        failed += [f"{k}: {v:.0f} instructions over plain, {baseline[k]} recorded"
                   for k, v in overhead.items() if v > 1.1 * baseline.get(k, v)]  # fmt: skip
    if args.limit and add and overhead["add"] > args.limit * add:
        failed.append(f"add: {overhead['add'] / add:.3f} of the plain one, more than {args.limit}")
    print("\n".join(failed) if failed else f"{overhead['add'] / add:.3f}" if add else "")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
