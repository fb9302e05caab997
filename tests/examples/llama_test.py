"""Runs the Llama example, in C++ and Python, through its own launcher: modes learn, and all see the same loss.

    llama_test.py PATH_OF_LLAMA
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "llama"
PYTHON = [sys.executable, str(EXAMPLE / "llama.py")]
SMALL = ["--steps", "3", "--batch", "4", "--seq", "16", "--lr", "0.003"]
STEP = re.compile(r"step \d+/3  loss ([\d.]+)  \d+ tokens/s  \d+ MiB")


def launched(n, *command, code=0):
    done = subprocess.run(
        [sys.executable, EXAMPLE / "launch", "-n", str(n), "--", *command], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == code, f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def losses(n, *command):
    found = [float(loss) for loss in STEP.findall(launched(n, *command, *SMALL))]
    assert len(found) == 3 and found[2] < found[0] - 0.5, f"{command}: {found}"
    return found


def every_mode_learns_the_same(program, runs):
    first, *others = [losses(n, *program, "--mode", mode) for mode, n in runs]
    for (mode, n), other in zip(runs[1:], others):
        # As far as four decimals of a float32 loss of about 6 can agree.
        assert all(abs(a - b) <= 2e-4 for a, b in zip(first, other)), f"{mode} on {n}: {other}, alone {first}"
    print(f"{len(runs)} runs of {program[-1]}: {first}")


def the_launcher_ends_all_when_one_fails():
    program = "import os, sys, time; time.sleep(60) if os.environ['RANK'] == '0' else sys.exit('rank 1 fails')"
    began = time.monotonic()
    said = launched(2, sys.executable, "-c", program, code=1)
    assert "[1] rank 1 fails" in said and time.monotonic() - began < 30, said


def a_run_goes_on_on_another_mesh(program, other=None):
    """Three steps at once, and one step, then the others in another mode, and perhaps in the other language: the same losses."""
    alone = losses(2, *program, "--mode", "fsdp")
    with tempfile.TemporaryDirectory() as folder:
        save = ["--save", folder, "--every", "1", "--resume"]
        small = [word if word != "3" else "1" for word in SMALL]
        launched(2, *program, "--mode", "fsdp", *save, *small)
        rest = [float(loss) for loss in STEP.findall(launched(2, *(other or program), "--mode", "tp", *save, *SMALL))]
        assert len(rest) == 2 and all(abs(a - b) <= 2e-4 for a, b in zip(alone[1:], rest)), (alone, rest)
        assert len(os.listdir(folder)) == 3, os.listdir(folder)


def wrong_meshes_are_named(program):
    said = launched(2, *program, "--mode", "dp", "--mesh", "[dp=4]", code=1)
    assert "the mesh [dp=4] has 4 ranks, but 2 processes run" in said, said
    said = launched(2, *program, "--mode", "tp", "--key-value-heads", "1", code=1)
    assert "has 1 heads, which the 2 ranks of tp in [tp=2] do not share evenly" in said, said


def main(program):
    modes = [("plain", 1), ("dp", 2), ("fsdp", 2), ("tp", 2), ("tp+sp", 2), ("cp", 2), ("hsdp", 4), ("fsdp+tp", 4)]
    every_mode_learns_the_same([program], modes)
    a_run_goes_on_on_another_mesh([program])
    wrong_meshes_are_named([program])
    the_launcher_ends_all_when_one_fails()
    try:
        __import__("intarsia")
    except ImportError:
        print("the Python package is not built: its example did not run")
        return
    every_mode_learns_the_same(PYTHON, [("plain", 1), ("tp+sp", 2), ("cp", 2), ("fsdp", 2)])
    a_run_goes_on_on_another_mesh(PYTHON)
    a_run_goes_on_on_another_mesh([program], PYTHON)
    a_run_goes_on_on_another_mesh(PYTHON, [program])


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(sys.argv[1])
