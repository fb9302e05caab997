"""Phases of a program, the times of ranks, and what others are told of a rank that stays or ends."""

import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import torch
from _harness import launch, on_ranks, run
from torch.utils.data import DataLoader

import intarsia as it

NAMES = ("data", "forward", "backward", "optimizer")


def phases(times):
    return {own.phase for own in times.own}


class Stumbles(torch.optim.SGD):
    """Its first step ends with an error."""

    def step(self, closure=None):
        if not hasattr(self, "stumbled"):
            self.stumbled = True
            raise ArithmeticError("once")
        return super().step(closure)


@on_ranks(2)
def test_phases_are_marked_by_themselves():
    it.init({"dp": 2})
    assert it.find_straggler() is None and [times.steps for times in it.step_times()] == [0, 0]
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    it.fully_shard(model)
    optimizer = Stumbles(model.parameters(), lr=0.1)
    batches = DataLoader(torch.ones(12, 4), batch_size=2)
    for batch in batches:
        model(it.from_local(batch, "S(0)")).sum().backward()
        with it.phase("logging"):
            pass
        try:
            optimizer.step()
        except ArithmeticError:
            pass
    it.full(it.distribute(torch.ones(2), "S(0)"))  # the other rank is here too
    for times in it.step_times():
        assert times.steps == 3, times.steps  # of six: one failed, two warmed up; the last ends where a next one begins
        assert phases(times) >= {*NAMES, "logging"}, phases(times)
        assert times.total() > 0 and times.of("backward") > 0 and times.of("saving") == 0
    text = it.prometheus()
    assert 'intarsia_own_seconds{rank="1",phase="backward"} ' in text and 'intarsia_waited_seconds{rank="0"} ' in text


@on_ranks(2)
def test_what_other_threads_do_is_not_timed():
    def other():
        (torch.ones(2, requires_grad=True) * 2).sum().backward()
        next(iter(DataLoader(torch.ones(2))))

    before = [times.steps for times in it.step_times()]
    with it.phase("saving"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert f"rank {it.world().rank()} of 2 (process {os.getpid()}): " in it.describe_job(os.getpid())
        mine = [line for line in it.describe_job().splitlines() if f"(process {os.getpid()})" in line]
        assert len(mine) == 1 and "it is in saving since 0 s" in mine[0], mine
    assert [times.steps for times in it.step_times()] == before


PROGRAM = """
import os, sys, time, torch
import intarsia as it

it.init({"x": 2}, timeout=6)
x = it.distribute(torch.arange(8.0), "S(0)")
x.sum().item()

def stays():
    while True:
        time.sleep(0.01)

if os.environ["RANK"] == "1":
    if sys.argv[1] == "fails":
        torch.zeros(3)[9]
    with it.phase("saving"):
        stays()
x.sum().item()
"""


def run_program(how, **env):
    """What rank 0 and rank 1 say of a program in which rank 1 fails, or stays where it is."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "program.py"
        file.write_text(PROGRAM)
        return launch.run("plain", 2, [sys.executable, str(file), how], env={"OMP_NUM_THREADS": "1", **env}, timeout=60)


def test_an_error_is_told_in_its_own_words():
    said = run_program("fails").stderr
    assert "its last error was: IndexError: index 9 is out of bounds for dimension 0 with size 3 at program.py:15" in said, said


def test_where_a_rank_stays_is_named_with_its_line():
    said = run_program("stays", INTARSIA_GUARD_NOTICE="3").stderr
    assert "[guard] rank 0 waits since 3 s at program.py:18: rank 1 never came to call #1 of group" in said, said
    assert "it is in saving since 3 s, at program.py:11 in stays" in said, said
    assert "DistError" in said and "s ago; it is in saving since 6 s" in said, said


def test_a_rank_that_is_told_of_a_fault_may_abort():
    done = run_program("fails", INTARSIA_GUARD_ACTION="abort")
    assert "[guard] rank 0 ends: rank 1 has closed" in done.stderr and "torch.distributed.DistError" not in done.stderr, done.stderr


def test_boards_that_are_files_outlive_their_job():
    with tempfile.TemporaryDirectory() as folder:
        run_program("fails", INTARSIA_GUARD_DIR=folder)
        attach = [sys.executable, "-m", "intarsia", "watch", "--attach", folder]
        done = subprocess.run(attach, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and "rank 1 of 2" in done.stdout and "IndexError" in done.stdout, done
        assert "group [g=2]: rank 0 has made 2 calls, rank 1 has made 1 call" in done.stdout or "it was told: " in done.stdout, done
    done = subprocess.run(attach, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "[describe_job] there are no boards" in done.stderr, done


def test_run_says_where_boards_are_when_its_command_fails():
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "program.py"
        file.write_text(PROGRAM)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", str(file), "fails"]
        done = subprocess.run([sys.executable, "-m", "intarsia", "run", "--", *torchrun], capture_output=True, text=True, timeout=100)
    assert done.returncode != 0 and "[run] what each rank did last: " in done.stderr, done.stderr
    command = done.stderr.rpartition("[run] what each rank did last: ")[2].split()
    assert "IndexError" in subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    for file in pathlib.Path(command[-1]).glob("*.board"):
        file.unlink()
    pathlib.Path(command[-1]).rmdir()


def test_signals_reach_the_command_that_run_runs():
    program = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); print('up', flush=True); time.sleep(60)"
    started = subprocess.Popen(
        [sys.executable, "-m", "intarsia", "run", "--", sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    )
    assert started.stdout.readline() == "up\n"
    started.terminate()
    begin = time.monotonic()
    assert started.wait(30) == 5 and time.monotonic() - begin < 20


if __name__ == "__main__":
    run(globals())
