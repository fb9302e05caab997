"""Installs the package, builds examples/first as a foreign CMake project, and runs it.

    install_test.py BUILD_DIRECTORY

The installed programs must run too. Prints what each run said; exits with 0 only if all of it worked.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "launch"))
import launch  # noqa: E402


def run(*command, **options):
    subprocess.run([str(c) for c in command], check=True, timeout=600, **options)


def check_programs(prefix):
    """Each program of the package finds its library and libtorch, with nothing in the environment to help."""
    bare = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    intarsia = prefix / "bin" / "intarsia"
    expected = {"ops": r"^mm  rule  ", "plan --help": r"^Usage: intarsia plan", "doctor": r"^ok +torch ",
                "calibrate --help": r"^Usage: intarsia calibrate"}  # fmt: skip
    for command, line in expected.items():
        result = subprocess.run([intarsia, *command.split()], env=bare, capture_output=True, text=True, timeout=120)
        assert re.search(line, result.stdout, re.M), f"intarsia {command}: {result.stdout[:500]}{result.stderr}"
    print("the installed programs run: ops, plan, calibrate, doctor")


def build_with_pkg_config(prefix, program):
    """As one builds who does not use CMake."""
    (pc,) = prefix.rglob("intarsia.pc")
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "intarsia"], check=True, capture_output=True, text=True,
                           env=os.environ | {"PKG_CONFIG_PATH": str(pc.parent)}).stdout  # fmt: skip
    (source,) = (prefix / "share/doc").glob("*/examples/first/main.cpp")
    run("g++", "-o", program, source, *flags.split())
    assert list((prefix / "share/doc").glob("*/LICENSE"))


def main(build):
    with tempfile.TemporaryDirectory() as temporary:
        temporary = pathlib.Path(temporary)
        prefix, project, foreign = (temporary / name for name in ("prefix", "project", "foreign"))
        quiet = {"stdout": subprocess.DEVNULL}
        run("cmake", "--install", build, "--prefix", prefix, **quiet)
        check_programs(prefix)
        shutil.copytree(ROOT / "examples" / "first", project)
        run("cmake", "-G", "Ninja", "-S", project, "-B", foreign,
            f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Release", **quiet)  # fmt: skip
        run("cmake", "--build", foreign, **quiet)
        program = str(foreign / "first")

        alone = subprocess.run([program], check=True, timeout=60, capture_output=True, text=True)
        print(alone.stdout, end="")
        assert "rank 0 of 1" in alone.stdout, alone.stdout
        build_with_pkg_config(prefix, temporary / "by_hand")
        done = subprocess.run([temporary / "by_hand"], check=True, timeout=60, capture_output=True, text=True)
        assert done.stdout == alone.stdout, done.stdout
        for launcher in ("plain", "torchrun"):
            result = launch.run(launcher, 3, [program], env={"OMP_NUM_THREADS": "1"})
            print(f"{launcher}:\n{result.stdout}", end="")
            assert result.returncode == 0, result.stderr
            for rank in range(3):
                assert f"rank {rank} of 3" in result.stdout, result.stdout
    print("the foreign project was built and ran: alone, plainly and under torchrun; with pkg-config too")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(pathlib.Path(sys.argv[1]).resolve())
