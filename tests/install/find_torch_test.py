"""Which libtorch a build takes, and what CMake says to one that was not tested or is not there.

    find_torch_test.py

Each case configures a project of two lines; nothing is compiled. Foreign versions are folders with a version header alone.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROJECT = """cmake_minimum_required(VERSION 3.25)
project(finds LANGUAGES NONE)
list(APPEND CMAKE_MODULE_PATH {root}/cmake)
set(INTARSIA_TESTED_TORCH 2.13 2.15)
set(intarsia_tested "2.13, 2.15")
include({module})
get_target_property(definitions torch INTERFACE_COMPILE_DEFINITIONS)
message(STATUS "found ${{INTARSIA_TORCH_VERSION}} in ${{INTARSIA_TORCH_FOLDER}} with ${{definitions}}")
"""


def configure(folder, module, *options):
    """What CMake says; whether it configured."""
    source = folder / "source"
    source.mkdir(exist_ok=True)
    (source / "CMakeLists.txt").write_text(PROJECT.format(root=ROOT, module=module))
    with tempfile.TemporaryDirectory() as build:
        done = subprocess.run(["cmake", "-S", source, "-B", build, f"-DPython3_EXECUTABLE={sys.executable}", *options],
                              capture_output=True, text=True, timeout=120)  # fmt: skip
    return re.sub(r"\s+", " ", done.stdout + done.stderr), done.returncode == 0


def libtorch(folder, version, *libraries):
    """A folder that looks like that libtorch."""
    names = zip(("MAJOR", "MINOR", "PATCH"), version.split("."))
    lines = [f"#define TORCH_VERSION_{name} {number}" for name, number in names]
    for path, text in {
        "include/torch/headeronly/version.h": "\n".join(lines) + "\n",
        "share/cmake/Torch/TorchConfig.cmake": "add_library(torch INTERFACE IMPORTED)\nset(BY_PACKAGE TRUE)\n",
        **{f"lib/{library}.so": "" for library in libraries},
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def main():
    with tempfile.TemporaryDirectory() as temporary:
        temporary = pathlib.Path(temporary)
        here = torch.__version__.split("+")[0]
        said, done = configure(temporary, "IntarsiaFindTorch")
        assert done and f"found {here} in {pathlib.Path(torch.__file__).parent} with USE_DISTRIBUTED" in said, said

        cpu = libtorch(temporary / "cpu", "2.15.1", "libtorch")
        for named in (f"-DCMAKE_PREFIX_PATH={cpu}", f"-DCMAKE_PREFIX_PATH={cpu}/share/cmake", f"-DTorch_DIR={cpu}/share/cmake/Torch"):
            said, done = configure(temporary, "IntarsiaFindTorch", named)
            assert done and f"found 2.15.1 in {cpu} with definitions-NOTFOUND" in said, said  # by that package's own file

        cuda = libtorch(temporary / "cuda", "2.15.1", "libtorch", "libtorch_cuda")
        without = "-DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON"
        said, done = configure(temporary, "IntarsiaFindTorch", f"-DCMAKE_PREFIX_PATH={cuda}", without)
        assert done and "there is no CUDA toolkit" in said and "USE_C10D_NCCL" in said, said

        new = libtorch(temporary / "new", "2.99.0", "libtorch")
        said, done = configure(temporary, "IntarsiaTorch", f"-DCMAKE_PREFIX_PATH={new}")
        assert done and "tested with torch 2.13, 2.15, and this is 2.99.0" in said and "run the tests" in said, said
        said, done = configure(temporary, "IntarsiaTorch", f"-DCMAKE_PREFIX_PATH={cpu}")
        assert done and "was tested with" not in said, said

        said, done = configure(temporary, "IntarsiaFindTorch", "-DCMAKE_DISABLE_FIND_PACKAGE_Python3=ON")
        assert not done and "no libtorch was found" in said and "pip install torch" in said, said
    print("libtorch is found in Python's package, by its own CMake package, and without a toolkit; others are told of")


if __name__ == "__main__":
    main()
