"""What a program does beside its calls: its phases, the line where it stays, the error that it ends with. Other ranks say so where they
wait for it, and the times of phases show which rank is slow."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import time
from collections.abc import Iterator

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader

from . import _C

LOOK_EVERY, QUIET = 1.0, 2.0  # seconds
LONGEST_ERROR = 180
_thread: int | None = None  # whose phases are marked
_in_optimizer = False


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """The program is in this phase: `with intarsia.phase("saving"): ...`. Ranks that wait for it say so, and step_times() shows its time.

    "data", "backward" and "optimizer" are marked by themselves where a program uses DataLoader, backward and torch.optim once it has
    connected; what follows "data" is "forward". A step ends with "optimizer".
    """
    _C.begin_phase(name)
    try:
        yield
    finally:
        _C.end_phase()


def step_times() -> list[_C.RankTimes]:
    """How long the last steps of each rank took in each phase, without the time that it waited for others: medians, in seconds.

    Of all ranks of this host that are compared (docs/guard.md). Not collective: any rank may ask, also one alone.
    """
    return _C.step_times()


def find_straggler(times: list[_C.RankTimes] | None = None, least_share: float = 0.1) -> _C.Straggler | None:
    """The rank that others wait for, and the phase in which it loses most, if that is at least this share of a step."""
    return _C.find_straggler(step_times() if times is None else times, least_share)


def prometheus() -> str:
    """step_times() in the text format of Prometheus, for an endpoint or a file that its node exporter reads."""
    return _C.to_prometheus(step_times())


def _is_mine() -> bool:
    return threading.get_ident() == _thread


def _marked(name: str, function):
    """The function, as a phase of the program where its own thread calls it."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        if not _is_mine():
            return function(*args, **kwargs)
        with phase(name):
            return function(*args, **kwargs)

    return call


def _begin_optimizer(*_) -> None:
    global _in_optimizer
    if _is_mine():
        if _in_optimizer:  # the last step ended with an error
            _C.end_phase()
        _in_optimizer = True
        _C.begin_phase("optimizer")


def _end_optimizer(*_) -> None:
    global _in_optimizer
    if _is_mine() and _in_optimizer:
        _in_optimizer = False
        _C.end_phase()


def _line_of(frame, line: int | None = None) -> str:
    """`train.py:88 in step`: the innermost line that is neither torch's nor ours; empty if there is none."""
    folders = [os.path.dirname(os.path.abspath(module.__file__)) + os.sep for module in (torch, sys.modules[__package__])]
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(("<frozen ", *folders)):
            place = f"{os.path.basename(code.co_filename)}:{line or frame.f_lineno}"
            return place if code.co_name == "<module>" else f"{place} in {code.co_name}"
        frame, line = frame.f_back, None
    return ""


def _look_from_time_to_time() -> None:
    """Notes where the program is once it has made no call for a while."""
    while True:
        time.sleep(LOOK_EVERY)
        if _C.quiet_seconds() > QUIET:
            line = _line_of(sys._current_frames().get(_thread))
            if line:
                _C.note_stay(line)


def _tell_errors(before):
    """An excepthook that tells the other ranks first."""

    def tell(kind, error, trace):
        with contextlib.suppress(Exception):
            last = trace
            while last is not None and last.tb_next is not None:
                last = last.tb_next
            line = "" if last is None else _line_of(last.tb_frame, last.tb_lineno)
            words = str(error).partition("\n")[0][:LONGEST_ERROR]
            _C.note_error(f"{kind.__name__}: {words}" + (f" at {line}" if line else ""))
        before(kind, error, trace)

    return tell


def install() -> None:
    """Marks phases and tells errors from now on, for the thread that calls it; once for a process, when it meets other ranks."""
    global _thread
    if _thread is not None:
        return
    _thread = threading.get_ident()
    torch.autograd.backward = _marked("backward", torch.autograd.backward)
    batches = dataloader._BaseDataLoaderIter
    batches.__next__ = _marked("data", batches.__next__)
    register_optimizer_step_pre_hook(_begin_optimizer)
    register_optimizer_step_post_hook(_end_optimizer)
    sys.excepthook = _tell_errors(sys.excepthook)
    threading.Thread(target=_look_from_time_to_time, name="intarsia guard", daemon=True).start()
