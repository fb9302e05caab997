"""Programs on processes, one for each rank, and the same in lockstep beside them.

All ranks make the program from its seed, run it as check.py does in lockstep, and compare with the reference. They
agree on which line is refused, and one of them compares what is left with a lockstep run: layouts, and values, bit by
bit where processes add in the order of ranks as lockstep does. After a crash or a hang new processes go on with the
next program.
"""

import contextlib
import os
import pathlib
import sys
import time

import intarsia as it
import torch

import compare
import generate
import run
import shrink
import torch_differences
import workers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
import launch  # noqa: E402

PROGRAMS = 400  # of one set of processes
WORLD_SECONDS, SHRINKING_WORLD_SECONDS = 30, 8
GRACE_SECONDS = 3
SHRINK_SECONDS = 90


# ---- a rank ------------------------------------------------------------------------------------


def connect(rank, ranks, backend, port, seconds):
    place = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "MASTER_ADDR": launch.LOOPBACK, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()}, INTARSIA_BACKEND=backend)
    torch.set_num_threads(1)
    it.init({"x": ranks}, timeout=seconds)
    return it.world()


class RanksDiffer(Exception):
    pass


def agree(line, world):
    """Raises unless all ranks say the same. COLLECTIVE: all ranks."""
    mine = it.from_local(torch.tensor([line]), f"[x={world.size()}] S(0)", world=world)
    said = it.full(mine).tolist()
    if len(set(said)) > 1:
        raise RanksDiffer(f"ranks stopped at lines {said}, where -1 is the end")


def left_behind(side):
    """What a run left: texts of layouts, and full values. COLLECTIVE: all ranks, of processes."""
    found = {}
    for name, value in side.values().items():
        for end, tensor in compare.tensors_of(value):
            if tensor is None:
                continue
            found[name + end] = described(tensor)
            if compare.keeps_gradient(tensor) and tensor.grad is not None:
                found[f"{name}{end}.grad"] = described(tensor.grad)
    return found


def described(tensor):
    text = it.describe(tensor) if it.has_layout(tensor) else "plain"
    try:
        return text, compare.full(tensor).clone()
    except Exception as error:
        if compare.STALE not in str(error):
            raise
        return text, None


def lockstep_apart(program, found, limit):
    """How a lockstep run of the same program differs from what processes left."""
    with run.lockstep(program) as world:
        beside = left_behind(run.laid_out(program, world))
    for name, (text, value) in beside.items():
        got_text, got = found.get(name, ("nothing", None))
        if text != got_text:
            return [compare.Difference("lockstep", name, f"{got_text} on processes, {text} in lockstep")]
        apart = (got is None) != (value is None) or (value is not None and compare.values_apart(value, got, limit))
        if apart:
            return [compare.Difference("lockstep", name, f"on processes and in lockstep: {apart}")]
    return []


def check_on_rank(program, world, exact, compares):
    """Runs a program on this rank; `compares` with lockstep too. COLLECTIVE: all ranks."""

    def look(result, got):
        found = left_behind(got)
        if compares and not result.differences:
            same_bits = exact and not torch_differences.has_own_bits(result.program)
            limit = 0.0 if same_bits else run.limit_of(got)
            result.differences += lockstep_apart(result.program, found, limit)

    return run.check(program, lambda _: contextlib.nullcontext(world), look, lambda line: agree(line, world))


def rank_body(rank, options, jobs, port, seconds):
    """What a rank does with programs, or with seeds of programs."""

    def body(report):
        world = connect(rank, options.ranks, options.backend, port, seconds)
        for number, job in enumerate(jobs):
            program, rows = (job, set()) if not isinstance(job, int) else generate.generate(job, options.ranks, count_rows=False)
            report(begin=number)
            try:
                result = check_on_rank(program, world, options.backend == "shm", number % options.ranks == rank)
                kind = result.kind
            except (run.Invalid, SyntaxError):
                result, kind = run.Result(program), "invalid"
            except Exception as error:
                report(number=number, failed=f"{type(error).__name__}: {error}")
                os._exit(1)
            record = options.record_of(job if isinstance(job, int) else 0, result, rows, len(program.lines))
            report(number=number, record=record | {"kind": kind})
        report(finished=True)
        it.close()

    return body


# ---- all ranks of some programs ------------------------------------------------------------------


class Team:
    """Processes for all ranks, at work on the same programs. `outcomes()` gives (number, record), or after a crash or a
    hang (number, kind, how), which is the last."""

    def __init__(self, options, jobs, seconds=WORLD_SECONDS):
        port = launch.free_ports(1)[0]
        self.seconds = seconds
        self.ranks = [workers.Child(rank_body(rank, options, jobs, port, seconds)) for rank in range(options.ranks)]
        self.count, self.at = len(jobs), 0
        self.records = [{} for _ in self.ranks]
        self.failures, self.begun, self.finished = {}, set(), set()

    def hear(self, rank, report):
        self.begun.add(rank)
        if "record" in report:
            self.records[rank][report["number"]] = report["record"]
        elif "failed" in report:
            self.failures[rank] = report["failed"]
        elif "finished" in report:
            self.finished.add(rank)

    def complete(self):
        """Records of programs that all ranks are through with."""
        while self.at < self.count and all(self.at in records for records in self.records):
            yield self.at, merged([records.pop(self.at) for records in self.records])
            self.at += 1

    def outcomes(self):
        trouble_since = None
        while not all(child.ended for child in self.ranks):
            for child in workers.ready([child for child in self.ranks if not child.ended], 0.5):
                for report in child.reports():
                    self.hear(self.ranks.index(child), report)
            yield from self.complete()
            silent = max(child.silent() for child in self.ranks if not child.ended) if not self.all_ended() else 0
            died = any(child.ended and rank not in self.finished for rank, child in enumerate(self.ranks))
            if died and trouble_since is None:
                trouble_since = time.monotonic()
            late = trouble_since is not None and time.monotonic() - trouble_since > GRACE_SECONDS + self.seconds
            if late or silent > 4 * self.seconds:
                break
        yield from self.complete()
        hung = not self.all_ended()
        self.end()
        if self.at < self.count:
            yield self.at, "hang" if hung or self.timed_out() else "crash", self.how()

    def all_ended(self):
        return all(child.ended for child in self.ranks)

    def timed_out(self):
        return any("imeout" in text or "timed out" in text for text in self.failures.values())

    def end(self):
        for child in self.ranks:
            child.end(kill=True)

    def how(self):
        """What each rank did at the end."""
        return "; ".join(
            f"rank {rank}: {self.failures.get(rank) or child.how_it_ended()}"[:400].replace("\n", " ")
            for rank, child in enumerate(self.ranks)
        )


def merged(records):
    """One record of those of all ranks; it is wrong where one is, or where they differ."""
    worst = next((record for record in records if record["kind"] == "wrong"), records[0])
    kinds = [record["kind"] for record in records]
    refused = {tuple(line for line, *_ in record["refusals"]) for record in records}
    if len(refused) > 1 or ("invalid" in kinds and len(set(kinds)) > 1):
        return worst | {"kind": "wrong", "difference": f"ranks differ: {kinds}, {refused}"}
    return worst


def fails_on(options, kind):
    """Whether a smaller program fails in the same way on processes."""

    def fails(program):
        try:
            with run.reference_world(program) as world:
                run.reference_of(program, world)
        except (run.Invalid, run.LineError, SyntaxError):
            return False
        team = Team(options, [program], SHRINKING_WORLD_SECONDS)
        ends = [each[1] if len(each) == 3 else each[1]["kind"] for each in team.outcomes()]
        # Processes that a busy machine did not let meet say nothing.
        return ends == [kind] and team.begun == set(range(options.ranks))

    return fails


def shrunk(record, program, options):
    """The record of a finding with a smaller program."""
    if not options.shrink or options.seen[record["signature"]] >= 2:
        return record
    fails = fails_on(options, record["kind"])
    smaller = shrink.shrink(program, fails, max(options.shrink, SHRINK_SECONDS)) if fails(program) else program
    return record | {"program": str(smaller)}


def run_processes(options, take):
    """Runs all seeds on processes; `take` gets each record, and says whether to go on."""
    seeds = list(range(options.seed, options.seed + options.count))
    go_on = True
    while seeds and go_on:
        jobs = seeds[:PROGRAMS]
        team, through = Team(options, jobs), 0
        for number, *outcome in team.outcomes():
            through = number + 1
            if len(outcome) == 2:
                kind, how = outcome
                program, rows = generate.generate(jobs[number], options.ranks, count_rows=False)
                record = options.record_of(jobs[number], run.Result(program), rows, len(program.lines))
                record |= {"kind": kind, "difference": how, "program": str(program), "signature": kind}
                record = shrunk(record, program, options)
            else:
                record = outcome[0]
                if record["kind"] == "wrong":
                    record = shrunk(record, generate.generate(jobs[number], options.ranks, count_rows=False)[0], options)
            if not take(record):
                go_on = False
                break
        team.end()
        seeds = seeds[through:] if through else seeds[1:]


