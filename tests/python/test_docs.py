"""The programs of docs/python.md and docs/data_parallel.md run on two ranks."""

import pathlib
import re
import sys
import tempfile

from _harness import HERE, launch, run

PAGE = HERE.parents[1] / "docs" / "python.md"


def test_first_program():
    program = re.search(r"```python\n(import torch\n.*?)```", PAGE.read_text(), re.DOTALL).group(1)
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "first.py"
        file.write_text("import torch\ntorch.manual_seed(0)\n" + program)
        result = launch.run("plain", 2, [sys.executable, file], env={"OMP_NUM_THREADS": "1"}, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("distributed f32[4@dp, 8] on [dp=2]") == 2, result.stdout


def test_data_parallel():
    page = HERE.parents[1] / "docs" / "data_parallel.md"
    program = re.search(r"```python\n(import torch\n.*?)```", page.read_text(), re.DOTALL).group(1)
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "train.py"
        file.write_text(program)
        result = launch.run("plain", 2, [sys.executable, file], env={"OMP_NUM_THREADS": "1"}, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("4 moves, 5200 bytes: 4 P->R") == 2, result.stdout


if __name__ == "__main__":
    run(globals())
