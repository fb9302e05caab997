"""The fault campaign: of four processes one misbehaves, and the others must say so.

    faults.py [--backend gloo|shm|torch] [--step N ...] [--only NAME,...] [--apart] [--list]

`--backend torch`: programs of PyTorch alone (torch_program.py: DDP, FSDP2, DTensor, calls by hand), as they stand, under
`python -m intarsia run`. Each fault happens before the first step or after N of them. It holds if every healthy rank ends with a sentence that names
the right rank and call, within 5 seconds of the fault, or of the timeout where only waiting can tell; and if no rank prints
a number of a call about which ranks disagreed. Prints one line for each fault, and a count as the last.

`--apart`: rank 2 counts as one of another host. Then ranks go on with their steps, and may print numbers until they are told. Left out
are values, which are compared on one host only, and other sizes, at which Gloo ends healthy processes. That a process was killed is known
on its own host, where here is nobody else: then it is the one who did not come.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
import launch  # noqa: E402

RANKS, BAD, TIMEOUT, GRACE = 4, 2, 6.0, 5.0
FAULTS, STARTS = {}, {}
OF_ONE_HOST = {
    "smaller", "larger", "shorter_message", "gathered_smaller", "gathered_larger", "extra_call", "left_out", "swapped", "item_on_one_rank",
    "plain_batch_of_its_own", "plain_batch_of_other_length", "unseeded_model", "unseeded_sharded_model", "distributed_rows_of_its_own",
    "uneven_pieces", "killed_while_it_waits",
}  # fmt: skip
TORCH_PROGRAM = pathlib.Path(__file__).with_name("torch_program.py")
DISAGREE = r"ranks disagree about call #\d+ of group .*ranks 0, 1, 3 make .*; rank 2 makes "
GONE = r"rank 2 (\(process \d+\) has died|has closed: [^;]*)"
STALLED = r"rank 2 never came to call #\d+ of group"
VALUES = r"differs between (rank \d and rank 2|rank 2 and rank \d) of group .* \(faults.py:\d+ in \w+\)"


@dataclasses.dataclass
class Fault:
    """What rank 2, and the others, do; and what the healthy ranks must say."""

    act: object
    says: str
    waits: bool = False  # only the timeout can tell


def fault(says, waits=False):
    def add(act):
        FAULTS[act.__name__.removeprefix("do_")] = Fault(act, says, waits)
        return act

    return add


# In programs of PyTorch alone: those that need waiting, and those that are told of a rank that ended; in all others ranks
# disagree about a call.
TORCH_WAITS = {"swapped_groups", "stopped", "endless_loop", "blocked_read"}
TORCH_GONE = {"exception", "killed", "killed_in_backward", "terminated", "exits", "killed_while_it_waits"}


def of_torch(name):
    says = STALLED if name in TORCH_WAITS else GONE if name in TORCH_GONE else DISAGREE
    return Fault(None, says, name in TORCH_WAITS)


# --- what processes do -------------------------------------------------------------------------------------------


class Rank:
    """One process: what it calls on the library for a fault."""

    def __init__(self):
        import torch

        import intarsia as it

        torch.set_num_threads(1)
        self.torch, self.it = torch, it
        self.rank = int(os.environ["RANK"])
        self.bad = self.rank == BAD
        self.mesh = it.init({"x": RANKS}, timeout=TIMEOUT)

    def full(self, tensor, layout="P(sum)"):
        shape = [*tensor.shape]
        if layout == "S(0)":
            shape[0] *= RANKS
        return self.it.full(self.it.from_local(tensor, layout, mesh=self.mesh, shape=shape))

    def ones(self, *sizes, **options):
        return self.torch.ones(*sizes, **options)

    def step(self):
        return self.full(self.ones(8, 4)).sum().item()


@fault(DISAGREE + r".*Int")
def do_dtype(r):
    return r.full(r.ones(8, 4, dtype=r.torch.int32 if r.bad else r.torch.float32))


@fault(DISAGREE + r".*\[4, 8\]")
def do_transposed(r):
    return r.full(r.ones(4, 8) if r.bad else r.ones(8, 4))


@fault(DISAGREE + r".*P\(max\)")
def do_reduction(r):
    return r.full(r.ones(8, 4), "P(max)" if r.bad else "P(sum)")


@fault(DISAGREE + r".*\[8, 3\]")
def do_smaller(r):
    return r.full(r.ones(8, 3 if r.bad else 4))


@fault(DISAGREE + r".*\[8, 50000\]")
def do_larger(r):
    return r.full(r.ones(8, 50000 if r.bad else 4))


@fault(DISAGREE + r".*\[200000\]")
def do_shorter_message(r):
    return r.full(r.ones(200000 if r.bad else 200001))


@fault(DISAGREE)
def do_gathered_smaller(r):
    return r.full(r.ones(2, 3 if r.bad else 4), "S(0)")


@fault(DISAGREE)
def do_gathered_larger(r):
    return r.full(r.ones(2, 5 if r.bad else 4), "S(0)")


@fault(DISAGREE)
def do_extra_call(r):
    if r.bad:
        r.full(r.ones(2, 2))
    return r.full(r.ones(3, 3))


@fault(DISAGREE)
def do_left_out(r):
    if not r.bad:
        r.full(r.ones(2, 2))
    return r.full(r.ones(3, 3))


@fault(DISAGREE)
def do_swapped(r):
    first, second = (3, 2) if r.bad else (2, 3)
    r.full(r.ones(first, 2))
    return r.full(r.ones(second, 2))


@fault(DISAGREE)
def do_item_on_one_rank(r):
    loss = r.it.from_local(r.ones(4), "P(sum)", mesh=r.mesh).sum()
    if r.bad:
        loss.item()
    return r.full(r.ones(3, 3))


@fault(STALLED + "|wait for rank 2 in call #", waits=True)
def do_swapped_groups(r):
    square = r.it.Mesh({"a": 2, "b": 2})
    tensors = [r.it.from_local(r.ones(8, 8), "P(sum)", mesh=r.mesh), r.it.from_local(r.ones(8, 8), "R,P(sum)", mesh=square)]
    return [r.it.full(t) for t in (reversed(tensors) if r.bad else tensors)]


@fault(DISAGREE)
def do_skipped_layer(r):
    module = model(r)
    r.it.parallelize(module, r.mesh, {"*": "S(0)"})
    x = r.it.distribute(r.ones(8, 8), "R", mesh=r.mesh)
    for name, layer in module.named_children():
        if not (r.bad and name == "2"):
            x = layer(x)
    return r.it.full(x)


@fault(GONE + r"; its last error was: RuntimeError: an error of rank 2 alone at faults.py:\d+ in do_exception")
def do_exception(r):
    if r.bad:
        raise RuntimeError("an error of rank 2 alone")
    return r.full(r.ones(3, 3))


@fault(GONE + r".*; its last error was: IndexError: .* at faults.py:\d+ in do_bad_index")
def do_bad_index(r):
    table = r.it.distribute(r.ones(10, 3), "R", mesh=r.mesh)
    rows = r.torch.full((2,), 99 if r.bad else 0)
    return r.it.full(r.torch.nn.functional.embedding(r.it.from_local(rows, "S(0)", mesh=r.mesh), table))


@fault(GONE)
def do_killed(r):
    if r.bad:
        os.kill(os.getpid(), signal.SIGKILL)
    return r.full(r.ones(3, 3))


@fault(GONE)
def do_terminated(r):
    if r.bad:
        os.kill(os.getpid(), signal.SIGTERM)
    return r.full(r.ones(3, 3))


@fault(GONE)
def do_crashed(r):
    if r.bad:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGSEGV)
    return r.full(r.ones(3, 3))


@fault(GONE)
def do_exits(r):
    if r.bad:
        sys.exit(0)
    return r.full(r.ones(3, 3))


@fault(GONE)
def do_exits_at_once(r):
    if r.bad:
        os._exit(0)
    return r.full(r.ones(3, 3))


@fault(GONE)
def do_closes(r):
    if r.bad:
        r.it.close()
        time.sleep(3)
        return None
    return r.full(r.ones(3, 3))


@fault(GONE)
def do_killed_while_it_waits(r):
    if r.bad:
        threading.Timer(0.5, os._exit, [7]).start()
    if r.rank == 0:
        time.sleep(60)
    return r.full(r.ones(3, 3))


@fault(STALLED, waits=True)
def do_stopped(r):
    if r.bad:
        os.kill(os.getpid(), signal.SIGSTOP)
    return r.full(r.ones(3, 3))


@fault(STALLED + r".* at faults.py:\d+ in do_endless_loop", waits=True)
def do_endless_loop(r):
    end = time.time() + 30
    while r.bad and time.time() < end:
        pass
    return r.full(r.ones(3, 3))


@fault(STALLED + r".* at faults.py:\d+ in do_blocked_read", waits=True)
def do_blocked_read(r):
    if r.bad:
        inside, _outside = os.pipe()
        os.read(inside, 1)
    return r.full(r.ones(3, 3))


def model(r):
    r.torch.manual_seed(1)
    nn = r.torch.nn
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


def trained(r, module, steps):
    for _ in range(steps):
        module(r.ones(3, 8)).sum().backward()


@fault(rf"{DISAGREE}|{GONE}|{STALLED}", waits=True)
def do_replica_trains_once_less(r):
    module = model(r)
    replica = r.it.replicate(module, mesh=r.mesh)
    trained(r, module, 2 - r.bad)
    _ = replica
    return r.full(r.ones(3, 3))


@fault(rf"{DISAGREE}|{GONE}|{STALLED}", waits=True)
def do_sharded_trains_once_less(r):
    module = model(r)
    r.it.fully_shard(module, mesh=r.mesh, shard="x")
    trained(r, module, 2 - r.bad)
    return r.full(r.ones(3, 3))


# --- values that must be equal ------------------------------------------------------------------------------------


@fault("the plain tensor that is operand 1 of aten::addmm.*" + VALUES)
def do_plain_batch_of_its_own(r):
    module = model(r)
    r.it.fully_shard(module, mesh=r.mesh, shard="x")
    loss = module(r.ones(3, 8) * (2 if r.bad else 1)).sum()
    loss.backward()
    return r.it.full(module[0].weight.grad)


@fault("the plain tensor that is operand.*" + VALUES)
def do_plain_batch_of_other_length(r):
    module = model(r)
    r.it.parallelize(module, r.mesh, {"0.weight": "S(0)"})
    return r.it.full(module(r.ones(2 if r.bad else 3, 8)))


@fault("the tensor given to distribute for '0.weight' of parallelize.*" + VALUES)
def do_unseeded_model(r):
    r.torch.manual_seed(7 if r.bad else 1)
    module = r.torch.nn.Sequential(r.torch.nn.Linear(8, 8))
    r.it.parallelize(module, r.mesh, {"0.weight": "S(0)"})
    return r.it.full(module[0].weight)


@fault("the tensor given to distribute for '0.weight' of fully_shard.*" + VALUES)
def do_unseeded_sharded_model(r):
    r.torch.manual_seed(7 if r.bad else 1)
    module = r.torch.nn.Sequential(r.torch.nn.Linear(8, 8, bias=False))  # of several, each rank is told of the first that it saw differ
    r.it.fully_shard(module, mesh=r.mesh, shard="x")
    return r.it.full(module(r.ones(3, 8)))


@fault("the tensor given to distribute " + VALUES)
def do_distributed_rows_of_its_own(r):
    return r.it.full(r.it.distribute(r.ones(8) * (2 if r.bad else 1), "S(0)", mesh=r.mesh))


@fault("what from_local makes of a piece.*" + VALUES)
def do_uneven_pieces(r):
    return r.it.from_local(r.ones(2 if r.bad else 3, 1), "S(0)", mesh=r.mesh).mean().item()


@fault(DISAGREE + r".*made by aten::mean")
def do_item_that_looks_alike(r):
    x = r.it.distribute(r.ones(4, 4), "S(0)", mesh=r.mesh)
    value = (x.mean() if r.bad else x.sum()).item()
    return value


def work(name, steps):
    """A process of the campaign: prints what it was told, or a number that it must not have."""
    if FAULTS.get(name) is None:  # of the start
        try:
            rank = Rank()
            print("NUMBER", rank.step(), flush=True)
        except Exception as error:
            print("TOLD", json.dumps([time.time(), str(error)]), flush=True)
        return
    rank = Rank()
    try:
        for _ in range(steps + 1):  # the first one connects the group
            assert rank.step() == 32 * RANKS  # who is late is told here what became of the others
        print("BEGINS", time.time(), flush=True)
        result = FAULTS[name].act(rank)
        print("NUMBER", result, flush=True)
        end = time.time() + GRACE + TIMEOUT
        while os.environ.get("INTARSIA_GUARD_HOST") and time.time() < end:
            time.sleep(0.01)
            rank.step()
    except Exception as error:
        print("TOLD", json.dumps([time.time(), str(error)]), flush=True)
        if rank.bad:
            raise


# --- how the others see it ---------------------------------------------------------------------------------------


def started(says, waits=False):
    def add(change):
        STARTS[change.__name__] = Fault(change, says, waits)
        return change

    return add


@started(r"waited 6000 ms for rank 2 of 4, which did not come", waits=True)
def never_comes(environments):
    environments[BAD] = None


@started(r"two processes were started as rank 1: process \d+ on host .*, and process \d+")
def comes_twice(environments):
    environments[BAD]["RANK"] = "1"


@started(r"rank \d \(process \d+ on host \S+\) was started in a world of \d, and rank \d .* in one of \d")
def wrong_size(environments):
    environments[BAD]["WORLD_SIZE"] = "5"


@started(r"was started in a world of \d, and rank \d .* in one of \d")
def smaller_size(environments):
    environments[BAD]["WORLD_SIZE"] = "3"


@started(r"uses the backend (gloo|shm), and rank \d .* uses (gloo|shm)")
def mixed_backends(environments):
    other = {"gloo": "shm", "shm": "gloo"}
    environments[BAD]["INTARSIA_BACKEND"] = other[environments[BAD]["INTARSIA_BACKEND"]]


@started(r"could not (listen there|reach the store)", waits=True)
def silent_server(environments):
    """Another program listens at the port, and never answers."""
    server = socket.create_server((launch.LOOPBACK, int(environments[0]["MASTER_PORT"])), backlog=16)
    environments.append(server)  # kept open until the end


def command_for(name, backend, steps):
    if backend == "torch":
        return [sys.executable, "-m", "intarsia", "run", "--", sys.executable, TORCH_PROGRAM, name, str(steps)]
    return [sys.executable, __file__, "--work", name, "--step", str(steps)]


def run(name, backend, steps, apart=False):
    """The ranks that must be told, and the lines that each rank printed."""
    port = launch.free_ports(1)[0]
    base = {key: value for key, value in os.environ.items() if not key.startswith(launch.LAUNCHER_PREFIXES)}
    environments = []
    for rank in range(RANKS):
        own = dict(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=RANKS, MASTER_ADDR=launch.LOOPBACK, MASTER_PORT=port)
        own.update(OMP_NUM_THREADS=1, INTARSIA_BACKEND=backend.replace("torch", "gloo"))
        own |= {"INTARSIA_GUARD_HOST": "b" if rank == BAD else "a"} if apart else {}
        environments.append(base | {key: str(value) for key, value in own.items()})
    if name in STARTS:
        STARTS[name].act(environments)
    processes, lines, readers = {}, {rank: [] for rank in range(RANKS)}, []
    for rank, environment in enumerate(environments[:RANKS]):
        if environment is None:
            continue
        process = subprocess.Popen(
            command_for(name, backend, steps), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        processes[rank] = process

        def read(rank=rank, process=process):
            lines[rank] += [line.rstrip("\n") for line in process.stdout]

        readers.append(threading.Thread(target=read))
        readers[-1].start()
    end = time.time() + 60
    healthy = [rank for rank in processes if name in STARTS or rank != BAD]
    if name == "killed_while_it_waits":
        healthy.remove(0)  # sleeps
    while time.time() < end and any(processes[rank].poll() is None for rank in healthy):
        time.sleep(0.02)
    for process in processes.values():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with what it started, which may be stopped
        process.wait()
    for reader in readers:
        reader.join()
    return healthy, lines


def judge(known, healthy, lines, apart=False):
    """What is wrong with how the ranks ended; nothing where the fault was named."""
    if not apart and known.says.startswith(DISAGREE) and any(line.startswith("NUMBER") for line in lines[BAD]):
        return f"rank {BAD} prints a number: {lines[BAD]}"
    for rank in healthy:
        text = "\n".join(lines[rank])
        told = [json.loads(line.removeprefix("TOLD ")) for line in lines[rank] if line.startswith("TOLD ")]
        if not apart and any(line.startswith("NUMBER") for line in lines[rank]):
            return f"rank {rank} prints a number: {text[-600:]}"
        if not told:
            return f"rank {rank} was told nothing: {text[-600:]}"
        moment, sentence = told[0]
        if not re.search(known.says, sentence, re.S):
            return f"rank {rank} was told: {sentence[:900]}"
        begins = [float(line.split()[1]) for each in lines.values() for line in each if line.startswith("BEGINS")]
        if begins and moment - max(begins) > GRACE + TIMEOUT * known.waits:
            return f"rank {rank} was told after {moment - max(begins):.1f} s"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="gloo", choices=("gloo", "shm", "torch"))
    parser.add_argument("--step", type=int, nargs="+", default=[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--work", help="as one of the processes")
    options = parser.parse_args()
    if options.work:
        return work(options.work, options.step[0])
    known = FAULTS | STARTS
    if options.backend == "torch":
        names = re.findall(r"^@fault\ndef do_(\w+)", TORCH_PROGRAM.read_text(), re.M)
        known = {name: of_torch(name) for name in names}
    if options.apart:
        known = {name: each for name, each in FAULTS.items() if name not in OF_ONE_HOST}
        for each in known.values():
            each.says = f"{each.says}|{STALLED}" if each.says == GONE else each.says
    chosen = [name for name in options.only.split(",") if name] or list(known)
    if options.list:
        return print(*chosen, sep="\n")
    wrong = runs = 0
    for step in options.step:
        for name in chosen:
            if options.backend != "torch" and name in STARTS and step != options.step[0]:
                continue
            begin = time.time()
            found = judge(known[name], *run(name, options.backend, step, options.apart), options.apart)
            runs += 1
            wrong += found is not None
            print(f"{'apart ' * options.apart}{options.backend} step {step} {name}: {found or 'named'} ({time.time() - begin:.1f} s)", flush=True)
    print(f"{runs - wrong} of {runs} faults were named")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
