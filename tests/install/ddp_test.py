"""Installs the package, builds examples/ddp as it stands, and trains with it on two processes.

    ddp_test.py BUILD_DIRECTORY

The loss must fall, and the ranks must end with the same weights.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "launch"))
import launch  # noqa: E402

EXAMPLE = ROOT / "examples" / "ddp"


def run(*command):
    subprocess.run([str(c) for c in command], check=True, timeout=600, stdout=subprocess.DEVNULL)


def check(output):
    losses = [float(text) for text in re.findall(r"^epoch \d+: loss ([\d.]+)$", output, re.M)]
    weights = dict(re.findall(r"^rank (\d) of 2 ends with weights of ([\d.]+)$", output, re.M))
    assert len(losses) == 10 and losses[-1] < 0.7 * losses[0], output
    assert set(weights) == {"0", "1"} and weights["0"] == weights["1"], output
    return losses


def main(build):
    program = (EXAMPLE / "main.cpp").read_text()
    assert len(program.splitlines()) <= 60
    with tempfile.TemporaryDirectory() as temporary:
        prefix, made = (pathlib.Path(temporary) / name for name in ("prefix", "build"))
        run("cmake", "--install", build, "--prefix", prefix)
        run("cmake", "-G", "Ninja", "-S", EXAMPLE, "-B", made,
            f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Release")  # fmt: skip
        run("cmake", "--build", made)
        for launcher in ("torchrun", "mpirun"):
            result = launch.run(launcher, 2, [str(made / "ddp")], env={"OMP_NUM_THREADS": "1"})
            assert result.returncode == 0, result.stdout + result.stderr
            losses = check(result.stdout)
            print(f"{launcher}: loss {losses[0]} to {losses[-1]}, and both ranks have the same weights")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(pathlib.Path(sys.argv[1]).resolve())
