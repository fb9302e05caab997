"""Random programs on Intarsia beside plain torch: finds those that differ, and shrinks them.

    check.py --seed S --count N [--jobs J]                      in lockstep, in this process's children
    check.py --seed S --count N --ranks 2|3|4 --backend gloo|shm   on processes, and lockstep beside them
    check.py --program FILE                                     one program, such as this prints

Prints what it finds as programs that can be run again, refusals by message, and a summary on the last line. Exits with
0 only where no program is wrong, crashes or hangs.
"""

import argparse
import collections
import contextlib
import pathlib
import re
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import torch  # noqa: E402

import compare  # noqa: E402
import generate  # noqa: E402
import lines_rows  # noqa: E402
import processes  # noqa: E402
import program as programs  # noqa: E402
import run  # noqa: E402
import shrink  # noqa: E402
import workers  # noqa: E402
from report import Report  # noqa: E402

BATCH = 250
HANG_SECONDS = 90
CRASH_SHRINK_SECONDS = 60
ROWS_EVERY = 4  # rows are counted in every fourth program
ALIKE = 2  # so many findings that look alike are shrunk
NUMBERS = ("values", "gradient", "sizes")


def same_kind(a, b):
    return a == b or (a in NUMBERS and b in NUMBERS)


def is_still_wrong(difference):
    """Whether a smaller program differs in the same way."""

    def fails(candidate):
        try:
            found = run.check(candidate)
        except (run.Invalid, SyntaxError):
            return False
        return not found.refusals and any(same_kind(d.kind, difference.kind) for d in found.differences)

    return fails


def still_crashes(candidate):
    """Whether a program ends the process that runs it; in a child."""
    child = workers.Child(lambda report: judge(candidate, report))
    while not child.ended:
        if not workers.ready([child], HANG_SECONDS):
            child.end(kill=True)
            return False
        child.reports()
    return child.status != 0


def judge(program, report):
    with contextlib.suppress(run.Invalid, SyntaxError):
        run.check(program)
    report(done=True)


def record_of(seed, result, rows, lines):
    return {
        "seed": seed,
        "kind": result.kind,
        "rows": sorted(rows),
        "lines": lines,
        "stale": result.stale,
        "undetermined": result.undetermined,
        "refusals": [(each.line, each.text, each.stale) for each in result.refusals],
        "difference": str(result.differences[0]) if result.differences else "",
        "differs_in": result.differences[0].kind if result.differences else "",
        "program": str(result.program) if result.differences else "",
        "signature": signature(result),
    }


def signature(result):
    """What a finding is probably about: how it differs, and the line that made what differs."""
    if not result.differences:
        return ""
    first = result.differences[0]
    name = first.name.split(".")[0].split("[")[0]
    line = next((line for line in result.program.lines if name in programs.made_by(line)), "")
    return f"{first.kind} {re.sub(r'[vx]?[0-9]+', '_', line)[:60]}"


def check_seed(seed, options, drawn=lambda: None):
    """Generates, runs and, if it is wrong, shrinks the program of a seed. `drawn` is called when plain torch has run it."""
    program, rows = generate.generate(seed, count_rows=seed % ROWS_EVERY == 0)
    drawn()
    try:
        result = run.check(program)
    except run.Invalid:
        return record_of(seed, run.Result(program), rows, 0) | {"kind": "invalid"}
    record = record_of(seed, result, rows, len(program.lines))
    if result.differences and options.find and result.differences[0].kind not in options.find:
        return record | {"kind": "ok"}
    if result.differences and options.shrink and options.seen[record["signature"]] < ALIKE:
        record |= shrunk(result, options.shrink)
    return record


def shrunk(result, seconds):
    """The smaller program and how it differs; nothing where torch itself dies of one that was tried. In a child: ATen
    does not check what some of its own ops are given, and later programs must not have memory that they damaged."""

    def body(report):
        smaller = shrink.shrink(result.program, is_still_wrong(result.differences[0]), seconds)
        report(program=str(smaller))
        report(difference=differences_of(smaller))

    child, found = workers.Child(body), {}
    while not child.ended:
        if not workers.ready([child], HANG_SECONDS):
            child.end(kill=True)
            break
        for report in child.reports():
            found |= report
    return found if found.get("difference") else {}


def differences_of(program):
    """How a program differs, once more: it may not, where memory is read that nothing was written to."""
    return "; ".join(map(str, run.check(program).differences[:2]))


def lockstep_batch(seeds, options):
    def body(report):
        torch.set_num_threads(1)
        for seed in seeds:
            report(begin=seed)
            report(**check_seed(seed, options, lambda seed=seed: report(drawn=seed)))

    return body


class Batch:
    """Seeds, and the child that works on them."""

    def __init__(self, seeds, options):
        self.seeds, self.done, self.current, self.drawn = seeds, 0, seeds[0], None
        self.again = len(seeds) == 1  # a program that hung in a batch runs once more, alone
        self.child = workers.Child(lockstep_batch(seeds, options))

    def hear(self, report):
        if "begin" in report or "drawn" in report:
            self.current, self.drawn = report.get("begin", self.current), report.get("drawn")
            return None
        self.done += 1
        return report

    def left(self):
        """The seeds after the one at which the child ended."""
        return self.seeds[self.done + 1 :]


def unfinished(seed, kind, how, options):
    """The record of a program that crashed or hung."""
    program, rows = generate.generate(seed, count_rows=False)
    if kind == "crash" and not still_crashes(program):
        how += "; not when it runs alone: a program before it may have damaged memory"
    elif kind == "crash" and options.shrink:
        program = shrink.shrink(program, still_crashes, CRASH_SHRINK_SECONDS)
    record = record_of(seed, run.Result(program), rows, len(program.lines))
    return record | {"kind": kind, "difference": how, "program": str(program), "signature": f"{kind} {seed}"}


def run_lockstep(options, take):
    """Runs all seeds in children; `take` gets each record, and says whether to go on."""
    seeds = list(range(options.seed, options.seed + options.count))
    waiting = [seeds[i : i + BATCH] for i in range(0, len(seeds), BATCH)][::-1]
    running, go_on = [], True
    while (waiting or running) and go_on:
        while waiting and len(running) < options.jobs:
            running.append(Batch(waiting.pop(), options))
        heard = workers.ready([batch.child for batch in running], 1)
        for batch in list(running):
            records = [batch.hear(each) for each in batch.child.reports()] if batch.child in heard else []
            kind = "crash"
            if batch.child.silent() > HANG_SECONDS + options.shrink:
                batch.child.end(kill=True)
                kind = "hang"
            if batch.child.ended:
                running.remove(batch)
                if batch.done < len(batch.seeds):
                    if kind == "crash" and batch.drawn != batch.current:  # plain torch itself died of it
                        records.append(record_of(batch.current, run.Result(None), (), 0) | {"kind": "invalid"})
                    elif kind == "hang" and not batch.again:  # the machine may have stood still
                        waiting.append(batch.seeds[batch.done : batch.done + 1])
                    else:
                        records.append(unfinished(batch.current, kind, batch.child.how_it_ended(), options))
                    waiting += [batch.left()] * bool(batch.left())
            for record in records:
                go_on = (take(record) if record else True) and go_on
    for batch in running:
        batch.child.end(kill=True)


def shown(record, options):
    head = f"==== seed {record['seed']} {record['kind']} {record.get('differs_in', '')}"
    if options.seen[record["signature"]] > 2 * ALIKE:
        return f"{head}, like others: {record['signature']}"
    return f"{head}\n{record['program']}# {record['difference']}\n"


def check_file(path):
    """Runs one program; in processes if a launcher says so."""
    result = run.check(programs.parse(pathlib.Path(path).read_text()))
    for each in result.refusals:
        print(f"refused: {each.line}\n    {each.text}")
    for each in result.differences:
        print(f"wrong: {each}")
    print("wrong" if result.differences else "refused" if result.refusals else "ok")
    return 1 if result.differences or result.refusals else 0


def check_many(options):
    report, begun = Report(), time.monotonic()

    def take(record):
        report.add(record)
        options.seen[record.get("signature")] += 1
        if record["kind"] not in ("ok", "invalid"):
            print(shown(record, options), flush=True)
        if options.progress and report.counts["programs"] % options.progress == 0:
            print(f"# {time.monotonic() - begun:.0f} s: {report.summary()}", flush=True)
        return report.holds() or not options.stop_at_first

    generate.rows.samples(), lines_rows.lists_of_tensors()  # once, before children are forked
    (processes.run_processes if options.ranks else run_lockstep)(options, take)
    if report.refused:
        print("refused lines, by message:", *report.refusals(), sep="\n  ")
    print("rows never called:", *report.never_called())
    if options.coverage:
        pathlib.Path(options.coverage).write_text("\n".join(report.coverage()) + "\n")
    print(f"{report.summary()}; {time.monotonic() - begun:.0f} s")
    return 0 if report.holds() else 1


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--count", type=int, default=1000, help="how many programs")
    parser.add_argument("--jobs", type=int, default=1, help="children at once, in lockstep")
    parser.add_argument("--ranks", type=int, choices=(2, 3, 4), help="on so many processes")
    parser.add_argument("--backend", choices=("gloo", "shm"), default="gloo", help="of the processes")
    parser.add_argument("--program", metavar="FILE", help="run this program")
    parser.add_argument("--coverage", metavar="FILE", help="write how often each row was called")
    parser.add_argument("--stop-at-first", action="store_true", help="stop at the first finding")
    parser.add_argument("--find", nargs="+", choices=compare.KINDS, help="only programs that differ in these")
    seconds = {"type": float, "metavar": "SECONDS", "default": shrink.SECONDS}
    parser.add_argument("--shrink", **seconds, help="at most, for each finding; 0: not at all")
    parser.add_argument("--progress", type=int, metavar="N", help="print the counts after every N programs")
    return parser.parse_args(arguments)


def main(arguments):
    torch.set_num_threads(1)
    options = parse_arguments(arguments)
    options.seen, options.record_of = collections.Counter(), record_of
    return check_file(options.program) if options.program else check_many(options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
