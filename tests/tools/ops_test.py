"""Checks `intarsia ops`: what it lists, what it proves, and that docs/cli.md shows its help.

    ops_test.py PATH_OF_INTARSIA PATH_OF_CLI_MD PATH_OF_USER_OP_LIBRARY
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

PROGRAM = pathlib.Path(sys.argv[1]).resolve()
PAGE = pathlib.Path(sys.argv[2])
LIBRARY = pathlib.Path(sys.argv[3]).resolve()

MM = "aten::mm(f64[2, 1], f64[1, 2]) with S(0); R on [a=2]"
MINE = "mylib::scaled_mm(f64[3, 4], f64[4, 2], 0.5)"


def ops(*arguments, program=PROGRAM, code=0, **variables):
    """What `intarsia ops` printed, after checking its exit code."""
    result = subprocess.run(
        [program, "ops", *arguments], env=os.environ | variables, capture_output=True, text=True, timeout=280
    )
    said = result.stdout + result.stderr
    assert code is None or result.returncode == code, f"{arguments}: exit code {result.returncode}\n{said}"
    return said


def test_the_list_has_rows():
    lines = {line.split()[0]: line for line in ops().splitlines()}
    assert re.match(r"mm +rule  S\(0\),R -> S\(0\); .*R,S\(1\) -> S\(1\)", lines["mm"]), lines["mm"]
    assert "S(1),S(0) -> P(sum)" in lines["mm"] and "  in aten::mm(f64[" in lines["mm"]
    for op, how in (("add", "pointwise"), ("transpose", "view"), ("zeros_like", "like"), ("uniform_", "random"),
                    ("_foreach_add", "each"), ("resize_", "refused"), ("nonzero", "no rule")):  # fmt: skip
        assert re.match(rf"{op} +{how}\b", lines[op]), lines[op]
    assert "matmul" not in lines, "ATen takes it apart"


def test_the_list_can_be_narrowed():
    assert {line.split()[1] for line in ops("--how", "random").splitlines()} == {"random"}
    ops("--how", "nonsense", code=2)


def test_one_op_in_detail():
    for name in ("sum", "aten::sum", "aten::sum.dim_IntList"):
        said = ops(name)
        assert said.startswith("sum: rule\n") and "aten::sum.dim_IntList(Tensor self, int[1]? dim" in said
        assert "With out=: yes" in said and "    S(0) -> P(sum)\n" in said
        assert "Prove it: intarsia ops check sum" in said
    assert "In place: yes" in ops("add_")


def test_an_unknown_op_names_the_way_out():
    for arguments in (["mmm"], ["check", "mmm"]):
        said = ops(*arguments, code=2)
        assert "there is no op 'mmm'" in said and "mm" in said.split("similar are")[1]
        assert "`intarsia ops` lists all, and --library loads yours" in said
    said = ops("check", "nonzero", code=2)
    assert "there are no samples of nonzero; give yours: --sample 'nonzero(" in said, said


def test_a_right_rule_holds():
    said = ops("check", "mm", "--quick")
    assert re.match(r"mm: \d+ samples, \d+ cases, \d+ with gradients: holds\n", said), said
    assert " 0 with gradients: holds" in ops("check", "aten::mm", "--quick", "--no-backward")


def test_own_samples():
    said = ops("check", "sum", "--sample", "sum(f64[4, 2])", "--sample", "sum.dim_IntList(f64[3], [0])", "--quick")
    assert said.startswith("sum: 2 samples"), said
    assert ops("check", "--sample", "aten::mm(f64[3, 2], f64[2, 2])", "--quick").startswith("aten::mm: 1 samples")
    assert "expected" in ops("check", "--sample", "mm(f64[3, 2", code=2)
    assert "op itself refuses" in ops("check", "--sample", "mm(f64[3, 2], f64[3, 2])", code=2)


def test_cases_run_again():
    assert ops("check", "--case", MM) == f"holds: {MM}\n"
    assert ops("check", "--case", MM, "--case", MM).count("holds") == 2
    for broken in ("mm(f64[2, 1], f64[1, 2])", "mm(f64[2", "nonsense", f"{MM}]"):
        assert "intarsia: [" in ops("check", "--case", broken, code=2)


def test_wrong_arguments():
    for arguments in (["check"], ["--nonsense"], ["check", "mm", "--share", "3/2"], ["check", "mm", "--share", "1"],
                      ["check", "mm", "--jobs", "0"], ["check", "all", "--sample", "mm(f64[1, 1], f64[1, 1])"],
                      ["--library", "/nonsense.so"]):  # fmt: skip
        ops(*arguments, code=2)


def test_a_users_op():
    mine = ["--library", LIBRARY]
    assert "\nmylib::scaled_mm  rule\n" in ops("--how", "rule", *mine)
    assert ops("mylib::scaled_mm", *mine).startswith("mylib::scaled_mm: rule\n")
    said = ops("check", "mylib::scaled_mm", "--sample", MINE, *mine)
    assert "mylib::scaled_mm: 1 samples" in said and "holds" in said, said
    assert "no op 'mylib::scaled_mm'" in ops("check", "mylib::scaled_mm", code=2)
    assert "give yours: --sample 'mylib::scaled_mm(" in ops("check", "mylib::scaled_mm", *mine, code=2)


def test_a_users_wrong_rule_is_caught():
    said = ops("check", "mylib::scaled_mm", "--sample", MINE, "--library", LIBRARY, code=1, USER_OP_WRONG="1")
    assert "WRONG" in said
    case = re.search(r"  wrong: (mylib::scaled_mm\(.*)\n", said)[1]
    assert re.search(r"with (S\(1\); R|R; S\(0\)|S\(1\); S\(0\)) on \[a=2\]$", case), case
    said = ops("check", "--case", case, "--library", LIBRARY, code=1, USER_OP_WRONG="1")
    assert said.startswith(f"WRONG: {case}\n")
    ops("check", "--case", case, "--library", LIBRARY)


def test_a_users_op_without_a_rule_has_missing_rows():
    said = ops("check", "--sample", "mylib::halved(f64[4, 6])", "--library", LIBRARY)
    assert "  missing: S(0) -> S(0)   in mylib::halved(f64[4, 6])" in said, said


def test_a_share_of_all_with_a_report():
    with tempfile.TemporaryDirectory() as folder:
        report, missing = (pathlib.Path(folder, name) for name in ("report.json", "missing.json"))
        missing.write_text('{"aten::mine": {"S(0) -> S(0)": "aten::mine(f64[2])"}}')
        said = ops("check", "all", "--quick", "--no-backward", "--share", "7/400", "--jobs", "2",
                   "--report", report, "--update-missing", missing, code=None)  # fmt: skip
        *lines, summary = said.splitlines()
        found = json.loads(report.read_text())
        assert len(found["ops"]) == found["summary"]["ops"] > 1
        assert summary == ", ".join(f"{count} {what}" for what, count in found["summary"].items())
        assert [o["op"] for o in found["ops"]] == sorted(o["op"] for o in found["ops"])
        for op in found["ops"]:
            assert any(op["op"] in line for line in lines) and op["samples"] >= 1
        rows = json.loads(missing.read_text())
        assert "aten::mine" in rows, "ops that were not proven keep theirs"
        assert sum(map(len, rows.values())) - 1 == found["summary"]["missing"]


def test_shares_are_all_samples():
    def samples(*share):
        return int(re.match(r"mm: (\d+) samples", ops("check", "mm", "--no-missing", "--no-backward", *share))[1])

    assert sum(samples("--share", f"{i}/3") for i in (1, 2, 3)) == samples()


def test_the_program_it_runs_may_be_missing():
    with tempfile.TemporaryDirectory() as folder:
        alone = shutil.copy(PROGRAM, folder)
        said = ops("check", "mm", program=alone, code=1)
        assert f"{folder}/intarsia-ops" in said and "INTARSIA_TORCH=ON" in said
        pathlib.Path(folder, "intarsia-ops").write_text('#!/bin/sh\necho "$@"; exit 7\n')
        pathlib.Path(folder, "intarsia-ops").chmod(0o755)
        words = ["check", "--help", "-h", "mm", "--case", "a b; c", "--jobs=3"]
        assert ops(*words, program=alone, code=7) == " ".join(words) + "\n"
        assert ops("--help", program=alone, code=7) == "--help\n"


def test_the_page_shows_the_help():
    for words in (["--help"], ["check", "--help"]):
        command = " ".join(["intarsia ops", *words])
        shown = re.search(rf"<!-- the output of: {command} -->\n```text\n(.*?)```", PAGE.read_text(), re.S)
        assert shown, f"{PAGE} has no block for {command}"
        said = ops(*words)
        assert shown[1].strip() == said.strip(), f"copy this into {PAGE}:\n{said}"


if __name__ == "__main__":
    wanted = sys.argv[4:]
    for name, test in list(globals().items()):
        if name.startswith("test_") and (not wanted or name in wanted):
            print(name, flush=True)
            test()
