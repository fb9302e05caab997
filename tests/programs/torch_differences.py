"""Where plain torch itself gives different answers, so that a difference says nothing about layouts.

One list. Each entry says which differences it explains, and has a program in plain torch that shows torch to differ
from itself; test_programs.py runs them all. A generator must not avoid what is here: it is found, then explained.
"""

import dataclasses
from collections.abc import Callable

import torch


@dataclasses.dataclass(frozen=True)
class TorchDifference:
    name: str
    why: str
    explains: Callable  # (program, difference) -> bool
    shows: Callable  # () -> bool: plain torch differs from itself


LIST: list[TorchDifference] = []


def explains(program, difference):
    """The entry that explains a difference, or None."""
    return next((each for each in LIST if each.explains(program, difference)), None)
