"""What users do wrong, and must be told within their first step, with the line, on 2 and 4 processes and by default settings.

    mistakes.py [--ranks N] [--backend gloo|shm] [--only NAME,...] [--list]

Each mistake is a program of a few lines, as one writes it who is used to DDP, FSDP2 or DTensor. It holds if every rank that
communicates ends with an error that says what is wrong, which names the line; no rank may wait for longer than the timeout, which
here is 20 s. Prints one line for each mistake, and a count as the last.
"""

import argparse
import json
import os
import pathlib
import re
import sys
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "launch"))
import launch  # noqa: E402

MISTAKES = {}
DISAGREE = r"ranks disagree about call #\d+ of group"
GONE = r"rank \d (\(process \d+\) has died|has closed)"


def mistake(says, alone=False):
    """`says`: what each rank must be told. `alone`: some ranks end before, without a call that could tell them."""

    def add(body):
        MISTAKES[body.__name__] = (body, says, alone)
        return body

    return add


class Setting:
    """What the programs share."""

    def __init__(self):
        import torch

        import intarsia as it

        torch.set_num_threads(1)
        self.torch, self.nn, self.it = torch, torch.nn, it
        self.size = it.world(timeout=20).size()
        self.mesh = it.init({"dp": self.size})
        self.rank = it.world().rank()
        self.first = self.rank == 0
        torch.manual_seed(0)

    def model(self):
        nn = self.nn
        return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))

    def sharded(self):
        model = self.model()
        self.it.fully_shard(model, mesh=self.mesh)
        return model

    def rows(self, count=2):
        return self.it.from_local(self.torch.ones(count, 8), "S(0)", mesh=self.mesh, shape=(count * self.size, 8))

    def step(self, model, rows=None):
        loss = model(self.rows() if rows is None else rows).square().mean()
        loss.backward()
        return loss


@mistake("the tensor given to distribute for '0.weight' of parallelize differs between rank")
def model_without_a_seed(s):
    s.torch.manual_seed(s.rank)
    model = s.it.parallelize(s.model(), s.mesh, {})
    return model(s.rows()).sum().item()


@mistake("the tensor given to distribute for '0.weight' of fully_shard differs between rank")
def sharded_model_without_a_seed(s):
    s.torch.manual_seed(s.rank)
    model = s.nn.Sequential(s.nn.Linear(8, 8, bias=False))  # of several parameters, each rank is told of the first that it saw differ
    s.it.fully_shard(model, mesh=s.mesh)
    s.step(model)


@mistake("the plain tensor that is operand 1 of aten::\\S+.* differs between rank .*from_local")
def own_batch_into_sharded_model(s):
    model = s.sharded()
    for _ in range(2):
        s.step(model, s.torch.full((2, 8), float(s.rank)))


@mistake("the plain tensor that is operand \\d of aten::\\S+.* differs between rank .*from_local")
def own_batch_into_parallel_model(s):
    model = s.it.parallelize(s.model(), s.mesh, {"0.weight": "S(0)"})
    return s.step(model, s.torch.full((2, 8), float(s.rank))).item()


@mistake("the plain tensor that is operand \\d of aten::\\S+.* differs between rank")
def own_targets(s):
    model = s.sharded()
    loss = (model(s.rows()) - s.torch.full((2 * s.size, 4), float(s.rank))).square().mean()
    return loss.item()


@mistake("the plain tensor that is operand \\d of aten::\\S+.* differs between rank")
def last_batch_is_shorter(s):
    model = s.it.parallelize(s.model(), s.mesh, {"0.weight": "S(0)"})
    return s.it.full(model(s.torch.ones(2 if s.first else 3, 8)))


@mistake("the tensor given to distribute differs between rank .*from_local")
def distribute_of_own_rows(s):
    return s.it.full(s.it.distribute(s.torch.full((8,), float(s.rank)), "S(0)", mesh=s.mesh))


@mistake("what from_local makes of a piece differs between rank .*shape=")
def pieces_of_different_lengths(s):
    return s.it.from_local(s.torch.ones(3 if s.first else 2, 8), "S(0)", mesh=s.mesh).mean().item()


@mistake(DISAGREE + ".*made by aten::sum.*made by aten::mean|" + DISAGREE + ".*made by aten::mean.*made by aten::sum")
def item_on_one_rank(s):
    x = s.rows()
    if s.first:
        print(x.sum().item())
    print(x.mean().item())


@mistake(DISAGREE)
def norm_on_one_rank(s):
    x = s.rows()
    if s.first:
        print(x.norm().item())
    return s.it.full(x * 2)


@mistake(GONE, alone=True)
def saving_on_one_rank(s):
    model = s.sharded()
    if s.first:
        return {name: s.it.full(value) for name, value in model.state_dict().items()}


@mistake(f"{GONE}|{DISAGREE}", alone=True)
def evaluation_on_one_rank(s):
    model = s.sharded()
    s.step(model)
    if s.first:
        with s.torch.no_grad():
            model(s.rows()).sum().item()
    else:
        s.it.close()


@mistake(f"{GONE}|{DISAGREE}", alone=True)
def loader_with_fewer_batches(s):
    model = s.sharded()
    for _ in range(3 if s.first else 2):
        s.step(model).item()


@mistake(GONE, alone=True)
def error_in_the_loader_of_one_rank(s):
    model = s.sharded()
    if s.rank == 1:
        raise KeyError("this sample is missing")
    s.step(model).item()


@mistake(f"index out of range|{GONE}", alone=True)
def index_out_of_range_on_one_rank(s):
    table = s.it.distribute(s.torch.ones(10, 4), "R", mesh=s.mesh)
    index = s.torch.full((2,), 99 if s.rank == 1 else 0)
    rows = s.it.from_local(index, "S(0)", mesh=s.mesh, shape=(2 * s.size,))
    return s.nn.functional.embedding(rows, table).sum().item()


@mistake(f"{DISAGREE}|differs between")
def other_plan_on_one_rank(s):
    model = s.it.parallelize(s.model(), s.mesh, {"0.weight": "S(0)" if s.first else "S(1)"})
    return s.it.full(model(s.rows()))


@mistake(DISAGREE)
def other_dtype_on_one_rank(s):
    x = s.rows()
    return s.it.full(x.double() if s.first else x)


@mistake(DISAGREE)
def clipping_on_one_rank(s):
    model = s.sharded()
    s.step(model)
    if s.first:
        s.it.clip_grad_norm_(model.parameters(), 1.0)
    for _ in range(2):
        s.rows().sum().item()


@mistake(DISAGREE)
def comparing_replicas_on_one_rank(s):
    weight = s.it.ones((4,), "R", mesh=s.mesh)
    if s.first:
        s.it.assert_replicas(weight, name="weight")
    return s.rows().sum().item()


@mistake(DISAGREE)
def order_of_a_set(s):
    parts = {"a": s.rows(), "b": s.rows(4)}
    for name in sorted(parts, reverse=s.first):
        s.it.full(parts[name])


@mistake("generator that a random op draws from differs|default generator has seed", alone=True)
def dropout_with_other_seeds(s):
    s.torch.manual_seed(s.rank)
    return s.nn.functional.dropout(s.it.ones((4, 4), "R", mesh=s.mesh), 0.5).sum().item()


@mistake("the state of the generator that a random op draws from differs")
def noise_that_one_rank_draws(s):
    x = s.nn.functional.dropout(s.it.ones((4, 4), "R", mesh=s.mesh), 0.5)
    if s.first:
        s.torch.randn(3)  # for a picture of the data
    return s.nn.functional.dropout(x, 0.5).sum().item() + s.rows().sum().item()


def say(text):
    """One line, in one piece: all processes write to one pipe."""
    sys.stdout.flush()
    os.write(1, f"\n{text}\n".encode())


def work(name):
    """A process: prints what it was told and the line of this file, or that it ended without a word."""
    setting = Setting()
    try:
        MISTAKES[name][0](setting)
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == __file__]
        say("TOLD " + json.dumps([str(error), lines]))
    else:
        say("NOTHING")


def judge(name, ranks, backend):
    body, says, alone = MISTAKES[name]
    env = {"OMP_NUM_THREADS": "1", "INTARSIA_BACKEND": backend}
    done = launch.run("plain", ranks, [sys.executable, __file__, "--work", name], env=env, timeout=60)
    told = [json.loads(line.removeprefix("TOLD ")) for line in done.stdout.splitlines() if line.startswith("TOLD ")]
    silent = sum(line == "NOTHING" for line in done.stdout.splitlines())
    begin = body.__code__.co_firstlineno
    fits = [re.search(says, text, re.S) and any(begin < line < begin + 20 for line in lines) for text, lines in told]
    if not any(fits) or (not alone and (silent or not all(fits) or len(told) != ranks)):
        return f"{silent} ranks were told nothing, the others: {[text[:300] for text, _ in told]} {done.stderr[-300:]}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--backend", default="gloo", choices=("gloo", "shm"))
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--work", help="as one of the processes")
    options = parser.parse_args()
    if options.work:
        return work(options.work)
    chosen = [name for name in options.only.split(",") if name] or list(MISTAKES)
    if options.list:
        return print(*chosen, sep="\n")
    wrong = 0
    for name in chosen:
        for ranks in options.ranks:
            found = judge(name, ranks, options.backend)
            wrong += found is not None
            print(f"{name} on {ranks} ranks: {found or 'named'}", flush=True)
    total = len(chosen) * len(options.ranks)
    print(f"{total - wrong} of {total} mistakes were named ({len(chosen)} kinds, {options.backend})")
    return 1 if wrong else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
