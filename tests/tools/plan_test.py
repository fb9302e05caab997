"""Checks `intarsia plan`, `schedule` and `show`: arguments, what they refuse, and that the pages show what they print.

    plan_test.py PATH_OF_INTARSIA PATH_OF_DOCS [--update]

With --update it writes what it prints into the pages. tests/plan/golden.py compares whole outputs.
"""

import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

PROGRAM = pathlib.Path(sys.argv[1]).resolve()
PAGES = [pathlib.Path(sys.argv[2], name) for name in ("cli.md", "pipeline.md", "redistribution.md")]
UPDATE = "--update" in sys.argv[3:]
TOPOLOGIES = pathlib.Path(__file__).resolve().parents[1] / "plan" / "golden"


def run(*arguments, code=0, command="plan"):
    """What it printed, after checking its exit code: answers to one stream, refusals to the other."""
    result = subprocess.run([PROGRAM, command, *arguments], cwd=TOPOLOGIES, capture_output=True, text=True, timeout=60)
    said = result.stdout + result.stderr
    assert result.returncode == code, f"{arguments}: exit code {result.returncode}\n{said}"
    assert not (result.stderr if code == 0 else result.stdout), said
    return said


def plan(*others, mesh="[dp=2,tp=4]", shape="8,12", source="S(0),R", target="R,S(1)", code=0):
    return run("--mesh", mesh, "--shape", shape, "--from", source, "--to", target, *others, code=code)


def found(*others, **arguments):
    return json.loads(plan("--format", "json", *others, **arguments))


def test_brackets_may_be_left_out():
    assert plan() == plan(mesh="dp=2,tp=4") == plan(shape="[8, 12]") == plan(target="R,S(-1)")
    assert found(mesh="[dp=2,tp=4]+8")["mesh"] == "[dp=2,tp=4]+8"
    assert found(shape="", source="R,R", target="R,P(sum)")["shape"] == []


def test_the_size_of_elements():
    for name, size in (("bool", 1), ("f8e4m3", 1), ("bf16", 2), ("i32", 4), ("c32", 4), ("i64", 8), ("c128", 16)):
        answer = found("--dtype", name)
        assert (answer["dtype"], answer["element_size"]) == (name, size)
        assert answer["in_all"]["received_bytes"] == 12 * size
    answer = found("--element-size", "3")
    assert answer["dtype"] is None and answer["in_all"]["received_bytes"] == 36
    assert "[8, 12] of 3 B each" in plan("--element-size", "3")
    assert "--dtype excludes --element-size" in plan("--dtype", "f32", "--element-size", "4", code=2)
    assert "there is no dtype 'f33'" in plan("--dtype", "f33", code=2)
    plan("--element-size", "0", code=2)


def test_a_bound_on_memory():
    cut = dict(mesh="dp=8", shape="1024,1024", source="S(0)", target="S(1)")
    for text, size in (("2000000", 2000000), ("1200KiB", 1200 << 10), ("2MiB", 2 << 20), ("1GiB", 1 << 30)):
        answer = found("--peak-bytes", text, **cut)
        assert answer["allowed_bytes"] == size and answer["in_all"]["peak_bytes"] <= size, answer
    assert found("--peak-bytes", "1200KiB", **cut)["steps"][0]["parts"] > 1
    said = plan("--peak-bytes", "100KiB", **cut, code=1)
    least = int(re.search(r"keeps under 102400 bytes; the least possible is (\d+)\n", said)[1])
    assert found("--peak-bytes", str(least), **cut)["in_all"]["peak_bytes"] <= least
    plan("--peak-bytes", str(least - 1), **cut, code=1)
    for wrong in ("8GB", "x", "-1", "99999999999GiB", "1KiB1"):
        assert "[--peak-bytes]" in plan(f"--peak-bytes={wrong}", code=2)


def test_kinds_of_partial_values_that_have_no_plan():
    said = plan(source="P(sum),R", target="P(max),R", code=1)
    assert said == (
        "intarsia: [plan] no plan leads from P(sum),R to P(max),R: along dp, partial values of P(sum) cannot become "
        "partial values of P(max); reduce them first, to R or S\n"
    )


def test_where_partial_values_are_reduced_there_is_no_bound():
    for source, target in (("P(sum),R", "R,R"), ("S(0),R", "P(sum),R"), ("P(max),S(0)", "S(0),R")):
        answer = found(source=source, target=target)["in_all"]
        assert answer["missing_is_bound"] is False and answer["ratio"] is None
        assert "lower bound  none where partial values are reduced or made" in plan(source=source, target=target)
    assert found(source="P(sum),S(0)", target="P(sum),R")["in_all"]["missing_is_bound"] is True


def test_the_topology_decides():
    partial = dict(mesh="[node=4,gpu=4]", shape="1024,4096", source="P(sum),P(sum)", target="R,R")
    flat, levels = found(**partial), found("--topology", "two_levels.topology.json", **partial)
    assert flat["topology"] is None and levels["topology"] == "two_levels.topology.json"
    assert [s["axes"] for s in levels["steps"]] == [["gpu"], ["node"], ["gpu"]]
    assert "[Topology] cannot read /nonsense" in plan("--topology", "/nonsense", code=2)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write('{"levels": [{"speed": 1}]}')
        file.flush()
        assert "a level has no 'speed'; it has name, ranks" in plan("--topology", file.name, code=2)


def test_wrong_arguments():
    for arguments, problem in (
        (dict(mesh="[dp=2"), "[Mesh::parse] cannot read"),
        (dict(shape="8,x"), "[--shape] cannot read"),
        (dict(shape="8,-1"), "negative size"),
        (dict(shape=",".join("1" * 17)), "more than 16 dimensions"),
        (dict(source="S(0)"), "has 2 axes, but 1 placements"),
        (dict(source="S(2),R"), "dimension 2 does not exist"),
        (dict(target="Q,R"), "expected a placement"),
    ):
        assert problem in plan(**arguments, code=2), plan(**arguments, code=2)
    assert "--mesh is required" in run(code=2)
    plan("--format", "png", code=2)
    plan("--nonsense", code=2)


def test_a_file_in_place_of_the_output():
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "plan.svg")
        assert plan("--format", "svg", "--out", file) == ""
        assert file.read_text() == plan("--format", "svg")
        assert f"cannot write {folder}" in plan("--out", folder, code=1)


def test_pictures_of_odd_tensors():
    for arguments in (
        dict(shape="", source="R,R", target="P(sum),R"),
        dict(shape="0,4", target="R,R"),
        dict(shape="3", target="R,S(0)"),
        dict(shape="8,2,3,4,5,6,7", source="S(3),S(6)"),
        dict(shape="4096", source="SS(0,1024),R", target="R,R"),
        dict(mesh="dp=4096,tp=16", shape="100,70000", source="S(1),S(0)", target="S(0),S(1)"),
        dict(mesh="a_long_name_of_an_axis=2,another_long_name=3,b=2", source="S(0),S(0),P(sum)",
             target="S(1),R,R", shape="1,1000000"),
    ):  # fmt: skip
        xml.etree.ElementTree.fromstring(plan("--format", "svg", **arguments))


def show(*others, mesh="[dp=2]", shape="8,12", layout="S(0)", code=0):
    return run("--mesh", mesh, "--shape", shape, "--layout", layout, *others, code=code, command="show")


def test_what_show_refuses():
    for arguments, problem in (
        (dict(mesh="[dp=2"), "[Mesh::parse] cannot read"),
        (dict(shape="8,-1"), "negative size"),
        (dict(layout="S(2)"), "dimension 2 does not exist"),
        (dict(layout="R,R"), "has 1 axes, but 2 placements"),
    ):
        assert problem in show(**arguments, code=2), show(**arguments, code=2)
    assert "there is no dtype 'f33'" in show("--dtype", "f33", code=2)
    assert "P(avg)" in show("--dtype", "i64", layout="P(avg)", code=2)
    assert "--layout is required" in run("--mesh", "dp=2", "--shape", "1", code=2, command="show")
    show("--format", "json", code=2)
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "x.html")
        assert show("--format", "html", "--out", file) == "" and file.read_text() == show("--format", "html")
        assert f"[show] cannot write {folder}" in show("--out", folder, code=1)


def checked(command, shown):
    """What stands in the page for a command, or what it prints now."""
    _, name, *words = shlex.split(command.replace("\\\n", " "))
    assert name in ("plan", "schedule", "show"), command
    result = subprocess.run([PROGRAM, name, *words], cwd=TOPOLOGIES, capture_output=True, text=True, timeout=60)
    said = result.stdout + result.stderr
    assert UPDATE or shown.strip() == said.strip(), f"run plan_test.py with --update: {command} now says\n{said}"
    return said


def the_file(path, shown):
    text = path.read_text()
    assert UPDATE or shown == text, f"run plan_test.py with --update: {path} differs from what the page shows"
    return text


def test_the_pages_show_what_it_prints():
    seen = 0
    for page in PAGES:
        text = page.read_text()
        helped = r"(<!-- the output of: (intarsia (?:plan|schedule|show) --help) -->\n```text\n)(.*?)(?=```)"
        asked = r"(```text\n\$ (intarsia (?:plan|schedule|show) (?:[^\n]*\\\n)*[^\n]*)\n)(.*?)(?=```)"
        for pattern in (helped, asked):
            text, count = re.subn(pattern, lambda m: m[1] + checked(m[2], m[3]), text, flags=re.S)
            seen += count
        files = r"(<!-- the file: \S*?([^/\s]+) -->\n```json\n)(.*?)(?=```)"
        text = re.sub(files, lambda m: m[1] + the_file(TOPOLOGIES / m[2], m[3]), text, flags=re.S)
        if UPDATE:
            page.write_text(text)
    assert seen >= 10, seen


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            print(name, flush=True)
            test()
