"""How much memory a load needs beyond the tensors that it fills.

    load_memory.py FOLDER MIB

A state of MIB MiB, saved by rows, is loaded by columns and by rows. Each rank prints the mebibytes by which its memory grew at most,
with hashes compared."""

import ctypes
import pathlib
import re
import sys

import intarsia as it
import torch


def memory(field):
    return int(re.search(rf"^{field}:\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text(), re.M)[1]) / 1024


def main(folder, mebibytes):
    it.init("[x=2]")
    rows = mebibytes * 1024 // 16 // 4
    state = {f"w{i}": it.ones([rows, 1024], "S(0)") * i for i in range(16)}
    it.save_checkpoint(folder, 0, state)
    most = 0.0
    for layout in ("S(1)", "S(0)"):
        into = {name: it.ones([rows, 1024], layout) for name in state}  # its pages are there
        it.load_checkpoint(folder, {"w0": into["w0"]}, strict=False)  # what is made once
        ctypes.CDLL(None).malloc_trim(0)  # what was freed does not hide what is taken
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = memory("VmRSS")
        it.load_checkpoint(folder, into)
        most = max(most, memory("VmHWM") - before)
        assert all(bool((it.local(t) == i).all()) for i, t in enumerate(into.values()))
    print(f"{most:.1f}\n", end="", flush=True)  # in one write: ranks share the pipe


main(sys.argv[1], int(sys.argv[2]))
