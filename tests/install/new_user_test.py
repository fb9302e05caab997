"""As a new user of C++: installs the package, builds a project of one's own against it, and runs it on 2 processes.

    new_user_test.py BUILD_DIRECTORY

The losses must be the same in every form in which the modules are laid out.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[0] / "launch"))
import launch  # noqa: E402

FORMS = ("no entry", "one entry", "two entries", "three entries", "sharded")


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def main(build):
    with tempfile.TemporaryDirectory() as temporary:
        prefix, made = (pathlib.Path(temporary) / name for name in ("prefix", "build"))
        run("cmake", "--install", build, "--prefix", prefix)
        run("cmake", "-G", "Ninja", "-S", HERE / "new_user", "-B", made,
            f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Release")  # fmt: skip
        run("cmake", "--build", made)
        result = launch.run("plain", 2, [made / "new_user"], env={"OMP_NUM_THREADS": "1"}, timeout=120)
        print(result.stdout, end="")
        assert result.returncode == 0, result.stderr
    losses = dict(re.findall(r"^([a-z ]+):((?: \d+){2})$", result.stdout, re.M))
    assert set(losses) == set(FORMS) and len(set(losses.values())) == 1, result.stdout
    assert re.search(r"^layout: \[Layout", result.stdout, re.M), result.stdout
    assert re.search(r"^op: value .*aten::", result.stdout, re.M), result.stdout
    print(f"a project of one's own builds and runs: the same losses in {len(FORMS)} forms")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(pathlib.Path(sys.argv[1]).resolve())
