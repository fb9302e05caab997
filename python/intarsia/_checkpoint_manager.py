"""CheckpointManager: checkpoints of a run, saved behind its training loop. See docs/checkpoints.md."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from . import _C
from ._checkpoint import (
    Form,
    LoadedCheckpoint,
    Path,
    checked_form,
    checkpoint_steps,
    load_checkpoint,
    patterns_of,
    state_to_save,
    without_gc,
)
from ._world import world as default_world

_WHERE = "CheckpointManager"


class CheckpointManager:
    """Saves steps of a run below one folder, which nobody else saves in.

        with it.CheckpointManager("runs/a", every=1000) as checkpoints:
            checkpoints.resume(state)
            for step in ...:
                ...  # forward, backward, optimizer.step()
                checkpoints.after_step(step, state)

    What is saved is a copy of the moment of the call, whatever training does next; threads write it. The next save waits until
    the one before is on the disk. An error of a save is the same on all ranks, and comes with the next save, `wait` or the end
    of the `with`.

    `every`: after so many steps `after_step` saves; `first`: the first one too. `keep`: how many steps stay, 0 for all.
    `mode`: "behind" copies in the call and returns; "overlapped" returns at once, and a thread copies while the next forward
    and backward run: every optimizer of torch waits for it before its step, everything else that changes a tensor must call
    `wait_staged` first (a change before fails the save, unless autograd cannot see it either, as through `.data` or `local`); "wait" returns when the step is on the disk. `also`: a second folder, such as one in an object store, that gets each
    step when the first has it; nothing is removed there. `without`: as for save_checkpoint, and for `resume` too. `stop_on_failure=False`: a save that failed is told
    on stderr, and training goes on. `signals`: at one of these, on any rank, all ranks save the step they are at, and
    `stop_requested` is True; `after_step` then makes one small collective each step. The rest is as for save_checkpoint.
    """

    def __init__(
        self,
        folder: Path,
        *,
        every: int = 0,
        first: bool = False,
        keep: int = 10,
        mode: Literal["wait", "behind", "overlapped"] = "behind",
        also: Path | None = None,
        replace: bool = False,
        check_replicas: bool = True,
        form: Form = "native",
        hf_file_bytes: int = 5_000_000_000,
        hf_dtype: torch.dtype | None = None,
        without: Iterable[str] = (),
        stop_on_failure: bool = True,
        signals: Iterable[int] = (),
        world: _C.World | None = None,
    ):
        if mode not in _C.SaveMode.__members__:
            raise ValueError(f"[{_WHERE}] mode is {mode!r}; it is one of {', '.join(map(repr, _C.SaveMode.__members__))}")
        self.folder = os.fspath(folder)
        self._folders = [self.folder, *([os.fspath(also)] if also else [])]
        self._world = world or default_world()
        self._without = patterns_of(without)
        signals = tuple(signals)
        self._manager = _C.CheckpointManager(
            self._world,
            self.folder,
            every,
            first,
            keep,
            _C.SaveMode.__members__[mode],
            os.fspath(also) if also else "",
            replace,
            check_replicas,
            checked_form(_WHERE, form, hf_file_bytes),
            hf_dtype,
            stop_on_failure,
            bool(signals),
        )
        self._handlers = {number: signal.signal(number, self._on_signal) for number in signals}
        self._hook = register_optimizer_step_pre_hook(self._before_step) if mode == "overlapped" else None
        # What is being written when the program ends is written to its end, while the world is still there.
        atexit.register(self._at_exit)

    def after_step(self, step: int, state: Mapping[str, Any]) -> bool:
        """Saves the step if it is due, and says whether it was. COLLECTIVE when it is, or with `signals`."""
        if not self._manager.due(step):
            return False
        self.save(step, state)
        return True

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Saves the step. `state` as for save_checkpoint. COLLECTIVE: all ranks of the world."""
        with without_gc():
            self._manager.save(step, *state_to_save(_WHERE, state, self._without))

    def finish(self, step: int, state: Mapping[str, Any]) -> None:
        """Saves the step unless it was saved, and waits until all is on the disk. COLLECTIVE: all ranks of the world."""
        self.wait()
        if self._manager.last_step() != step:
            self.save(step, state)
        self.wait()

    def resume(self, state: Mapping[str, Any], **options: Any) -> LoadedCheckpoint | None:
        """Loads the newest step that can be read, or the one that `step` names; None where rank 0 sees none. Of two folders the
        first one that has any is taken. `options` as for
        load_checkpoint. COLLECTIVE: all ranks of the world."""
        own = {"world": self._world, "fall_back": True, "without": self._without}
        for folder in self._folders:
            if _C.any_checkpoint(self._world, folder):
                return load_checkpoint(folder, state, **{**own, **options})
        return None

    def steps(self) -> list[int]:
        """The steps that are there."""
        return checkpoint_steps(self.folder)

    def wait_staged(self) -> None:
        """Returns when the tensors of the last save may change."""
        self._manager.wait_staged()

    def wait(self) -> None:
        """Returns when nothing is being written. Raises what has failed."""
        self._manager.wait()

    @property
    def stop_requested(self) -> bool:
        """Whether a rank got one of the signals, as all ranks know it since their last `after_step`."""
        return self._manager.stop_requested()

    @property
    def busy(self) -> bool:
        """Whether a save is being copied or written now, on this rank."""
        return self._manager.busy()

    @property
    def times(self) -> _C.CheckpointTimes:
        """Seconds of all saves: staging, waiting, writing, removing; how many saves, and how many failed."""
        return self._manager.times()

    def __enter__(self) -> CheckpointManager:
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        atexit.unregister(self._at_exit)
        if self._hook:
            self._hook.remove()
        if kind is None:
            self.wait()
        else:
            self._at_exit()

    def _at_exit(self) -> None:
        try:
            self._manager.wait()
        except Exception as error:
            print(error, file=sys.stderr)

    def _on_signal(self, *_: object) -> None:
        self._manager.request_stop()

    def _before_step(self, *_: object) -> None:
        self._manager.wait_staged()
