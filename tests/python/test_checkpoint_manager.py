"""Checkpoints saved behind the training loop, from Python: on processes and in lockstep."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

import intarsia as it
import torch
from _harness import on_ranks, refuses, run
from torch import nn


def ready(name):
    it.init("[x=2]")
    return pathlib.Path(tempfile.gettempdir()) / f"intarsia-{name}-{os.environ['MASTER_PORT']}-{os.getppid()}"


def remove(folder):
    it.full(it.distribute(torch.ones(2), "S(0)"))  # all have read it
    if it.world().hosted()[0] == 0:
        shutil.rmtree(folder)


def training():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5))
    it.fully_shard(model, shard="x")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return {"model": model, "optimizer": optimizer, "rng": torch.default_generator}


def step_of(state):
    x = it.distribute(torch.randn(8, 6), "R")
    loss = state["model"](x).square().sum()
    state["optimizer"].zero_grad()
    loss.backward()
    state["optimizer"].step()
    return it.full(loss).item()


@on_ranks(2)
def test_a_run_resumes_where_any_of_its_steps_was():
    folder = ready("manager")
    for mode in ("wait", "behind", "overlapped"):
        state = training()
        torch.manual_seed(5)
        with it.CheckpointManager(folder / mode, every=2, keep=3, mode=mode) as checkpoints:
            assert checkpoints.resume(state) is None
            losses = []
            for step in range(1, 10):
                losses.append(step_of(state))
                checkpoints.after_step(step, {**state, "sample": 8 * step})
        assert checkpoints.steps()[-3:] == [4, 6, 8], checkpoints.steps()
        assert checkpoints.times.saves == 4 and checkpoints.times.failures == 0
        for step in (4, 6, 8):
            again = training()
            loaded = checkpoints.resume(again, step=step)
            assert loaded.step == step and loaded.values["sample"] == 8 * step
            assert [step_of(again) for _ in range(step, 9)] == losses[step:], mode
    remove(folder)


@on_ranks(2)
def test_finish_saves_the_last_step():
    folder = ready("finish")
    state = training()
    with it.CheckpointManager(folder, every=5) as checkpoints:
        for step in (1, 2, 3):
            step_of(state)
            checkpoints.after_step(step, state)
        checkpoints.finish(3, state)
        assert checkpoints.steps() == [3]
        checkpoints.finish(3, state)
    remove(folder)


@on_ranks(2)
def test_an_error_behind_training_comes_at_the_end_of_the_with():
    folder = ready("failed")
    state = training()

    def twice():
        with it.CheckpointManager(folder) as checkpoints:
            checkpoints.save(1, state)
            checkpoints.save(1, state)

    refuses(ValueError, "step-00000001 is there already", twice)
    remove(folder)


@on_ranks(2)
def test_a_signal_on_one_rank_saves_on_all():
    folder = ready("signal")
    state = training()
    before = signal.getsignal(signal.SIGUSR1)
    with it.CheckpointManager(folder, signals=[signal.SIGUSR1]) as checkpoints:
        for step in range(1, 100):
            step_of(state)
            if step == 3 and it.world().hosted()[0] == 1:
                os.kill(os.getpid(), signal.SIGUSR1)
            checkpoints.after_step(step, state)
            if checkpoints.stop_requested:
                break
        assert step == 3, step
    assert checkpoints.steps() == [3]
    assert signal.getsignal(signal.SIGUSR1) == before
    remove(folder)


@on_ranks(2)
def test_an_optimizer_that_is_not_saved_waits_for_the_copy():
    folder = ready("unsaved")
    for plain in (False, True):
        model = nn.Linear(256, 256) if plain else training()["model"]
        x = torch.ones(2, 256) if plain else it.distribute(torch.ones(2, 6), "R")
        model(x).sum().backward()
        before = [it.full(p).clone() if it.has_layout(p) else p.detach().clone() for p in model.parameters()]
        with it.CheckpointManager(folder / str(plain), mode="overlapped") as checkpoints:
            checkpoints.save(1, {"model": model})
            torch.optim.SGD(model.parameters(), lr=1.0, fused=True).step()  # changes memory behind autograd's back
        checkpoints.resume({"model": model})
        for p, was in zip(model.parameters(), before):
            assert torch.equal(it.full(p) if it.has_layout(p) else p.detach(), was)
    remove(folder)


def test_lockstep():
    with tempfile.TemporaryDirectory() as folder:
        with it.lockstep("[x=2]"):
            state = training()
            torch.manual_seed(5)
            with it.CheckpointManager(folder, every=1, mode="overlapped") as checkpoints:
                step_of(state)
                checkpoints.after_step(1, state)
                loss = step_of(state)
            again = training()
            assert checkpoints.resume(again).step == 1
            assert step_of(again) == loss


def test_a_mode_that_is_none_is_refused():
    refuses(ValueError, "mode is 'async'", lambda: it.CheckpointManager("x", mode="async"))


UNFINISHED = """
import intarsia as it, torch
it.init("[x=1]")
checkpoints = it.CheckpointManager({folder!r})
checkpoints.save(1, {{"w": torch.ones(1 << 22)}})
"""


def test_a_program_that_ends_writes_to_the_end():
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", UNFINISHED.format(folder=folder)], check=True, timeout=120)
        assert it.checkpoint_steps(folder) == [1]


if __name__ == "__main__":
    run(globals())
