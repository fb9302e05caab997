"""Random calls of torch's own ops on a random mix of distributed and plain arguments, on two ranks.

    python tests/python/refusals_fuzz.py [--calls N] [--seed S] [--only OP] [--first I] [--verbose]

Ops and their arguments come from torch's table for its own tests. Each call is made on plain tensors, then
with some of them in random layouts. It must give the same values and gradients, or be refused in our words.
Call i of a seed is always the same: what fails can be repeated with --seed S --first I --calls 1.

Prints what failed, and sums on the last line.
"""

import argparse
import collections
import datetime
import faulthandler
import importlib.util
import itertools
import json
import os
import pathlib
import random
import re
import sys
import tempfile
import types
import unittest
import warnings

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "launch"))
import intarsia as it  # noqa: E402
import launch  # noqa: E402
import numpy  # noqa: E402
import torch  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map  # noqa: E402

RANKS = 2
WORLD_SECONDS = 12
STUCK_SECONDS = 60
PEER_SECONDS = 75
SAMPLES = 60
NOT_SEEN = "not seen by this rank"
SEEN = "refused by the ranks that see the values"

# Parts of names. Results are not a function of the arguments, or not the only right ones.
RANDOM = {
    *("empty", "rand", "randn", "randint", "normal", "dropout", "dropout2d", "dropout3d", "bernoulli", "multinomial"),
    *("cauchy", "exponential", "geometric", "uniform", "lowrank", "rrelu", "fractional", "resize"),
}
NOT_UNIQUE = {"svd", "eig", "eigh", "qr", "lstsq", "geqrf"}
# What the table itself has for other machines.
NOT_FOR_US = ("jiterator", "nested", "to_sparse", "sparse", "_flash", "_efficient", "item")


# --- one rank ------------------------------------------------------------------------------


def table():
    """torch's table of ops. Its module wants a package for tests only, of which we use nothing."""
    if importlib.util.find_spec("expecttest") is None:
        stub = types.ModuleType("expecttest")
        stub.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stub
    from torch.testing._internal import common_methods_invocations as invocations

    # It would give random ops the same seed each time, and we could not tell them from others.
    invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    return [op for op in invocations.op_db if not any(word in op.name for word in NOT_FOR_US)]


def is_in(op, words):
    return not words.isdisjoint(re.split(r"[._]", op.name))


def seed_all(text):
    chance = random.Random(text)
    number = chance.randrange(2**31)
    torch.manual_seed(number)
    numpy.random.seed(number)
    random.seed(number)
    return chance


class Failure(Exception):
    """What a call must not do, as a kind and a text."""


class Skip(Exception):
    """The call says nothing: plain torch does not do it either, or its result is random."""


def map_tensors(change, tree):
    """A copy of nested arguments with each tensor changed, one that occurs twice only once."""
    seen = {}

    def visit(leaf):
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in seen:
            seen[id(leaf)] = change(leaf)
        return seen[id(leaf)]

    return tree_map(visit, tree)


def tensors_in(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def copied(tensor):
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def parts(tensor, chance):
    """Two tensors whose sum is exactly this one, neither of them like it."""
    factor = chance.choice([2, -1, 3] if not tensor.is_floating_point() else [2, -1, 0.5])
    finite = torch.isfinite(tensor)
    first = torch.where(finite, tensor * factor, tensor)
    return first, torch.where(finite, tensor - first, torch.zeros_like(tensor))


def layouts_for(tensor):
    found = ["R"] + [f"S({d})" for d in range(tensor.dim())] * 2
    return found + (["P(sum)"] * 2 if tensor.dtype != torch.bool else [])


def laid_out(tensor, layout, chance):
    whole = tensor.detach().clone()
    if layout == "P(sum)":
        piece = parts(whole, chance)[it.world().rank()]
        made = it.from_local(piece.contiguous(), layout, shape=tuple(whole.shape))
    else:
        made = it.distribute(whole, layout)
    return made.requires_grad_(tensor.requires_grad)


class Call:
    """One op, its arguments, and the layouts that they get."""

    def __init__(self, ops, seed, index, only):
        chance = seed_all(f"{seed}:{index}")
        if only:
            ops = [op for op in ops if op.name == only]
        order = random.Random(f"{seed}:order:{index // len(ops)}").sample(range(len(ops)), len(ops))
        self.op = ops[order[index % len(ops)]]
        self.name = self.op.name + (f".{self.op.variant_test_name}" if self.op.variant_test_name else "")
        self.chance, self.expected_error = chance, None
        supported = self.op.supported_dtypes("cpu")
        dtypes = [d for d in (torch.float32, torch.float64, torch.int64) if d in supported]
        if not dtypes:
            raise Skip("no such dtype")
        dtype = chance.choice(dtypes)
        self.backward = dtype.is_floating_point and self.op.supports_autograd
        if self.op.error_inputs_func is not None and chance.random() < 0.15:
            try:
                wrong = list(itertools.islice(self.op.error_inputs(torch.device("cpu")), SAMPLES))
            except Exception as error:
                raise Skip("the table has none for this machine") from error
            if wrong:
                picked = chance.choice(wrong)
                self.sample, self.expected_error = picked.sample_input, picked.error_type
        if self.expected_error is None:
            samples = list(itertools.islice(self.op.sample_inputs("cpu", dtype, requires_grad=self.backward), SAMPLES))
            if not samples:
                raise Skip("no samples")
            self.sample = chance.choice(samples)
        self.arguments = (self.sample.input, *self.sample.args), dict(self.sample.kwargs)
        self.choose_variant()
        self.choose_layouts()

    def choose_variant(self):
        forms = [("function", self.op.op)] * 3
        if self.op.method_variant is not None:
            forms.append(("method", self.op.method_variant))
        if self.op.inplace_variant is not None:
            forms.append(("in place", self.op.inplace_variant))
        self.form, self.function = self.chance.choice(forms)

    def choose_layouts(self):
        can = list({id(t): t for t in tensors_in(self.arguments) if t.layout is torch.strided}.values())
        if not can:
            raise Skip("no tensor among the arguments")
        self.layouts = {id(t): self.chance.choice(layouts_for(t)) for t in can if self.chance.random() < 0.65}
        if not self.layouts:
            first = self.chance.choice(can)
            self.layouts[id(first)] = self.chance.choice(layouts_for(first))

    def describe(self):
        def say(leaf):
            if not isinstance(leaf, torch.Tensor):
                return leaf if not callable(leaf) else "function"
            kind = str(leaf.dtype).removeprefix("torch.")
            strided = "" if leaf.layout is not torch.strided or leaf.is_contiguous() else f" strides {leaf.stride()}"
            return f"<{kind}{list(leaf.shape)}{strided} {self.layouts.get(id(leaf), 'plain')}>"

        args, kwargs = tree_map(say, self.arguments)
        words = [str(a) for a in args] + [f"{k}={v}" for k, v in kwargs.items()]
        wrong = " WRONG ARGUMENTS" if self.expected_error else ""
        return f"{self.name}({', '.join(words)}) {self.form}{wrong}".replace("'", "")

    def run(self, change):
        """Outputs, gradients or None, and leaves, with the arguments changed."""
        args, kwargs = map_tensors(change, self.arguments)
        leaves = [t for t in tensors_in((args, kwargs)) if t.requires_grad]
        if self.form == "in place" and isinstance(args[0], torch.Tensor):
            args = (args[0].clone(), *args[1:])
        result = self.function(*args, **kwargs)
        used = result if self.sample.output_process_fn_grad is None else self.sample.output_process_fn_grad(result)
        return tensors_in(result), used, leaves

    def gradients(self, used, leaves, weights):
        outputs = [t for t in tensors_in(used) if t.requires_grad]
        loss = 0
        for output, weight in zip(outputs, weights):
            loss = loss + ((output.abs() if output.is_complex() else output) * weight).sum()
        return list(torch.autograd.grad(loss, leaves, allow_unused=True))

    def plain(self):
        """What plain torch gives, twice, to find what is random."""
        results = []
        for k in range(2):
            seed_all(f"plain {k}")
            try:
                outputs, used, leaves = self.run(copied)
            except Exception as error:
                if self.expected_error:
                    return None, type(error), None
                raise Skip(f"plain torch: {error}") from error
            if self.expected_error:
                raise Skip("plain torch takes it")
            grads, weights = None, None
            differentiable = [t for t in tensors_in(used) if t.requires_grad]
            if self.backward and differentiable and leaves:
                generator = torch.Generator().manual_seed(7)
                draws = [torch.randn(t.shape, generator=generator, dtype=torch.float64) for t in differentiable]
                weights = [draw.to(t.abs().dtype) for draw, t in zip(draws, differentiable)]
                try:
                    grads = self.gradients(used, leaves, weights)
                except Exception as error:
                    raise Skip(f"plain torch's backward: {error}") from error
            results.append((outputs, grads, weights))
        alike = all(same(a, b) for a, b in zip(results[0][0], results[1][0]))
        if not alike and not is_in(self.op, RANDOM | NOT_UNIQUE):
            raise Skip("random")
        return results[0]

    def check(self, outputs, grads, weights):
        """Makes the call, and compares it with what plain() gave. Raises Failure; otherwise says what came of it."""
        seed_all("distributed")
        place = random.Random(0)

        def change(tensor):
            return laid_out(tensor, self.layouts[id(tensor)], place) if id(tensor) in self.layouts else copied(tensor)

        error_type = grads if self.expected_error else None
        try:
            got, used, leaves = self.run(change)
        except Exception as error:
            return self.judge(error, error_type, "")
        if self.expected_error and self.is_wrong_by_values():
            return NOT_SEEN
        if self.expected_error:
            raise Failure("accepted", f"plain torch raises {error_type.__name__}")
        if not is_in(self.op, RANDOM):
            self.compare("value", outputs, got)
        if grads is None:
            return "equal"
        try:
            got_grads = self.gradients(used, leaves, weights)
        except Exception as error:
            return self.judge(error, None, "backward: ")
        if not is_in(self.op, RANDOM):
            self.compare("gradient", grads, got_grads, outputs)
        return "equal with gradients"

    def is_wrong_by_values(self):
        """Whether plain torch takes the call with zeros for integers: a rank sees its own values only."""
        def zeroed(tensor):
            return copied(tensor) if tensor.is_floating_point() else copied(tensor).zero_()

        try:
            self.run(zeroed)
        except Exception:
            return False
        return True

    def judge(self, error, error_type, where):
        text = str(error)
        first = f"{where}{type(error).__name__}: {text}"[:700]
        if "INTERNAL ASSERT" in text:
            raise Failure("internal assert", first)
        if "DistError" in [t.__name__ for t in type(error).__mro__]:
            raise Failure("ranks apart", first)
        if isinstance(error, (ValueError, NotImplementedError, RuntimeError)) and re.match(r"\[\S+\] ", text):
            return f"refused: {first}"
        if error_type is not None and isinstance(error, error_type):
            return "refused as plain"
        raise Failure("foreign exception", first)

    def compare(self, what, expected, got, through=()):
        """Compares results, or gradients that went through results of perhaps fewer digits."""
        coarse = any(t.dtype in (torch.float32, torch.complex64, torch.bfloat16, torch.float16) for t in through)
        if len(expected) != len(got):
            raise Failure(f"wrong {what}", f"{len(got)} tensors instead of {len(expected)}")
        for k, (a, b) in enumerate(zip(expected, got)):
            if a is None or b is None:
                some = a if b is None else b
                if some is not None and torch.count_nonzero(whole(some)):
                    raise Failure(f"wrong {what}", f"tensor {k} is {'missing' if b is None else 'not None'}")
                continue
            try:
                b = whole(b)
            except Exception as error:
                raise Failure("no full()", f"{what} {k}: {type(error).__name__}: {error}"[:500]) from error
            if a.shape != b.shape or a.dtype != b.dtype:
                raise Failure(
                    f"wrong {what}", f"tensor {k} is {b.dtype}{list(b.shape)} instead of {a.dtype}{list(a.shape)}"
                )
            if not is_in(self.op, NOT_UNIQUE) and not close(a, b, coarse):
                raise Failure(f"wrong {what}", f"tensor {k}: {differences(a, b)}")


def whole(tensor):
    tensor = tensor.detach()
    tensor = it.full(tensor) if it.has_layout(tensor) else tensor
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def same(a, b):
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all()) if a.layout is torch.strided else True


def close(a, b, coarse):
    """Equal but for the rounding of sums in another order, measured against the largest element."""
    if not a.dtype.is_floating_point and not a.is_complex():
        return torch.equal(a, b)
    epsilon = 1e-9 if a.dtype in (torch.float64, torch.complex128) and not coarse else 1e-3
    finite = a[torch.isfinite(a)].abs()
    size = float(finite.max()) if finite.numel() else 0.0
    return torch.allclose(a, b, rtol=epsilon, atol=epsilon * max(1.0, size), equal_nan=True)


def differences(a, b):
    wrong = ~torch.isclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True) if a.dtype != torch.bool else a != b
    count = int(wrong.sum())
    places = wrong.nonzero()[:3].tolist()
    pairs = [f"{p}: {a[tuple(p)].item()} became {b[tuple(p)].item()}" for p in places]
    return f"{count} of {a.numel()} wrong; " + ", ".join(pairs)


def told(store, key, rank, text):
    """What the other rank tells, while this one tells its own."""
    store.set(f"{key}/{rank}", text)
    return store.get(f"{key}/{1 - rank}").decode()


def as_rank(options):
    """Makes the calls on one rank. Each is written down before and after."""
    warnings.simplefilter("ignore")
    faulthandler.enable()

    rank = int(os.environ["RANK"])
    log = open(pathlib.Path(options.log) / f"rank{rank}", "a", buffering=1)  # noqa: SIM115
    it.init(timeout=WORLD_SECONDS)
    ops = table()
    store = torch.distributed.TCPStore(
        launch.LOOPBACK, options.port, RANKS, rank == 0, datetime.timedelta(seconds=PEER_SECONDS)
    )
    for index in range(options.first, options.first + options.calls):
        faulthandler.dump_traceback_later(STUCK_SECONDS, exit=True)
        record = {"call": index, "op": "?", "what": "?"}
        outcome = ""
        try:
            call = Call(ops, options.seed, index, options.only)
            record |= {"op": call.name, "what": call.describe()}
            log.write(json.dumps(record) + "\n")
            expected = call.plain()
        except Skip as skipped:
            outcome = f"skipped: {skipped}"[:200]
        outcome = told(store, f"{index}/plain", rank, outcome) or outcome
        if not outcome:
            try:
                outcome = call.check(*expected)
            except Failure as failure:
                outcome = f"FAILED {failure.args[0]}: {failure.args[1]}"
        faulthandler.cancel_dump_traceback_later()
        log.write(json.dumps(record | {"outcome": outcome}) + "\n")
        other = told(store, index, rank, outcome)
        apart = outcome.split(":")[0] != other.split(":")[0]
        if apart or "did not finish" in outcome + other:
            os._exit(5)  # the ranks may have left messages for each other
    log.write(json.dumps({"end": True}) + "\n")
    it.close()


# --- all ranks -----------------------------------------------------------------------------


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def batch(options, first, calls):
    """Runs some calls in two new processes. Gives outcomes by call, and how many calls were made."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, __file__, "--as-rank", "--log", directory, "--port", launch.free_ports(1)[0]]
        command += ["--seed", options.seed, "--first", first, "--calls", calls]
        command += ["--only", options.only] if options.only else []
        # torch's table of samples iterates over sets of strings, which each process would order in its own way.
        env = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        result = launch.run("plain", RANKS, command, env=env, timeout=STUCK_SECONDS + 3 * calls)
        logs = [read(pathlib.Path(directory) / f"rank{r}") for r in range(RANKS)]
    outcomes = {}
    for rank, log in enumerate(logs):
        for record in log:
            if "outcome" in record:
                outcomes.setdefault(record["call"], [record["what"], None, None])[1 + rank] = record["outcome"]
    done = max(outcomes, default=first - 1) - first + 1
    if all(log and "end" in log[-1] for log in logs):
        return outcomes, calls
    started = {r["call"]: r["what"] for log in logs for r in log if "call" in r}
    last = max(started, default=first)
    entry = outcomes.setdefault(last, [started.get(last, "?"), None, None])
    for rank in range(RANKS):
        if entry[1 + rank] is None:
            entry[1 + rank] = f"FAILED crash or hang: exit code {result.returncode}; {result.stderr[-1500:]}"
    return outcomes, max(done, last - first + 1)


def verdict(outcome):
    """Counted as, and text."""
    what, zero, one = outcome
    failed = next((o for o in (zero, one) if o and o.startswith("FAILED")), None)
    if NOT_SEEN in (zero, one):
        seen = {zero, one} == {NOT_SEEN, "refused as plain"}
        return (SEEN, what) if seen else ("FAILED accepted", f"{what}\n    rank 0: {zero}\n    rank 1: {one}")
    if zero and one and zero.split(":")[0] != one.split(":")[0]:
        return "FAILED ranks apart", f"{what}\n    rank 0: {zero}\n    rank 1: {one}"
    if failed:
        return failed.split(":")[0], f"{what}\n    {failed}"
    return zero.split(":")[0], f"{what}: {zero}"


def main(options):
    counts, at = collections.Counter(), options.first
    end = options.first + options.calls
    while at < end:
        outcomes, done = batch(options, at, min(options.batch, end - at))
        for index in sorted(outcomes):
            kind, text = verdict(outcomes[index])
            counts[kind] += 1
            if kind.startswith("FAILED") or options.verbose:
                print(f"seed {options.seed} call {index}: {kind}: {text}", flush=True)
        at += max(done, 1)
    for kind, count in sorted(counts.items()):
        print(f"{count:6} {kind}")
    failed = sum(n for kind, n in counts.items() if kind.startswith("FAILED"))
    made = sum(n for kind, n in counts.items() if kind != "skipped")
    print(f"{made} calls on {RANKS} ranks, {failed} wrong")
    return 1 if failed or not made else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=2600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--batch", type=int, default=400)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--as-rank", action="store_true")
    parser.add_argument("--log")
    parser.add_argument("--port", type=int)
    chosen = parser.parse_args()
    if chosen.as_rank:
        as_rank(chosen)
        os._exit(0)
    sys.exit(main(chosen))
