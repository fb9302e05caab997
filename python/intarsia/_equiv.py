"""Is this run the same as the serial one? A program on two layouts, or on many ranks and on one, value by value."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TypeVar

import torch

from ._equiv_compare import Finding, Rounding, difference
from ._equiv_noise import rounding_noise
from ._equiv_record import GRADIENT, LOSS, OUTPUT, OUTPUT_GRADIENT, PARAMETER, Key, Piece, Record, Recorder
from ._gather import gather, here

SAMPLES = 16  # disturbed runs of the reference
MOST_SHOWN = 5
Program = Callable[[], object]
T, U = TypeVar("T"), TypeVar("U")


@dataclasses.dataclass
class EquivReport:
    """What came of a comparison; `print` it."""

    equal: bool
    module: str | None  # where the runs part
    first: Finding | None  # the first value that rounding does not explain
    findings: list[Finding]  # all of them
    compared: int
    ratio: float  # the largest difference beside what rounding explains
    not_compared: list[str]

    def __str__(self) -> str:
        left_out = "".join(f"\n  not compared: {each}" for each in self.not_compared)
        if self.equal:
            return f"[equiv] equal: {self.compared} values, the farthest {self.ratio:.2g} of what rounding explains{left_out}"
        lines = [f"[equiv] not equal: {len(self.findings)} of {self.compared} values are not explained by rounding"]
        if self.module is not None:
            lines.append(f"  the runs part in {self.module or 'the model'}, in step {self.first.key.step}")
        shown = [self.first, *(finding for finding in self.findings if finding is not self.first)][:MOST_SHOWN]
        lines += [f"  {finding.key}: {finding.text}" for finding in shown]
        if len(self.findings) > len(shown):
            lines.append(f"  and {len(self.findings) - len(shown)} more")
        return "\n".join(lines) + left_out

    def check(self) -> None:
        """AssertionError with the report, if the runs are not equal."""
        if not self.equal:
            raise AssertionError(str(self))


class EquivReference:
    """A program that others are compared with, run on one rank: with plain tensors or, where Intarsia draws random numbers, on a mesh of one rank.

    It is run once as it is, once more to see that it computes the same again, and `samples` times with the rounding errors that its ops could
    have had (docs/equiv.md): these say how far rounding moves each value. The program makes its model, data and optimizer anew in each call.
    """

    def __init__(self, program: Program, *, samples: int = SAMPLES, ranks: int | None = None, outputs: bool = True):
        check_samples(samples)
        self._outputs = outputs
        self._ranks = ranks or max(here()[1], 2)
        first, again = self._run(program), self._run(program)
        check_reference(first, again)
        self._rounding = Rounding(first, (self._disturbed(program, seed) for seed in range(samples)))

    def _run(self, program: Program) -> Record:
        return record(program, outputs=self._outputs)

    def _disturbed(self, program: Program, seed: int) -> Record:
        with rounding_noise(seed, self._ranks):
            return self._run(program)

    def compare(self, program: Program) -> EquivReport:
        """Runs a program and compares it. COLLECTIVE: all ranks, where there are several processes."""
        rank, ranks = here()
        return compare_records(self._rounding, _run_everywhere(lambda: record(program, rank, ranks, outputs=self._outputs), joined))


def equiv(reference: Program, program: Program, *, samples: int = SAMPLES) -> EquivReport:
    """Compares two programs: losses, outputs of modules and their gradients, gradients, parameters.

    Tolerances are measured by running the reference with the rounding errors of its dtype: none is given. COLLECTIVE: all ranks.
    """
    return EquivReference(reference, samples=samples).compare(program)


def replay(program: Program) -> None:
    """Runs a program twice: the same machine with the same data must compute the same bits. AssertionError names the first value that differs, and
    the rank. COLLECTIVE: all ranks."""
    rank, ranks = here()
    found = _run_everywhere(lambda: replay_differences(*(record(program, rank, ranks) for _ in range(2))), list)
    for at, differences in enumerate(found):
        if differences:
            raise AssertionError(f"[replay] rank {at} computed other bits the second time: {differences[0]}, and {len(differences) - 1} values more")


def record(program: Program, rank: int = 0, ranks: int = 1, *, outputs: bool = True) -> Record:
    """What a program computes on this rank; seeds are those of the caller each time."""
    state = torch.random.get_rng_state()
    try:
        with Recorder(rank, ranks, outputs=outputs).recording() as out:
            program()
    finally:
        torch.random.set_rng_state(state)
    return out


def replay_differences(a: Record, b: Record) -> list[str]:
    """The values of a rank that are not bit for bit the same in another run."""
    out = [f"{key} of step {key.step} is there in one run only" for key in a.values.keys() ^ b.values.keys()]
    for key, pieces in a.values.items():
        for one, other in zip(pieces, b.values.get(key, pieces), strict=True):
            if one.value.shape != other.value.shape or difference(one.value, other.value).any():
                out.append(f"{key} of step {key.step}")
    return out


# ---- comparing


def compare_records(rounding: Rounding, run: Record) -> EquivReport:
    """All values of a run with those of the reference, in the order in which the reference made them."""
    not_compared: list[str] = []
    findings: dict[Key, Finding] = {}
    partial: dict[Key, str] = {}
    compared, worst = 0, 0.0
    calls = _unlike_calls(rounding, run)
    run = _with_one_loss(rounding, run)
    for key in rounding.values:
        if (key.kind, key.name) in calls:
            continue
        pieces = run.values.get(key)
        if pieces is None and key.kind in (OUTPUT, OUTPUT_GRADIENT):
            _say_once(not_compared, f"{key.kind} of {key.name}: the run has none")
            continue
        compared += 1
        if pieces is None:
            findings[key] = Finding(key, "the run has none")
            worst = math.inf
            continue
        if not rounding.has(key):
            _say_once(not_compared, f"{key}: it is not there in each run of the reference")
            continue
        result = rounding.compare(key, pieces, run.ranks)
        worst = max(worst, result.ratio)
        if result.partial:
            partial[key] = result.how
        if result.ratio > 1:
            by = run.made_by.get(key, "")
            findings[key] = Finding(key, result.text + (f"; made by {by}" if by else ""))
    for key in run.values:
        if key not in rounding.values and key.kind in (GRADIENT, PARAMETER):
            findings[key] = Finding(key, "the reference has none")
    unlike: dict[str, list[str]] = {}
    for (kind, name), why in calls.items():
        if kind == OUTPUT:
            unlike.setdefault(why, []).append(name or "the model")
    not_compared += [f"outputs of {', '.join(names)}: {why}" for why, names in unlike.items()]
    first, module = _where(list(rounding.values), findings, partial)
    return EquivReport(not findings, module, first, list(findings.values()), compared, worst, not_compared)


def _with_one_loss(rounding: Rounding, run: Record) -> Record:
    """Where a step of the reference has one backward and the run several, gradients add up, and so do the losses."""
    steps: dict[int, list[Key]] = {}
    for key in run.values:
        if key.kind == LOSS:
            steps.setdefault(key.step, []).append(key)
    values = dict(run.values)
    for step, keys in steps.items():
        if len(keys) == 1 or any(key.kind == LOSS and key.step == step and key.call > 0 for key in rounding.values):
            continue
        totals: dict[int, torch.Tensor] = {}
        for piece in (piece for key in keys for piece in values.pop(key)):
            totals[piece.rank] = totals.get(piece.rank, 0) + piece.value.double()
        values[Key(step, LOSS, "")] = [Piece(rank, total) for rank, total in totals.items()]
    return dataclasses.replace(run, values=values)


def _say_once(to: list[str], text: str) -> None:
    if text not in to:
        to.append(text)


def _unlike_calls(rounding: Rounding, run: Record) -> dict[tuple[str, str], str]:
    """Modules that are called another number of times, as in accumulation: one call's output there is not one's here."""

    def counts(values) -> dict[tuple[str, str], int]:
        out: dict[tuple[str, str], int] = {}
        for key in values:
            if key.kind in (OUTPUT, OUTPUT_GRADIENT):
                out[key.kind, key.name] = out.get((key.kind, key.name), 0) + 1
        return out

    there, found = counts(rounding.values), counts(run.values)
    return {key: f"{n} calls in the reference, {found[key]} in the run" for key, n in there.items() if key in found and found[key] != n}


def _module_of(key: Key) -> str:
    return key.name.rpartition(".")[0] if key.kind in (GRADIENT, PARAMETER) else key.name


def _where(order: list[Key], findings: dict[Key, Finding], partial: dict[Key, str]) -> tuple[Finding | None, str | None]:
    """The first finding in the order in which things happen, and the module it speaks of."""
    if not findings:
        return None, None
    step = min(key.step for key in findings)
    of_step = [key for key in order if key.step == step] + [key for key in findings if key.step == step and key not in order]
    forward = [key for key in of_step if key.kind in (OUTPUT, LOSS)]
    for i, key in enumerate(forward):
        if key in findings:
            before = forward[i - 1] if i else None
            # What a rank alone has of a sum went on as if it were the sum.
            if before is None or before not in partial or before in findings:
                return findings[key], key.name if key.kind == OUTPUT else ""
            findings[key].text += f"; the {before}, before it, fits as {partial[before]}: is a reduction missing there?"
            return findings[key], before.name
    made = {key.name: i for i, key in enumerate(forward)}

    def backward_order(key: Key) -> tuple:
        kinds = {OUTPUT_GRADIENT: 0, GRADIENT: 1, PARAMETER: 2}
        when = made.get(_module_of(key), -1)  # unset where the module itself was not called
        # An output's gradient is there before those of the parameters that made it; parameters move after all of them.
        return (key.kind == PARAMETER, -when, kinds.get(key.kind, 3))

    key = min((key for key in of_step if key in findings), key=backward_order)
    return findings[key], _module_of(key)


def check_samples(samples: int) -> None:
    if samples < 2 or samples % 2:
        raise ValueError(f"[equiv] samples must be even and at least 2, not {samples}")


def check_reference(first: Record, again: Record) -> None:
    """ValueError for a program that cannot be compared with: it is not the same in two runs, or it learns nothing."""
    _refuse_dead(first)
    differ = replay_differences(first, again)
    if differ:
        raise ValueError(f"[equiv] the reference is not the same when it is run again: {differ[0]}; seed what it draws and what it reads")


def _refuse_dead(run: Record) -> None:
    """A model that learns nothing is equal to everything."""
    kinds = {kind: [(key, pieces) for key, pieces in run.values.items() if key.kind == kind] for kind in (LOSS, GRADIENT)}
    if not kinds[LOSS] or not kinds[GRADIENT]:
        missing = "no backward of a loss" if not kinds[LOSS] else "no gradient at a step of an optimizer"
        raise ValueError(f"[equiv] the reference has {missing}: nothing could be compared")
    losses = [float(pieces[0].value) for _, pieces in kinds[LOSS] if pieces]
    if not all(map(math.isfinite, losses)):
        raise ValueError(f"[equiv] the loss of the reference is {losses}")
    if len(losses) > 1 and max(losses) == min(losses):
        raise ValueError(f"[equiv] the loss of the reference is {losses[0]:.9g} in each of its {len(losses)} backwards: it learns nothing")
    dead = {key.name for key, _ in kinds[GRADIENT]}
    dead -= {key.name for key, pieces in kinds[GRADIENT] if any(piece.value.any() for piece in pieces)}
    if dead:
        raise ValueError(f"[equiv] gradients that are zero in all steps of the reference prove nothing: {', '.join(sorted(dead))}; freeze these "
                         "parameters, or let the model use them")  # fmt: skip


# ---- the other ranks


def _run_everywhere(run: Callable[[], T], join: Callable[[list[T]], U]) -> U:
    """What all ranks' runs give together; where one fails, all are told."""
    try:
        mine, error = run(), None
    except Exception as e:  # ours goes on as it is
        mine, error = None, e
    found = gather((mine, None if error is None else f"{type(error).__name__}: {error}"))
    if error is not None:
        raise error
    failed = [f"rank {rank} failed: {text}" for rank, (_, text) in enumerate(found) if text is not None]
    if failed:
        raise RuntimeError(f"[equiv] {failed[0]}")
    return join([each for each, _ in found])


def joined(records: list[Record]) -> Record:
    out = Record(records[0].ranks)
    for each in records:
        out.add(each)
    return out
