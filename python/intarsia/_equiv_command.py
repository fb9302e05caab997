"""python -m intarsia equiv: a script as it stands, on one rank and on several."""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import os
import pathlib
import pickle
import socket
import subprocess
import sys
import tempfile

from ._equiv import check_reference, check_samples, compare_records, joined
from ._equiv_compare import Rounding
from ._equiv_noise import rounding_noise
from ._equiv_record import Record, Recorder

FOLDER, NOISE, RANKS = "INTARSIA_EQUIV", "INTARSIA_EQUIV_NOISE", "INTARSIA_EQUIV_RANKS"
LONGEST_ERROR = 3000


def begin() -> None:
    """In a process of such a run: records from here on, and writes the record at its end. Called by our sitecustomize."""
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    stack = contextlib.ExitStack()
    if NOISE in os.environ:
        stack.enter_context(rounding_noise(int(os.environ[NOISE]), int(os.environ[RANKS])))
    record = stack.enter_context(Recorder(rank, ranks).recording())

    process = os.getpid()

    def write() -> None:
        if os.getpid() != process:  # a fork of the program, which must not write for it
            return
        stack.close()
        if record.values:  # else it was a process beside the program, such as a launcher
            pathlib.Path(os.environ[FOLDER], f"rank-{rank}").write_bytes(pickle.dumps(record))

    atexit.register(write)


class FailedRun(Exception):
    """A run that did not come to its end, or recorded nothing."""


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _run(command: list[str], ranks: int, timeout: float, environment: dict[str, str], noise: int | None = None, of: int = 1) -> Record:
    """Runs a command on ranks of this host, and reads what they recorded."""
    with tempfile.TemporaryDirectory(prefix="intarsia-equiv-") as folder:
        common = environment | {FOLDER: folder, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(ranks),
                                "LOCAL_WORLD_SIZE": str(ranks), RANKS: str(of)}  # fmt: skip
        if noise is not None:
            common[NOISE] = str(noise)
        children = []
        for rank in range(ranks):
            mine = common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            children.append(subprocess.Popen(command, env=mine, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
        _wait(children, timeout)
        found = []
        for rank in range(ranks):
            file = pathlib.Path(folder, f"rank-{rank}")
            if not file.exists():
                raise FailedRun(f"[equiv] rank {rank} of {ranks} trained nothing: no loss.backward() and step of a torch.optim optimizer was seen")
            found.append(pickle.loads(file.read_bytes()))  # written by our own children
        return joined(found)


def _wait(children: list[subprocess.Popen], timeout: float) -> None:
    """Until all have ended well. FailedRun with the errors of those that did not."""
    with concurrent.futures.ThreadPoolExecutor(len(children)) as threads:
        try:
            errors = list(threads.map(lambda child: child.communicate(timeout=timeout)[1], children))
        except subprocess.TimeoutExpired:
            raise FailedRun(f"[equiv] no end after {timeout:g} s") from None
        finally:
            for child in children:
                child.kill()
    for rank, (child, error) in enumerate(zip(children, errors, strict=True)):
        if child.returncode != 0:
            raise FailedRun(f"[equiv] rank {rank} of {len(children)} ended with {child.returncode}:\n{error[-LONGEST_ERROR:]}")


def equiv_command(command: list[str], ranks: int, samples: int, jobs: int, timeout: float, environment: dict[str, str]) -> int:
    """0: equal; 1: not; 2: a run failed, or proves nothing."""
    try:
        check_samples(samples)
        first, again = (_run(command, 1, timeout, environment) for _ in range(2))
        check_reference(first, again)
        with concurrent.futures.ThreadPoolExecutor(max(jobs, 1)) as threads:
            runs = [threads.submit(_run, command, 1, timeout, environment, seed, max(ranks, 2)) for seed in range(samples)]
            rounding = Rounding(first, (run.result() for run in runs))
        report = compare_records(rounding, _run(command, ranks, timeout, environment))
    except (FailedRun, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(report)
    return 0 if report.equal else 1
