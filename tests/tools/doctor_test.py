"""Checks `intarsia doctor`: what it finds, how it says so, and that docs/cli.md shows its help.

    doctor_test.py PATH_OF_INTARSIA PATH_OF_CLI_MD
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile

PROGRAM = pathlib.Path(sys.argv[1]).resolve()
PAGE = pathlib.Path(sys.argv[2])

# What the caller may need for the programs to start at all; none of it describes a job.
KEPT = ("LD_LIBRARY_PATH", "ASAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS")


def run(*arguments, program=PROGRAM, **variables):
    environment = {name: os.environ[name] for name in KEPT if name in os.environ} | variables
    return subprocess.run([program, *arguments], env=environment, capture_output=True, text=True, timeout=60)


def doctor(program=PROGRAM, **variables):
    """The exit code, and the checks by name."""
    result = run("doctor", "--json", program=program, **variables)
    assert not result.stderr, result.stderr
    return result.returncode, {check["name"]: check for check in json.loads(result.stdout)["checks"]}


def job(rank, port):
    return {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


@contextlib.contextmanager
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def free_port():
    with listener() as port:
        return port


def test_a_clean_run_passes():
    code, checks = doctor()
    assert code == 0, checks
    assert list(checks) == ["torch", "backends", "gloo", "in_process", "network", "rendezvous", "clock",
                            "open_files", "locked_memory", "shared_memory", "cores", "memory"]
    for check in checks.values():
        assert check["found"]
        assert ("what_to_do" in check) == (check["status"] != "ok"), check
    assert checks["gloo"]["status"] == checks["in_process"]["status"] == "ok"
    assert "gloo: yes" in checks["backends"]["found"]


def test_text_has_a_line_per_check_and_a_summary():
    result = run("doctor", GLOO_SOCKET_IFNAME="nosuch0")
    *lines, summary = result.stdout.splitlines()
    found = [line for line in lines if re.match(r"(ok|warn|fail) +\w+ +\S", line)]
    remedies = [line for line in lines if re.match(r" +-> \S", line)]
    warnings, failures = (sum(line.startswith(word) for line in found) for word in ("warn", "fail"))
    assert len(found) == 12 and len(remedies) == warnings + failures and failures == 1, result.stdout
    assert summary == f"{12 - warnings - 1} ok, {warnings} warnings, 1 failed"
    assert result.returncode == 1


def test_incomplete_variables_fail_and_are_named():
    code, checks = doctor(RANK="1")
    assert code == 1 and checks["rendezvous"]["status"] == "fail"
    assert "WORLD_SIZE is not set" in checks["rendezvous"]["found"]
    assert "WORLD_SIZE" in run("doctor", RANK="1").stdout


def test_an_interface_that_does_not_exist_fails():
    code, checks = doctor(GLOO_SOCKET_IFNAME="nosuch0")
    assert code == 1 and checks["network"]["status"] == "fail"
    assert "GLOO_SOCKET_IFNAME=nosuch0" in checks["network"]["found"]
    assert "does not exist" in checks["network"]["found"]
    assert checks["gloo"]["status"] == "ok", "one cause, one failure"


def test_an_interface_that_is_up_is_used():
    code, checks = doctor(GLOO_SOCKET_IFNAME="lo")
    assert code == 0 and "Gloo uses lo because of GLOO_SOCKET_IFNAME" in checks["network"]["found"]


def test_rank_0_needs_a_free_port():
    code, checks = doctor(**job(0, free_port()))
    assert code == 0 and "the port is free" in checks["rendezvous"]["found"]
    with listener() as port:
        code, checks = doctor(**job(0, port))
        assert code == 1 and f"cannot listen on port {port}" in checks["rendezvous"]["found"]
        assert "MASTER_PORT" in checks["rendezvous"]["what_to_do"]


def test_other_ranks_look_for_the_store():
    with listener() as port:
        code, checks = doctor(**job(1, port))
        assert code == 0 and "the store answers" in checks["rendezvous"]["found"]
        assert "Gloo uses loopback" in checks["network"]["found"]
    code, checks = doctor(**job(1, free_port()))
    assert code == 0 and checks["rendezvous"]["status"] == "warn", "rank 0 may not have started yet"
    assert "rank 0 has not started" in checks["rendezvous"]["what_to_do"]


def test_a_missing_probe_fails_with_a_hint():
    with tempfile.TemporaryDirectory() as folder:
        alone = shutil.copy(PROGRAM, folder)
        code, checks = doctor(program=alone)
        assert code == 1 and checks["torch"]["status"] == "fail"
        assert f"{folder}/intarsia-probe" in checks["torch"]["found"]
        assert "INTARSIA_TORCH=ON" in checks["torch"]["what_to_do"]
        assert "gloo" not in checks, "nothing is known about it"


def test_a_library_that_cannot_be_loaded_fails_with_the_loaders_message():
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "libintarsia.so.0").touch()
        code, checks = doctor(LD_LIBRARY_PATH=folder)
        assert code == 1 and checks["torch"]["status"] == "fail"
        assert "libintarsia.so.0: file too short" in checks["torch"]["found"], checks["torch"]
        assert "LD_LIBRARY_PATH" in checks["torch"]["what_to_do"]
        assert "rpath" in checks["torch"]["what_to_do"] and "rebuild" in checks["torch"]["what_to_do"]


def test_a_probe_that_talks_nonsense_fails():
    with tempfile.TemporaryDirectory() as folder:
        program = shutil.copy(PROGRAM, folder)
        probe = pathlib.Path(folder, "intarsia-probe")
        for body, problem in (("echo '{}'", "cannot be read"), ("kill -9 $$", "ended by signal 9")):
            probe.write_text(f"#!/bin/sh\n{body}\n")
            probe.chmod(0o755)
            code, checks = doctor(program=program)
            assert code == 1 and problem in checks["torch"]["found"], checks["torch"]


def test_wrong_arguments_and_version():
    assert run("doctor", "--nonsense").returncode == 2
    assert run().returncode == 2
    assert re.fullmatch(r"intarsia \d+\.\d+\.\d+\n", run("--version").stdout)


def test_the_page_shows_the_help():
    shown = re.search(r"<!-- the output of: intarsia doctor --help -->\n```text\n(.*?)```", PAGE.read_text(), re.S)
    assert shown, f"{PAGE} has no block for the help"
    help_text = run("doctor", "--help").stdout
    assert shown[1].strip() == help_text.strip(), f"copy this into {PAGE}:\n{help_text}"


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            print(name, flush=True)
            test()
