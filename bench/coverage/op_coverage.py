"""Operator coverage and correctness of a distributed-tensor library over PyTorch's op_db.

For every OpInfo (CPU, float32) a few sample inputs are taken; each tensor argument gets a
placement on a 1-D mesh (Replicate or Shard(d), optionally Partial), the op runs on the
distributed arguments on all ranks, and the gathered result is compared on every rank with
the plain one; the same for the gradients of (out * fixed weights).sum().

The library under test is an adapter (class Backend below), either in one process that plays
all ranks or in one process per rank with a gloo group:
  --backend dtensor          PyTorch DTensor, one gloo process per rank (default)
  --backend dtensor-local    PyTorch DTensor, all ranks in one process by LocalTensorMode
  --backend intarsia         Intarsia, one gloo process per rank
  --backend intarsia-local   Intarsia, all ranks in one process in lockstep
  --backend null             plain tensors, to check the harness itself
  --backend module:Class     any other adapter
Samples, placements and weights are deterministic, so two backends face the same cases.

A case (op, sample, placements) is, forward and backward separately: ok, wrong (a value, shape
or rank disagrees and nothing was raised), unsupported (the library says it has no rule),
error (any other exception on all ranks), diverged (one rank raised while another waits in a
collective: a hang in real use), crash (a rank process died) or timeout (slower than
--case-timeout). An op is:
  pass      every case ok                     wrong        at least one wrong case
  partial   some ok, the others raised        unsupported  nothing ok, all cases raised
  skipped   no usable case (reason given)
"""

import argparse
import collections
import importlib
import itertools
import json
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import random
import sys
import tempfile
import time
import warnings
import zlib

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from measure import spin_probe, write_json  # noqa: E402

RTOL, ATOL = 1e-3, 1e-4
SKIP = {
    "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided",
    "resize_", "resize_as_", "set_",
}  # fmt: skip


class Backend:
    """What a library must offer to be measured. Built once in every worker process.

    With `processes = True` the harness starts `world` processes, each with a gloo default
    group of that size, and every method runs on all of them alike. With False there is one
    process and the adapter itself plays all ranks.
    """

    name = "abstract"
    processes = True

    def __init__(self, world):
        self.world = world

    def run(self, case):
        """Call `case()` in the library's context and return what it returned."""
        return case()

    def distribute(self, tensor, placement):
        """A distributed tensor equal to `tensor`; placement is 'R', 'P' or a dimension."""
        raise NotImplementedError

    def full(self, value):
        """The plain tensors `value` (distributed or not) stands for, one per rank played here."""
        raise NotImplementedError

    def unsupported(self, exc):
        """Whether the exception is the library's own statement that it has no rule."""
        return isinstance(exc, NotImplementedError)

    def fell_back(self):
        """(ops without a rule that gathered their operands, other ops that did) in the last case."""
        return [], []


def split_sum(tensor, world):
    """Unequal per-rank addends whose sum is exactly `tensor`: 2t, -t or t, then t, -t pairs.

    Values that are not finite stay whole on the first rank.
    """
    t = torch.where(torch.isfinite(tensor), tensor, 0)
    head = [2 * t, -t] if world % 2 == 0 else [t]
    head[0] = torch.where(torch.isfinite(tensor), head[0], tensor)
    return head + [t, -t] * ((world - len(head)) // 2)


class DTensorBackend(Backend):
    """PyTorch DTensor over gloo, one process per rank."""

    name = "torch.distributed.tensor (gloo processes)"

    def __init__(self, world):
        super().__init__(world)
        from torch.distributed.device_mesh import init_device_mesh

        self.mesh = init_device_mesh("cpu", (world,))

    def partial(self, tensor):
        import torch.distributed as dist

        return split_sum(tensor, self.world)[dist.get_rank()]

    def distribute(self, tensor, placement):
        from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

        if placement == "P":
            return DTensor.from_local(
                self.partial(tensor), self.mesh, [Partial("sum")], run_check=False
            )
        p = Replicate() if placement == "R" else Shard(placement)
        return distribute_tensor(tensor, self.mesh, [p], src_data_rank=None)

    def full(self, value):
        from torch.distributed.tensor import DTensor

        return [value.full_tensor() if isinstance(value, DTensor) else value]

    def unsupported(self, exc):
        return isinstance(exc, NotImplementedError) or "sharding strategy" in str(exc)


class DTensorLocalBackend(DTensorBackend):
    """PyTorch DTensor, all ranks simulated in one process by LocalTensorMode."""

    name = "torch.distributed.tensor (LocalTensorMode)"
    processes = False

    def __init__(self, world):
        import torch.distributed as dist
        from torch.distributed._local_tensor import LocalTensor, LocalTensorMode
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
        self.mode, self.local_type = LocalTensorMode, LocalTensor
        with self.mode(world):
            super().__init__(world)

    def run(self, case):
        with self.mode(self.world):
            return case()

    def partial(self, tensor):
        return self.local_type(dict(enumerate(split_sum(tensor, self.world))))

    def full(self, value):
        (value,) = super().full(value)
        if isinstance(value, self.local_type):
            return list(value._local_tensors.values())
        return [value]


class NullBackend(Backend):
    """Plain tensors, nothing distributed: every case must pass, or the harness itself is wrong."""

    name = "none (plain tensors)"
    processes = False

    def distribute(self, tensor, placement):
        return tensor

    def full(self, value):
        return [value]


class IntarsiaBackend(Backend):
    """Intarsia over gloo, one process per rank."""

    name = "intarsia (gloo processes)"

    def __init__(self, world):
        super().__init__(world)
        import intarsia

        self.lib = intarsia
        self.enter()

    def enter(self):
        self.lib.init(f"[x={self.world}]")
        import torch.distributed as dist

        self.rank = dist.get_rank()

    def run(self, case):
        self.lib.clear_bill()
        return case()

    def fell_back(self):
        """Ops that had no rule and gathered their operands in the last case, and other gathers."""
        entries = self.lib.bill().entries
        return (
            sorted({e.op for e in entries if e.fallback}),
            sorted({e.op for e in entries if e.implicit and e.transition == "S->R"}),
        )

    def distribute(self, tensor, placement):
        if placement == "P":
            terms = split_sum(tensor, self.world)
            return self.terms(terms, list(tensor.shape))
        return self.lib.distribute(tensor, "R" if placement == "R" else f"S({placement})")

    def terms(self, terms, shape):
        return self.lib.from_local(terms[self.rank], "P(sum)", shape=shape)

    def full(self, value):
        return [self.lib.full(value) if self.lib.has_layout(value) else value]

    def unsupported(self, exc):
        return isinstance(exc, NotImplementedError)


class IntarsiaLocalBackend(IntarsiaBackend):
    """Intarsia, all ranks in one process."""

    name = "intarsia (lockstep)"
    processes = False

    def enter(self):
        self.context = self.lib.lockstep(f"[x={self.world}]")
        self.context.__enter__()

    def terms(self, terms, shape):
        return self.lib.from_locals(terms, "P(sum)", shape=shape)


BACKENDS = {
    "intarsia": IntarsiaBackend,
    "intarsia-local": IntarsiaLocalBackend,
    "dtensor": DTensorBackend,
    "dtensor-local": DTensorLocalBackend,
    "null": NullBackend,
}


class RandomOps(TorchDispatchMode):
    """Remembers whether an op tagged as drawing random numbers was called."""

    seen = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if torch.Tag.nondeterministic_seeded in func.tags and "attention" not in str(func):
            self.seen = True
        return func(*args, **(kwargs or {}))


class Mismatch(Exception):
    """A value, shape, dtype or rank disagrees with the plain result."""


def is_tensor(x):
    return isinstance(x, torch.Tensor)


def usable(t):
    return t.layout == torch.strided and not t.is_nested and not t.is_quantized


def weights_like(t):
    """Fixed non-uniform weights, so that gradients are not trivially constant."""
    n = t.numel()
    return (torch.arange(n, dtype=torch.float32).mul(0.7).cos() + 1.5).reshape(t.shape).to(t.dtype)


def differentiable(outs):
    return [
        i
        for i, o in enumerate(outs)
        if is_tensor(o) and o.requires_grad and o.dtype == torch.float32
    ]


class Sample:
    """One OpInfo sample flattened into tensor leaves and a way to call the op on others."""

    def __init__(self, op, sample):
        self.op = op
        tree = (sample.input, tuple(sample.args), dict(sample.kwargs))
        self.leaves, self.spec = pytree.tree_flatten(tree)
        self.index = [i for i, x in enumerate(self.leaves) if is_tensor(x)]
        self.tensors = [self.leaves[i].detach() for i in self.index]
        self.grads = [bool(self.leaves[i].requires_grad) for i in self.index]

    def call(self, tensors):
        """Run the op with its tensor leaves replaced; returns the flat outputs."""
        leaves = list(self.leaves)
        for i, t in zip(self.index, tensors):
            leaves[i] = t
        inp, args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return pytree.tree_leaves(self.op.op(inp, *args, **kwargs))

    def plain(self):
        """Outputs and gradients of the plain op (gradients None where there is no backward)."""
        ins = [
            t.clone().requires_grad_(g) if g else t.clone() for t, g in zip(self.tensors, self.grads)
        ]
        outs = self.call(ins)
        diff = differentiable(outs)
        grads = None
        if diff and any(self.grads):
            loss = sum((outs[i] * weights_like(outs[i])).sum() for i in diff)
            if loss.requires_grad:
                loss.backward()
                grads = [t.grad for t in ins]
        return [o.detach() if is_tensor(o) else o for o in outs], diff, grads


def compare(got, want, what):
    """Raise Mismatch unless the plain values agree."""
    if is_tensor(want) != is_tensor(got):
        raise Mismatch(f"{what}: {type(got).__name__} instead of {type(want).__name__}")
    if not is_tensor(want):
        if isinstance(want, float):
            ok = abs(got - want) <= ATOL + RTOL * abs(want) or (got != got and want != want)
        else:
            ok = got == want
        if not ok:
            raise Mismatch(f"{what}: {got!r} instead of {want!r}")
        return
    got = got.detach()
    if got.shape != want.shape:
        raise Mismatch(f"{what}: shape {tuple(got.shape)} instead of {tuple(want.shape)}")
    if got.dtype != want.dtype:
        raise Mismatch(f"{what}: dtype {got.dtype} instead of {want.dtype}")
    try:
        torch.testing.assert_close(got, want, rtol=RTOL, atol=ATOL, equal_nan=True)
    except AssertionError as e:
        diff = [l for l in str(e).splitlines() if "difference" in l or "Mismatched" in l]
        raise Mismatch(f"{what}: " + "; ".join(diff)[:160]) from None


def run_case(backend, sample, placements, want, diff, want_grads):
    """Outcome of one case: (forward status, detail), (backward status, detail) or None."""
    stage = {"at": "forward", "outs": None}

    def case():
        ins = []
        for t, p, g in zip(sample.tensors, placements, sample.grads):
            d = backend.distribute(t.clone(), p).detach()
            ins.append(d.requires_grad_(True) if g and want_grads is not None else d)
        outs = sample.call(ins)
        # Gather copies first: the comparison must not disturb the graph.
        stage["outs"] = [backend.full(o.detach()) if is_tensor(o) else [o] for o in outs]
        if want_grads is None:
            return None
        stage["at"] = "backward"
        loss = None
        for i in diff:
            w = backend.distribute(weights_like(want[i]), "R")
            term = (outs[i] * w).sum()
            loss = term if loss is None else loss + term
        loss.backward()
        return [None if t.grad is None else backend.full(t.grad) for t in ins]

    failure, grads = None, None
    try:
        grads = backend.run(case)
    except Exception as e:  # noqa: BLE001 - every failure is a result here
        kind = "unsupported" if backend.unsupported(e) else "error"
        failure = (kind, f"{type(e).__name__}: {str(e).strip()[:200]}")

    if stage["outs"] is None:
        return failure, None
    forward = ("ok", "")
    try:
        if len(stage["outs"]) != len(want):
            raise Mismatch(f"{len(stage['outs'])} outputs instead of {len(want)}")
        for i, (per_rank, w) in enumerate(zip(stage["outs"], want)):
            for r, got in enumerate(per_rank):
                compare(got, w, f"out {i} rank {r}")
    except Mismatch as e:
        forward = ("wrong", str(e))
    if stage["at"] == "forward":
        return (failure or forward), None
    if failure:
        return forward, failure
    try:
        for i, (per_rank, w) in enumerate(zip(grads, want_grads)):
            if w is None and per_rank is None:
                continue
            if w is None or per_rank is None:
                zero = per_rank is None and not w.any()
                if not zero:
                    raise Mismatch(f"grad {i}: missing or unexpected")
                continue
            for r, got in enumerate(per_rank):
                compare(got, w, f"grad {i} rank {r}")
    except Mismatch as e:
        return forward, ("wrong", str(e))
    return forward, ("ok", "")


def placement_combos(tensors, limit, partial, rng):
    """All-replicate first, then distinct placement tuples, sampled when there are too many."""
    options = []
    for t in tensors:
        opts = ["R", *range(t.ndim)]
        if partial and t.dtype == torch.float32:
            opts.append("P")
        options.append(opts)
    total = 1
    for o in options:
        total *= len(o)
    if total <= limit:
        return list(itertools.product(*options))
    combos = {("R",) * len(tensors): None}
    while len(combos) < limit:
        combos[tuple(rng.choice(o) for o in options)] = None
    return list(combos)


def op_name(op):
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


def seed_of(op):
    return zlib.crc32(op_name(op).encode())


def pick_samples(op, count, pool=48, max_numel=20000):
    """Up to `count` of the first `pool` usable samples, in a fixed shuffled order.

    A larger count gives a superset. Returns (number of the sample, sample) pairs.
    """
    for requires_grad in (True, False) if op.supports_autograd else (False,):
        try:
            torch.manual_seed(0)
            gen = op.sample_inputs("cpu", torch.float32, requires_grad=requires_grad)
            found = []
            for s in itertools.islice(gen, 4 * pool):
                smp = Sample(op, s)
                if smp.tensors and all(usable(t) for t in smp.tensors):
                    if sum(t.numel() for t in smp.tensors) <= max_numel:
                        found.append(smp)
                if len(found) >= pool:
                    break
        except Exception:  # noqa: BLE001 - some generators reject requires_grad
            continue
        if found:
            order = list(range(len(found)))
            random.Random(seed_of(op)).shuffle(order)
            return [(i, found[i]) for i in order[:count]]
    return []


def plain_result(sample):
    """(outputs, differentiable indices, gradients) of the plain op, or a reason to skip."""
    for attempt in (True, False):
        if not attempt:  # in-place on a leaf and the like: forward only
            sample.grads = [False] * len(sample.grads)
        try:
            want, diff, grads = sample.plain()
            with RandomOps() as watch:
                sample.plain()
        except Exception as e:  # noqa: BLE001
            reason = f"plain op fails: {str(e)[:60]}"
            continue
        if watch.seen:
            return None, "random result"
        if not all(usable(w) for w in want if is_tensor(w)):
            return None, "result is not a strided tensor"
        return (want, diff, grads), ""
    return None, reason


def cases_of(op, args, skipped):
    """Yield (sample number, sample, placements, plain result); reasons go to `skipped`."""
    if op.name in SKIP:
        skipped.append("result is uninitialised memory or storage")
        return
    if torch.float32 not in op.supported_dtypes("cpu"):
        skipped.append("no float32 on CPU")
        return
    samples = pick_samples(op, args.samples)
    if not samples:
        skipped.append("no sample with strided tensors")
    for si, sample in samples:
        rng = random.Random(seed_of(op) + si)
        combos = placement_combos(sample.tensors, args.combos, args.partial, rng)
        plain, reason = plain_result(sample)
        if plain is None:
            skipped.append(reason)
            continue
        for combo in combos:
            yield si, sample, combo, plain


def rank_process(conn, args, ops, rank, store):
    """Serve (op number, first case) requests; after each case wait for the parent's word."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    cls = load_backend(args.backend)
    if cls.processes:
        import torch.distributed as dist

        dist.init_process_group(
            "gloo", store=dist.FileStore(store, args.world), rank=rank, world_size=args.world
        )
    backend = cls(args.world)
    conn.send(("ready", None))
    while (request := conn.recv()) is not None:
        number, first = request
        skipped = []
        for k, (si, sample, combo, plain) in enumerate(cases_of(ops[number], args, skipped)):
            if k < first:
                continue
            info = {
                "sample": si,
                "shapes": [list(t.shape) for t in sample.tensors],
                "placements": [p if isinstance(p, str) else f"S{p}" for p in combo],
            }
            conn.send(("start", (k, info)))
            outcome = run_case(backend, sample, combo, *plain)
            conn.send(("case", (*outcome, backend.fell_back())))
            if conn.recv() == "stop":
                skipped.append("time budget of the op used up")
                break
        conn.send(("done", skipped))
    conn.close()


ORDER = ("ok", "unsupported", "error", "timeout", "diverged", "crash", "wrong")


def merge(outcomes):
    """The worst outcome over ranks, forward and backward."""
    merged = []
    for phase in (0, 1):
        seen = [o[phase] for o in outcomes if o[phase] is not None]
        merged.append(max(seen, key=lambda x: ORDER.index(x[0])) if seen else None)
    return [*merged, outcomes[0][2]]


class Unit:
    """A set of rank processes that run one op at a time in lock step."""

    def __init__(self, args, ops, workdir):
        self.args, self.ops = args, ops
        ctx = multiprocessing.get_context("fork")
        ranks = args.world if load_backend(args.backend).processes else 1
        store = tempfile.mktemp(dir=workdir)
        self.conns, self.procs = [], []
        for r in range(ranks):
            ours, theirs = ctx.Pipe()
            p = ctx.Process(target=rank_process, args=(theirs, args, ops, r, store), daemon=True)
            p.start()
            theirs.close()
            self.conns.append(ours)
            self.procs.append(p)
        self.begin(None, 0)
        self.deadline = time.perf_counter() + 120

    def begin(self, op, first):
        """Ask for an op (or, with None, only wait for the ranks to be ready)."""
        self.op, self.current, self.info = op, first, None
        self.answers = [None] * len(self.conns)
        self.deadline = time.perf_counter() + self.args.case_timeout
        if op is not None:
            for c in self.conns:
                c.send((op, first))

    def take(self, conn):
        """Handle one message; returns ('case'|'done'|'ready', payload) when all ranks answered."""
        kind, payload = conn.recv()
        if kind == "start":
            self.current, self.info = payload
            return None
        r = self.conns.index(conn)
        self.answers[r] = (kind, payload)
        if any(a is None for a in self.answers):
            return None
        kinds = {a[0] for a in self.answers}
        payloads = [a[1] for a in self.answers]
        self.answers = [None] * len(self.conns)
        self.deadline = time.perf_counter() + self.args.case_timeout
        if kinds == {"case"}:
            spent = time.perf_counter() - self.budget_from
            for c in self.conns:
                c.send("stop" if spent > self.args.op_seconds else "go")
            return "case", merge(payloads)
        return kinds.pop(), payloads[0]

    def kill(self):
        for p in self.procs:
            p.kill()
            p.join()

    def stop(self):
        for c in self.conns:
            c.send(None)
        for p in self.procs:
            p.join(10)


def run_all(args, ops):
    """Run every op; a dead or stuck unit costs only the case it was in."""
    todo = collections.deque(range(len(ops)))
    records = [
        {
            "op": op_name(o),
            "forward": {},
            "backward": {},
            "replicated": {},
            "failures": [],
            "skipped": [],
            "without_rule": [],
            "gathered": [],
            "seconds": 0.0,
        }
        for o in ops
    ]
    seen = collections.Counter()

    def note(number, info, outcome, fell_back=((), ())):
        rec = records[number]
        for key, names in zip(("without_rule", "gathered"), fell_back):
            rec[key] = sorted({*rec[key], *names})
        for phase, res in zip(("forward", "backward"), outcome):
            if res is None:
                continue
            status, detail = res
            rec[phase][status] = rec[phase].get(status, 0) + 1
            if set(info["placements"]) == {"R"}:
                worst = max(rec["replicated"].get(phase, "ok"), status, key=ORDER.index)
                rec["replicated"][phase] = worst
            key = (number, phase, status, detail[:60])
            seen[key] += 1
            if status != "ok" and seen[key] == 1 and len(rec["failures"]) < 20:
                rec["failures"].append({"phase": phase, "status": status, **info, "detail": detail})

    def next_op(unit):
        if todo:
            unit.started = unit.budget_from = time.perf_counter()
            unit.begin(todo.popleft(), 0)
        else:
            unit.stop()
            units.remove(unit)

    with tempfile.TemporaryDirectory() as workdir:
        units = [Unit(args, ops, workdir) for _ in range(args.units)]
        while units:
            owner = {c: u for u in units for c in u.conns}
            broken = {}
            for conn in multiprocessing.connection.wait(list(owner), timeout=0.5):
                unit = owner[conn]
                try:
                    event = unit.take(conn)
                except (EOFError, ConnectionError):
                    broken[id(unit)] = (unit, "crash")
                    continue
                if event is None:
                    continue
                kind, payload = event
                if kind == "case":
                    note(unit.op, unit.info, payload[:2], payload[2])
                elif kind == "done":
                    records[unit.op]["seconds"] += time.perf_counter() - unit.started
                    records[unit.op]["skipped"] = payload
                    next_op(unit)
                else:
                    next_op(unit)
            for unit in units:
                if time.perf_counter() > unit.deadline:
                    broken[id(unit)] = (unit, "diverged" if any(unit.answers) else "timeout")
            for unit, why in broken.values():
                if unit not in units:
                    continue
                unit.kill()
                units.remove(unit)
                if unit.op is None:
                    raise RuntimeError(f"worker failed before its first op: {why}")
                fresh = Unit(args, ops, workdir)
                units.append(fresh)
                said = [a[1] for a in unit.answers if a and a[0] == "case"]
                if unit.info is not None:
                    last = [res for res in (said[0][:2] if said else ()) if res is not None]
                    detail = f"one rank: {last[-1][0]} {last[-1][1][:140]}" if last else ""
                    note(unit.op, unit.info, ((why, detail), None))
                for c in fresh.conns:
                    if c.recv()[0] != "ready":
                        raise RuntimeError("worker did not start")
                fresh.started, fresh.budget_from = unit.started, time.perf_counter()
                fresh.begin(unit.op, unit.current + 1)
    return records


def classify(counts):
    if not sum(counts.values()):
        return "skipped"
    if counts.get("wrong"):
        return "wrong"
    if set(counts) == {"ok"}:
        return "pass"
    return "partial" if counts.get("ok") else "unsupported"


def load_backend(spec):
    if spec in BACKENDS:
        return BACKENDS[spec]
    module, _, cls = spec.partition(":")
    sys.path.insert(0, os.getcwd())
    return getattr(importlib.import_module(module), cls)


def top_reasons(records, phase, status, n=15):
    """The most common failure texts, by number of ops."""
    c = collections.Counter()
    for r in records:
        for text in {
            f["detail"].split("\n")[0][:90]
            for f in r["failures"]
            if f["phase"] == phase and f["status"] == status
        }:
            c[text] += 1
    return dict(c.most_common(n))


def main():
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("--backend", default="dtensor", help="see above")
    ap.add_argument("--world", type=int, default=2, help="ranks")
    ap.add_argument("--samples", type=int, default=3, help="samples per op")
    ap.add_argument("--combos", type=int, default=5, help="placement tuples per sample")
    ap.add_argument("--partial", action="store_true", help="also use Partial(sum) inputs")
    ap.add_argument("--ops", default="", help="only op names containing one of these (comma list)")
    ap.add_argument("--units", type=int, default=0, help="process sets (default fills the cores)")
    ap.add_argument("--case-timeout", type=float, default=6, help="seconds before a case is given up")
    ap.add_argument("--op-seconds", type=float, default=4, help="no new case of an op after this")
    ap.add_argument("--out", default="", help="file for the per-op records (JSON)")
    args = ap.parse_args()

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    from torch.testing._internal.common_methods_invocations import op_db

    cls = load_backend(args.backend)
    per_unit = args.world if cls.processes else 1
    args.units = args.units or max(1, (os.cpu_count() or 1) // per_unit)
    wanted = [w for w in args.ops.split(",") if w]
    ops = [o for o in op_db if not wanted or any(w in o.name for w in wanted)]
    noise = {"before": spin_probe()}
    start = time.perf_counter()
    records = run_all(args, ops)
    for r in records:
        total = collections.Counter(r["forward"]) + collections.Counter(r["backward"])
        r["class"], r["class_forward"] = classify(total), classify(r["forward"])
        if r["class"] == "skipped":
            r["reason"] = (r["skipped"] or ["?"])[0]

    count = lambda key: dict(collections.Counter(r[key] for r in records).most_common())
    cases = {
        phase: dict(sum((collections.Counter(r[phase]) for r in records), collections.Counter()))
        for phase in ("forward", "backward")
    }
    result = {
        "script": "op_coverage",
        "backend": cls.name,
        "world": args.world,
        "samples_per_op": args.samples,
        "combos_per_sample": args.combos,
        "partial_inputs": args.partial,
        "tolerance": {"rtol": RTOL, "atol": ATOL},
        "torch": torch.__version__,
        "noise": noise,
        "seconds": time.perf_counter() - start,
        "opinfos": len(records),
        "ops_forward_and_backward": count("class"),
        "ops_forward_only": count("class_forward"),
        "cases": cases,
        "passes_that_never": {
            "ran_an_op_without_a_rule_on_gathered_operands": sum(
                r["class"] == "pass" and not r["without_rule"] for r in records
            ),
            "gathered_an_operand_at_all": sum(
                r["class"] == "pass" and not r["without_rule"] and not r["gathered"]
                for r in records
            ),
        },
        "top_ops_without_a_rule": dict(
            collections.Counter(n for r in records for n in r["without_rule"]).most_common(40)
        ),
        "ops_failing_even_fully_replicated": {
            "forward": sum(r["replicated"].get("forward", "ok") != "ok" for r in records),
            "forward_or_backward": sum(
                any(v != "ok" for v in r["replicated"].values()) for r in records
            ),
        },
        **{
            f"ops_with_{what}": sorted(r["op"] for r in records if r["forward"].get(what))
            for what in ("diverged", "crash", "timeout")
        },
        "ops_cut_by_time_budget": sorted(
            r["op"] for r in records if "time budget of the op used up" in r["skipped"]
        ),
        "wrong_ops": sorted(r["op"] for r in records if r["class"] == "wrong"),
        "wrong_ops_forward": sorted(r["op"] for r in records if r["class_forward"] == "wrong"),
        "top_forward_unsupported": top_reasons(records, "forward", "unsupported"),
        "top_forward_errors": top_reasons(records, "forward", "error"),
        "top_backward_unsupported": top_reasons(records, "backward", "unsupported"),
        "top_backward_errors": top_reasons(records, "backward", "error"),
        "slowest_ops_seconds": {
            r["op"]: r["seconds"] for r in sorted(records, key=lambda r: -r["seconds"])[:8]
        },
        "skip_reasons": dict(
            collections.Counter(r["reason"] for r in records if r["class"] == "skipped")
        ),
    }
    noise["after"] = spin_probe()
    if args.out:
        write_json(args.out, {"summary": result, "ops": records})
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
