"""Worlds and groups come and go: nothing is left of them, forks leave them alone, and a lost rank holds nobody up.

    life_test.py PATH_OF_LIFE_PROGRAM
"""

import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
import launch  # noqa: E402

BACKENDS = ("gloo", "shm")
HELD = re.compile(r"rank (\d): descriptors (\d+) (\d+), threads (\d+) (\d+), KiB (\d+) (\d+)")


def run(program, arguments, ranks, backend):
    """What all ranks print; of ranks that exit with 0."""
    result = launch.run("plain", ranks, [program, *arguments], env={"INTARSIA_BACKEND": backend}, timeout=120)
    assert result.returncode == 0, f"{arguments} on {ranks} ranks over {backend}: {result.stdout}{result.stderr}"
    return result.stdout


def check_flat(text, ranks, descriptors=0, threads=0, kib=2048):
    found = HELD.findall(text)
    assert len(found) == ranks, text
    for numbers in found:
        rank, fds, fds_end, tasks, tasks_end, memory, memory_end = map(int, numbers)
        assert fds_end - fds <= descriptors and tasks_end - tasks <= threads, text
        assert memory_end - memory <= kib, text


def test_groups_that_nobody_uses_give_their_connections_back(program):
    for backend in BACKENDS:
        for ranks in (2, 3):
            text = run(program, ["groups", "60"], ranks, backend)
            print(backend, text.splitlines()[0])
            # Ranks give up at different times: two or three groups more or less.
            check_flat(text, ranks, descriptors=30, threads=12)
            assert all(int(m[2]) < 150 for m in HELD.findall(text)), text  # 60 would be 300 and more


def test_a_group_can_be_asked_for_again(program):
    for backend in BACKENDS:
        check_flat(run(program, ["again", "60"], 3, backend), 3, descriptors=30, threads=12)


def test_worlds_leave_nothing(program):
    for backend in BACKENDS:
        check_flat(run(program, ["worlds", "40"], 2, backend), 2)
    alone = subprocess.run([program, "lockstep", "100"], capture_output=True, text=True, timeout=120, check=True)
    check_flat(alone.stdout, 1)


def test_forks_leave_the_world_alone(program):
    words = "belongs to the process that this one was forked from, and cannot be used here; work with plain tensors"
    for backend in BACKENDS:
        text = run(program, ["fork"], 2, backend)
        assert text.count("the world works") == 2, text
        assert re.findall(r"a child ended with (-?\d+)", text) == ["7"] * 9, text
        assert f"child: [World] group [g=2] {words}" in text, text
        assert f"child: [World] group [g=2] for of a child {words}" in text, text
        assert f"child: [World] the store of a world {words}" in text, text
        assert f"child: [World] the all_reduce over group [g=2] {words}" in text, text


def test_a_lost_rank_does_not_hold_up_the_others(program):
    for backend in BACKENDS:
        for ranks in (2, 4):
            text = run(program, ["lose"], ranks, backend)
            times = [int(ms) for ms in re.findall(r"closed after (\d+) ms", text)]
            print(backend, ranks, times)
            assert len(times) == ranks - 1 and max(times) < 3000, text


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test(sys.argv[1])
