"""Random training runs, beside plain training: every loss, parameter, gradient, buffer and state of the optimizer.

    training.py [--seed S] [--count N]                      in lockstep; `replicate` on threads
    training.py --ranks 2 --backend shm [...]               on so many processes, over gloo or shm
    training.py --run 'TEXT' [--ranks 2 --backend shm]      one run again, as it was printed

Further options: --way WAY draws only runs of this way; --without NAME,... leaves out blocks, traits and habits;
--findings DIRECTORY writes each finding there as a file; --no-shrink prints runs as they were drawn; --progress N prints sums after each N.

A run is data: training_data.py says what its text means. What differs, is refused without the docs saying so, crashes
or hangs is a finding: it is made smaller as long as it stays the same finding, and printed as a run to repeat. Ends
with a line of sums, and with 0 only where there are no findings.
"""

import argparse
import collections
import contextlib
import dataclasses
import os
import pathlib
import re
import sys
import time
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch  # noqa: E402
import training_data as data  # noqa: E402
from training_ranks import bare, outcome_once, outcomes_of  # noqa: E402

torch.set_num_threads(1)
warnings.simplefilter("ignore")
SHRINK_TRIES = 150
HANG_TRIES = 20  # as each of them takes long
SHOWN = 600


@dataclasses.dataclass(frozen=True)
class Documented:
    """A refusal that users are told of: its message, and the sentence that says so."""

    message: str  # a regular expression
    page: str
    sentence: str
    ways: tuple[str, ...] = data.WAYS


DOCUMENTED = {
    "unfrozen later": Documented(
        "was frozen when the module was replicated", "docs/data_parallel.md", "parameters that are unfrozen later",
        ("replicate",),
    ),
    "reentrant, replicated": Documented(
        "pass use_reentrant=False", "docs/data_parallel.md", "a backward within another (`use_reentrant=True`",
        ("replicate",),
    ),
    "reentrant, sharded": Documented(
        "use_reentrant=True does; use use_reentrant=False", "docs/fully_sharded.md",
        "Reentrant checkpointing is refused.", ("fully_shard", "fully_shard_plan"),
    ),
    "out of step": Documented(
        "The ranks are out of step", "docs/data_parallel.md",
        "Where buckets had been sent and not all ranks failed at the same place, the next backward says so, and names the ranks.",
        ("replicate",),
    ),
    "meta device": Documented(
        "the module is on the meta device, and nothing sets the values of", "docs/fully_sharded.md",
        "what none of these sets is refused by name.", ("parallelize", "plan", "fully_shard", "fully_shard_plan"),
    ),
    "graphs through chunks": Documented(
        r"a gradient with a graph \(create_graph\) does not go through linear layers", "docs/tensor_parallel.md",
        "Gradients with a graph (`create_graph`) are refused.", ("plan", "fully_shard_plan"),
    ),
}  # fmt: skip


def documented(run, outcome):
    """The name of the documented refusal that this is, or None."""
    if outcome.kind != "refused":
        return None
    fits = (n for n, d in DOCUMENTED.items() if run.way in d.ways and re.search(d.message, outcome.text))
    return next(fits, None)


def signature(outcome):
    """What makes two findings one. Of wrong numbers only a shrunk run says that."""
    if outcome.kind in ("refused", "alone"):
        return outcome.kind, re.split(r": \w+#\[", bare(outcome.text))[0][:120]  # without the tensors at hand
    if outcome.kind == "wrong":
        return outcome.kind, ""
    return outcome.kind, bare(outcome.text)


def features(run):
    """The names of all that a run has."""
    habits = {re.sub(r"\d+|(?<=^o)[\d.]*", "", h) for step in run.steps for h in step}
    blocks = {re.sub(r"\d+", "", b) for b in run.blocks}
    return (run.way, *sorted(blocks - {"mlp"}), *sorted(run.model), *sorted(run.options), *sorted(habits))


class Search:
    """Looks for findings in many runs, and keeps them apart."""

    def __init__(self, ranks=0, backend="gloo", fault=None, shrinks=True, findings=None):
        self.ranks, self.backend, self.fault, self.shrinks, self.findings = ranks, backend, fault, shrinks, findings
        self.kinds, self.refusals, self.ways = (collections.Counter() for _ in range(3))
        self.seen, self.found = collections.Counter(), []  # signatures; (run, outcome)

    def once(self, run):
        return outcome_once(run, self.ranks, self.backend, self.fault)

    def shrunk(self, run, outcome):
        """The run made smaller, and its outcome."""
        last = {run: outcome}
        mark = signature(outcome)

        def first_failing(runs):
            with contextlib.closing(outcomes_of(runs, self.ranks, self.backend, self.fault)) as outcomes:
                for number, (less, found) in enumerate(outcomes):
                    if signature(found) == mark and documented(less, found) is None:
                        last[less] = found
                        return number
            return None

        tries = HANG_TRIES if outcome.kind == "hang" else SHRINK_TRIES
        least = data.shrink(run, first_failing, tries, self.ranks or None)
        return least, last[least]

    def take(self, run, outcome):
        self.ways[run.way] += 1
        if (name := documented(run, outcome)) is not None:
            self.kinds["documented"] += 1
            self.refusals[name] += 1
            return
        self.kinds[outcome.kind] += 1
        if outcome.kind == "plain":
            self.seen["plain", bare(outcome.text)[:120]] += 1
        if outcome.kind in ("ok", "plain"):
            return
        mark = signature(outcome)
        self.seen[mark] += 1
        if self.seen[mark] > 1 and outcome.kind != "wrong":
            return
        least, why = self.shrunk(run, outcome) if self.shrinks else (run, outcome)
        if outcome.kind == "wrong":
            mark = (*mark, *features(least))
            self.seen[mark] += 1
            if self.seen[mark] > 1:
                return
        self.found.append((least, why))
        again = repeat_line(least, self.ranks, self.backend)
        text = f"{why.kind.upper()}: {why.text[:SHOWN]}\n  {again}\n  drawn as {run.seed}"
        print(text, flush=True)
        if self.findings:
            name = f"training-{why.kind}-{self.backend + str(self.ranks) if self.ranks else 'lockstep'}-{run.seed}.txt"
            (pathlib.Path(self.findings) / name).write_text(text + "\n")

    def run(self, runs, progress=0):
        for number, (run, outcome) in enumerate(outcomes_of(runs, self.ranks, self.backend, self.fault), 1):
            self.take(run, outcome)
            if progress and number % progress == 0:
                print(self.summary(), flush=True)

    def good(self):
        return not set(self.kinds) - {"ok", "plain", "documented"}

    def summary(self):
        where = f"on {self.ranks} processes over {self.backend}" if self.ranks else "in lockstep"
        names = ", ".join(f"{name} {count}" for name, count in sorted(self.refusals.items())) or "none"
        sums = [f"{self.kinds['ok']} equal to plain training", f"{self.kinds['documented']} refused as documented ({names})"]
        sums += [f"{self.kinds[kind]} {kind}" for kind in ("wrong", "refused", "alone", "crash", "hang")]
        sums += [f"{self.kinds['plain']} that plain torch refuses"]
        return f"{sum(self.kinds.values())} runs {where}: {', '.join(sums)}; {len(self.found)} findings"


def repeat_line(run, ranks, backend):
    more = f" --ranks {ranks} --backend {backend}" if ranks else ""
    return f"training.py{more} --run '{run.text()}'"


def drawn(seed, count, ranks, ways, without):
    runs = []
    while len(runs) < count:
        run = data.draw(seed, ranks or None, ways)
        if without:
            run = data.without(run, without)
        runs.append(run)
        seed += 1
    return runs


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=0, help="processes; 0: in lockstep")
    parser.add_argument("--backend", choices=("gloo", "shm"), default="gloo")
    parser.add_argument("--run", metavar="TEXT")
    parser.add_argument("--way", choices=data.WAYS, action="append")
    parser.add_argument("--without", default="", metavar="NAME,...")
    parser.add_argument("--findings", metavar="DIRECTORY")
    parser.add_argument("--progress", type=int, default=0, metavar="N", help="a line after each N runs")
    parser.add_argument("--no-shrink", dest="shrinks", action="store_false")
    return parser.parse_args(arguments)


def main(arguments):
    given = parse_arguments(arguments)
    if given.run:
        run = data.parse(given.run)
        ranks = run.ranks() if given.ranks else 0
        outcome = outcome_once(run, ranks, given.backend)
        name = documented(run, outcome)
        print(f"{outcome.kind}: {outcome.text}" + (f" (documented: {name})" if name else ""))
        return 0 if outcome.good() or name else 1
    start = time.monotonic()
    search = Search(given.ranks, given.backend, shrinks=given.shrinks, findings=given.findings)
    search.run(drawn(given.seed, given.count, given.ranks, given.way or data.WAYS, data.listed(given.without)), given.progress)
    for mark, count in search.seen.most_common():
        print(f"{count} x {mark}")
    print(f"{search.summary()}, {time.monotonic() - start:.0f} s")
    return 0 if search.good() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
