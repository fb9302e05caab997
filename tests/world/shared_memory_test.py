"""Processes that share memory: one is killed, and one lives in another namespace of process numbers.

    shared_memory_test.py PATH_OF_WORLD_PROGRAM
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
import launch  # noqa: E402


def start(program, rank, size, port, arguments=(), before=(), backend="shm"):
    place = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "MASTER_ADDR": launch.LOOPBACK,
             "MASTER_PORT": str(port), "INTARSIA_BACKEND": backend}  # fmt: skip
    environment = launch.make_environment("plain", place, master=False)
    return subprocess.Popen([*before, program, *arguments], env=environment, stdout=subprocess.PIPE, text=True)


def test_a_killed_rank_is_named(program):
    """Within 3 seconds, by all others; nothing is left of it, or of them."""
    for size, victim in ((2, 1), (4, 2)):
        before = sorted(os.listdir("/dev/shm"))
        (port,) = launch.free_ports(1)
        ranks = [start(program, rank, size, port, ["--until-lost"]) for rank in range(size)]
        try:
            for process in ranks:
                line = process.stdout.readline()
                assert line == "running\n", line
            ranks[victim].send_signal(signal.SIGKILL)
            killed = time.monotonic()
            for rank, process in enumerate(ranks):
                text, _ = process.communicate(timeout=30)
                seconds = time.monotonic() - killed
                if rank == victim:
                    continue
                print(f"rank {rank} of {size} after {seconds:.2f} s: {text.splitlines()[0]}")
                assert process.returncode == 3, process.returncode
                assert f"rank {victim} (process {ranks[victim].pid}) has died" in text, text
                assert seconds < 3, seconds
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        assert sorted(os.listdir("/dev/shm")) == before


def counts(program, backend, before=()):
    """What two ranks say that they checked and called; `before` starts the second."""
    (port,) = launch.free_ports(1)
    ranks = [start(program, 0, 2, port, backend=backend), start(program, 1, 2, port, before=before, backend=backend)]
    try:
        texts = [process.communicate(timeout=120)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0]
    return [re.findall(r"(\d+) checks, (\d+) calls", text) for text in texts]


def test_processes_that_cannot_reach_each_other_use_gloo(program):
    """All collectives are right, and are the calls that Gloo is asked for, not those of shared memory."""
    apart = ["unshare", "--pid", "--fork"]
    if not shutil.which("unshare") or subprocess.run([*apart, "true"], capture_output=True).returncode:
        print("not tried: this user may not make a namespace of process numbers")
        return
    mixed = counts(program, "shm", apart)
    assert mixed == counts(program, "gloo"), mixed
    assert mixed != counts(program, "shm"), mixed
    print(f"in two namespaces: {mixed}")


if __name__ == "__main__":
    test_a_killed_rank_is_named(sys.argv[1])
    test_processes_that_cannot_reach_each_other_use_gloo(sys.argv[1])
