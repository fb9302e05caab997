"""Checks `intarsia calibrate`: the file it writes, how near its figures are, and that docs/cli.md shows its help.

    calibrate_test.py PATH_OF_INTARSIA PATH_OF_CLI_MD
"""

import functools
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile

PROGRAM = pathlib.Path(sys.argv[1]).resolve()
PAGE = pathlib.Path(sys.argv[2])
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
import launch  # noqa: E402

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20}
ROW = re.compile(r"^  (\w+) +(\d+) +([\d.]+) (\w+) +([\d.]+) us +([\d.]+) us +[+-]\d+%$", re.M)
FACTOR = 3  # machines are noisy
ATTEMPTS = 3


def calibrate(n, *arguments, code=0):
    """What one run wrote, as JSON, and what it said."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "topology.json")
        command = [PROGRAM, "calibrate", "--out", path, *arguments]
        done = launch.run("plain", n, command, env={"INTARSIA_TOPOLOGY": str(path)}, timeout=120)
        said = done.stdout + done.stderr
        assert done.returncode == code, f"{arguments}: exit code {done.returncode}\n{said}"
        assert os.listdir(folder) == (["topology.json"] if code == 0 else []), said
        return json.loads(path.read_text()) if code == 0 else None, said


@functools.cache
def quick(n, *arguments):
    return calibrate(n, "--quick", *arguments)


def rows(said):
    """Group size, bytes and seconds of each all_to_all that was measured."""
    return [(int(n), float(size) * UNITS[unit], float(us) / 1e6)
            for kind, n, size, unit, us, _ in ROW.findall(said) if kind == "all_to_all"]  # fmt: skip


def check_link(link, copy):
    """What holds however noisy the times were; how near they are is the timed test's."""
    assert 0 <= link["overhead_us"] < math.inf and 0 <= link["latency_us"] < math.inf, link
    assert 0 < link["gigabytes_per_s"] <= copy, link


def check(topology, levels):
    assert [(x["name"], x["ranks"]) for x in topology["levels"]] == levels, topology
    for link in topology["levels"] + topology.get("axes", []):
        check_link(link, topology["copy_gigabytes_per_s"])
    for figure in (topology["copy_gigabytes_per_s"], topology["gigaflops"], *topology["relative"].values()):
        assert 0 < figure < math.inf, topology
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(json.dumps(topology))
        file.flush()
        plan = [PROGRAM, "plan", "--mesh", "dp=2,tp=2", "--shape", "64,64", "--from", "S(0),R", "--to", "R,S(1)"]
        said = subprocess.run([*plan, "--topology", file.name], capture_output=True, text=True, timeout=60)
        assert said.returncode == 0 and f"by {file.name}" in said.stdout, said


def test_two_processes():
    topology, said = quick(2)
    check(topology, [("all", 0)])
    assert topology["levels"][0]["latency_us"] == 0, "with one message in all it cannot be told from the overhead"
    assert said.startswith("2 ranks on cpu, float32; medians of 7 repeats, each by its slowest rank\n"), said
    assert "the fit is off by at most " in said and said.rstrip().split("\n")[-1].startswith("written to "), said
    assert [size for _, size, _ in rows(said)] == [2**14, 2**16, 2**18, 2**20, 2**22], said


def test_what_computing_costs():
    compute = quick(2)[0]["compute"]
    for name in ("products", "memory", "attention", "attention_backward"):
        assert len(compute[name]) >= 3 and all(size > 0 and figure > 0 for size, figure in compute[name]), compute
        sizes = [size for size, _ in compute[name]]
        assert sizes == sorted(sizes), compute
    assert compute["call_us"] > 0 and 0 <= compute["hides"] <= 1 and compute["skew"] >= 0, compute
    assert all(time > 0 for time in compute["ns_per_element"].values()) and "gelu" in compute["ns_per_element"], compute
    assert {(c["name"], c["ranks"]) for c in compute["collectives"]} >= {("all_reduce", 2), ("all_to_all", 2)}, compute


def test_levels_of_four_processes():
    topology, said = quick(4, "--node-ranks", "2")
    check(topology, [("node", 2), ("all", 0)])
    assert {n for n, _, _ in rows(said.partition("level all")[2])} == {2, 4}, "group sizes tell messages apart"


def test_axes_of_a_mesh():
    topology, said = calibrate(4, "--quick", "--mesh", "dp=2,tp=2", "--sizes", "16KiB..1MiB", "--repeats", "3")
    check(topology, [("all", 0)])
    assert [entry["axes"] for entry in topology["axes"]] == [["dp"], ["tp"], ["dp", "tp"]], topology
    assert "one_partner" in said.partition("axes dp+tp")[2], said


def timed_test_of_the_fit():
    """A fit of one run against the times of another, for the two largest sizes."""
    for attempt in range(ATTEMPTS):
        link = calibrate(2, "--quick")[0]["levels"][0]
        ratios = []
        for n, size, seconds in rows(calibrate(2, "--quick")[1])[-2:]:
            received = size * (n - 1) / n
            fitted = (link["overhead_us"] + (n - 1) * link["latency_us"]) / 1e6
            ratios.append((fitted + received / link["gigabytes_per_s"] / 1e9) / seconds)
        print("  fitted over measured:", *(f"{ratio:.2f}" for ratio in ratios))
        if all(1 / FACTOR < ratio < FACTOR for ratio in ratios):
            return
    raise AssertionError(f"in {ATTEMPTS} attempts, no fit was within a factor of {FACTOR}")


def test_one_process_has_nothing_to_measure():
    _, said = calibrate(1, code=1)
    assert "there is one process, and nothing to measure; start several: torchrun --nproc-per-node 2" in said, said


def test_a_file_that_cannot_be_written():
    done = launch.run("plain", 2, [PROGRAM, "calibrate", "--quick", "--out", "/nowhere/topology.json"])
    assert done.returncode == 1 and done.stderr.count("cannot write /nowhere/topology.json") == 1, done


def test_wrong_arguments():
    for words, expected in (
        (["--node-ranks", "3"], "there is no level of 3 ranks in a job of 4; possible are 2"),
        (["--levels", "2,3"], "there is no level of 3 ranks in a job of 4 above one of 2; leave it out"),
        (["--levels", "4,2"], "there is no level of 4 ranks in a job of 4; possible are 2"),
        (["--levels", "2", "--node-ranks", "2"], "excludes"),
        (["--mesh", "dp=3"], "the mesh [dp=3] has 3 ranks up to 2, and this job 4"),
        (["--sizes", "1MiB..4KiB"], "such as 4KiB..16MiB"),
        (["--sizes", "4K..16K"], "expected KiB, MiB, GiB or nothing"),
        (["--repeats", "0"], "not in range"),
        (["--nonsense"], "--nonsense"),
    ):
        assert expected in calibrate(4, *words, code=2)[1], words


def test_the_page_shows_the_help():
    command = "intarsia calibrate --help"
    shown = re.search(rf"<!-- the output of: {command} -->\n```text\n(.*?)```", PAGE.read_text(), re.S)
    assert shown, f"{PAGE} has no block for {command}"
    said = subprocess.run([PROGRAM, "calibrate", "--help"], capture_output=True, text=True, timeout=60).stdout
    assert shown[1].strip() == said.strip(), f"copy this into {PAGE}:\n{said}"


if __name__ == "__main__":
    wanted = sys.argv[3:]
    for name, test in list(globals().items()):
        if name in wanted or (name.startswith("test_") and not wanted):
            print(name, flush=True)
            test()
