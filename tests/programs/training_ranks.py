"""Runs of random training beside plain training, in child processes that may crash or hang without harm.

A crew is one process in lockstep, or as many as there are ranks. Its processes are forked from this one, which has
made no world: that takes milliseconds, where importing torch takes seconds. They tell by pipes what came of each run.

Outcomes: "ok"; "wrong", with what differs; "refused", with a message, the same on all ranks; "alone", where some ranks
raised and others did not, or something else; "crash"; "hang"; "plain", where plain training itself raises.
"""

import dataclasses
import faulthandler
import functools
import json
import math
import os
import pathlib
import re
import select
import signal
import sys
import tempfile
import threading
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
import intarsia as it  # noqa: E402
import launch  # noqa: E402
import torch  # noqa: E402
from training_data import LOW, parse  # noqa: E402
from training_loop import Different, Distributed, Parts, Replica, Side, train  # noqa: E402

# In parts of the largest element, in float64. A layout changes the order in which sums are added. To first order a sum
# of n terms in another order differs by up to n * 1.1e-16 of their sizes: here n is at most about 100 (rows times
# length times width), some 40 sums follow each other forward and backward, 10 times in a run at most: 4e-12. Optimizers
# divide by at least 1e-3, and a gradient that is zero but for rounding takes a step of lr / eps = 50 times the rounding.
TOLERANCE = 1e-9
# Beside the other tensors of its kind, one may be nearly zero by cancellation, and then is as far off as their rounding.
CANCELLED = 1e-3
# With lower dtypes the truth is plain training in float64, and E is how far plain training in these dtypes is from it: the
# largest of this run and of two with other seeds, as one sample of a rounding error says little. A distributed run may be
# (3 + log2 ranks) * E from the truth, as promises/training/1 has it: sums over ranks are that many levels deeper.
SEEDS = (0, 1, 2)
STOPS = ("refused", "plain")  # after these, ranks may be out of step
RUN_SECONDS = 120
WORLD_SECONDS = 45


@dataclasses.dataclass
class Outcome:
    kind: str
    text: str = ""

    def good(self):
        return self.kind == "ok"


# --- one run, here -------------------------------------------------------------------------


def largest(tensors):
    return max((t.double().abs().max().item() for t in tensors if t is not None and t.numel()), default=0.0)


def differences(ours, theirs, dtypes=False):
    """How far values are from others, in parts of the largest element, and where. Different where they cannot be
    compared; with `dtypes` those too must be the same."""
    found = []
    for kind, tensors in theirs.items():
        if (names := set(ours.get(kind, {})) ^ set(tensors)):
            raise Different(f"{kind} of {', '.join(sorted(names))} are there on one side only")
        floor = CANCELLED * largest(tensors.values())
        for name, want in tensors.items():
            got = ours[kind][name]
            forms = [form_of(t, dtypes) for t in (got, want)]
            if forms[0] != forms[1]:
                raise Different(f"{kind} of {name}: {forms[0]}, {forms[1]} in plain training")
            if want is not None and want.numel():
                found.append((distance(got.double(), want.double(), floor), f"{kind} of {name}"))
    return found


def form_of(tensor, dtypes):
    return "none" if tensor is None else f"{tensor.dtype if dtypes else ''}{list(tensor.shape)}"


def distance(got, want, floor):
    """The largest difference, in parts of the largest element or of the floor."""
    apart = (got - want).abs().max().item()
    if apart == 0:
        return 0.0
    size = max(want.abs().max().item(), floor)
    return apart / size if size > 0 and math.isfinite(apart) else float("inf")


def is_double(run):
    return run.dtype == "f64" and not run.has(*LOW)


def expected(run, plain):
    """What plain training gives, and how far from it a distributed run may be. `plain(run, exact)` trains."""
    if is_double(run):
        return plain(run, False), TOLERANCE
    worst, truth = 0.0, None
    for more in reversed(SEEDS):
        other = dataclasses.replace(run, seed=run.seed + 1000 * more)
        truth = plain(other, True)
        worst = max(worst, *(far for far, _ in differences(plain(other, False), truth)))
    return truth, (3 + math.log2(run.ranks())) * worst


def message_of(error):
    return f"{type(error).__name__}: {str(error).strip()}"


def outcome_of(run, side, plain, fault=None):
    """Trains plainly and with a side. Whatever is raised is an outcome."""
    try:
        want, tolerance = expected(run, plain)
        values = [t for tensors in want.values() for t in tensors.values() if t is not None]
        if not all(t.double().isfinite().all() for t in values):
            raise ValueError("plain training does not stay finite")
    except Exception as error:  # noqa: BLE001  this run says nothing
        return Outcome("plain", message_of(error))
    try:
        far, where = max(differences(train(run, side, fault=fault), want, is_double(run)))
    except Different as error:
        return Outcome("wrong", str(error))
    except Exception as error:  # noqa: BLE001  a finding, or a documented refusal
        traceback.print_exc()
        return Outcome("refused", message_of(error))
    if far <= tolerance:
        return Outcome("ok")
    return Outcome("wrong", f"{where} off by {far:.3g} of the largest, at most {tolerance:.3g}")


def run_in_lockstep(run, fault=None):
    """The outcome of a run in this process: in lockstep or, of `replicate`, on threads."""
    if run.way == "replicate":
        return run_on_threads(run, fault)
    with it.lockstep(run.mesh):
        return outcome_of(run, Distributed(run), lambda run, exact: train(run, Side(run), exact), fault)


def run_as_rank(run, world, fault=None):
    """The outcome of a run on one of several ranks."""
    if run.way == "replicate":
        return outcome_of(
            run, Replica(run, world), lambda run, exact: train(run, Parts(run, world.rank()), exact), fault
        )
    it.init(run.mesh)
    return outcome_of(run, Distributed(run), lambda run, exact: train(run, Side(run), exact), fault)


def run_on_threads(run, fault=None):
    """The same with a thread for each rank, each with a world of its own, over Gloo on loopback."""
    ranks, port = run.ranks(), launch.free_ports(1)[0]
    outcomes = [None] * ranks

    def rank_of(rank):
        meet = it.Rendezvous()
        meet.rank, meet.size, meet.local_rank, meet.local_size = rank, ranks, rank, ranks
        meet.address, meet.port = "127.0.0.1", port
        world = it.World.connect(meet, backend="gloo", timeout=WORLD_SECONDS)
        try:
            outcomes[rank] = run_as_rank(run, world, fault)
        finally:
            world.close()

    torch.set_num_threads(1)  # in a fork this makes torch its pool anew, which threads must not do at once
    threads = [threading.Thread(target=rank_of, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return combined([o or Outcome("crash", "a thread ended early") for o in outcomes])


# --- outcomes of several ranks -------------------------------------------------------------


def bare(text):
    """A message without numbers, by which two of a kind are told."""
    return re.sub(r"0x[0-9a-f]+|\d+", "#", text.partition("\n")[0])


def lost_peer(outcome):
    """Whether a rank only says that another one has gone."""
    return outcome.kind == "refused" and outcome.text.startswith(("DistError", "WorldError", "DistBackendError"))


def combined(outcomes):
    """The outcome of a run on ranks that had these."""
    kinds = {o.kind for o in outcomes}
    for kind in ("crash", "hang", "wrong"):
        if kind in kinds and not (kind == "hang" and "refused" in kinds):
            rank, found = next((r, o) for r, o in enumerate(outcomes) if o.kind == kind)
            return Outcome(kind, found.text if len(outcomes) == 1 else f"rank {rank}: {found.text}")
    if len(kinds) == 1 and len({bare(o.text) for o in outcomes}) == 1:
        return outcomes[0]
    if "refused" not in kinds:
        return Outcome("alone", "; ".join(f"rank {r}: {o.kind} {o.text}" for r, o in enumerate(outcomes)))
    raised = [o for o in outcomes if o.kind == "refused"]
    tellers = [o for o in raised if not lost_peer(o)] or raised
    if len(tellers) == len(outcomes):
        return Outcome("refused", tellers[0].text)
    others = ", ".join(f"rank {r} {o.kind}" for r, o in enumerate(outcomes))
    return Outcome("alone", f"{tellers[0].text} ({others})")


# --- crews ---------------------------------------------------------------------------------


def work(pipe, runs, rank, ranks, backend, port, fault):
    """What a forked process does: all runs, or those up to the first after which ranks may be out of step."""

    def tell(**what):
        os.write(pipe, (json.dumps(what) + "\n").encode())

    world = None
    if ranks:
        place = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "INTARSIA_BACKEND": backend}
        os.environ |= {name: str(value) for name, value in place.items()}
        it.connect(timeout=WORLD_SECONDS)
        world = it.world()
    for number, run in enumerate(runs):
        outcome = run_as_rank(run, world, fault) if ranks else run_in_lockstep(run, fault)
        tell(ended=number, kind=outcome.kind, text=outcome.text)
        if ranks and outcome.kind in STOPS:
            break


class Crew:
    """Processes that do the same runs, one each for `ranks`, or one in lockstep."""

    def __init__(self, runs, ranks, backend, fault):
        self.count = max(ranks, 1)
        port = launch.free_ports(1)[0] if ranks else 0
        self.pids, self.pipes, self.codes, self.texts = [], [], [], [b""] * self.count
        self.ended = [{} for _ in range(self.count)]
        self.last_words = [tempfile.TemporaryFile() for _ in range(self.count)]
        sys.stdout.flush()
        for rank in range(self.count):
            reading, writing = os.pipe()
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    launch.end_with_parent()
                    os.close(reading)
                    os.dup2(self.last_words[rank].fileno(), 2)
                    faulthandler.enable()
                    faulthandler.register(signal.SIGUSR1)
                    work(writing, runs, rank, ranks, backend, port, fault)
                    code = 0
                except BaseException:  # noqa: BLE001  the parent sees the code
                    traceback.print_exc()
                finally:
                    sys.stderr.flush()
                    os._exit(code)
            os.close(writing)
            self.pids.append(pid)
            self.pipes.append(reading)

    def listen(self, seconds):
        """Takes in what comes within some time. False where all have ended."""
        open_ones = [p for p in self.pipes if p is not None]
        if not open_ones:
            return False
        for pipe in select.select(open_ones, [], [], seconds)[0]:
            rank = self.pipes.index(pipe)
            data = os.read(pipe, 65536)
            if not data:
                os.close(pipe)
                self.pipes[rank] = None
                continue
            *lines, self.texts[rank] = (self.texts[rank] + data).split(b"\n")
            for line in map(json.loads, lines):
                self.ended[rank][line["ended"]] = Outcome(line["kind"], line["text"])
        return True

    def ask(self):
        """Those that have not ended write down where they are."""
        for rank, pipe in enumerate(self.pipes):
            if pipe is not None:
                os.kill(self.pids[rank], signal.SIGUSR1)
        time.sleep(1.0)

    def close(self):
        """Ends all processes; their exit codes, negative for signals."""
        for rank, pipe in enumerate(self.pipes):
            if pipe is not None:
                os.kill(self.pids[rank], signal.SIGKILL)
                os.close(pipe)
                self.pipes[rank] = None
        if not self.codes:
            self.codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in self.pids]
        return self.codes

    def outcome(self, number, codes):
        """The outcome of a run; with codes for the one at which the crew ended."""
        found = []
        for rank in range(self.count):
            if number in self.ended[rank]:
                found.append(self.ended[rank][number])
            elif codes is None or codes[rank] == -signal.SIGKILL:
                found.append(Outcome("hang", f"no end within {RUN_SECONDS} s {self.where(rank)}"))
            elif codes[rank] < 0:
                found.append(Outcome("crash", f"{signal.Signals(-codes[rank]).name} {self.where(rank)}"))
            else:
                found.append(Outcome("crash", f"exit code {codes[rank]} {self.where(rank)}"))
        return combined(found)

    def where(self, rank):
        """The innermost Python function of a rank that crashed or hung."""
        self.last_words[rank].seek(0)
        text = self.last_words[rank].read().decode(errors="replace")
        found = re.search(r'File "[^"]*?([^/"]+)", line \d+ in (\S+)', text)
        return f"in {found[2]} of {found[1]}" if found else text[-300:].strip()


def follow(crew, runs, several):
    """Yields outcomes as they come, and ends where the crew does; the last one says why it ended."""
    done, since = 0, time.monotonic()
    while done < len(runs) and crew.listen(1.0):
        while done < len(runs) and all(done in ended for ended in crew.ended):
            yield crew.outcome(done, None)
            if several and any(ended[done].kind in STOPS for ended in crew.ended):
                return
            done, since = done + 1, time.monotonic()
        if time.monotonic() - since > RUN_SECONDS:
            crew.ask()
            break
    if done < len(runs):
        yield crew.outcome(done, crew.close())


@functools.cache
def warm_up():
    """Plain training once in this process, so that those forked from it have loaded what torch loads late."""
    text = (
        "seed=1 mesh=[dp=1] way=parallelize options= batch=R sizes=2x2x4 dtype=f64 entry=tokens blocks=mlp,attention,conv "
        "model=schedule optimizer=adamw steps=ckpt+clip+eval+save+scaler"
    )
    train(parse(text), Side(parse(text)))


def outcomes_of(runs, ranks=0, backend="gloo", fault=None, batch=50):
    """Yields (run, outcome) for all runs, in crews of at most so many runs."""
    runs = list(runs)
    warm_up()
    while runs:
        some = runs[:batch]
        crew = Crew(some, ranks, backend, fault)
        done = 0
        try:
            for outcome in follow(crew, some, ranks > 0):
                yield some[done], outcome
                done += 1
        finally:
            crew.close()
        if done == 0:
            raise RuntimeError("the processes did not begin any run")
        runs = runs[done:]


def outcome_once(run, ranks=0, backend="gloo", fault=None):
    return next(iter(outcomes_of([run], ranks, backend, fault)))[1]
