"""Compares what `intarsia plan`, `show` and `schedule` print with files: text, JSON and pictures. They are in tests/plan/golden,
tests/draw/golden and tests/pipeline/golden.

    golden.py PATH_OF_INTARSIA [--update]

With --update it writes them; look at the difference before you keep it.
"""

import difflib
import json
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree

PROGRAM = pathlib.Path(sys.argv[1]).resolve()
UPDATE = "--update" in sys.argv[2:]
TESTS = pathlib.Path(__file__).resolve().parents[1]
FOLDER = TESTS / "plan" / "golden"
SVG = "{http://www.w3.org/2000/svg}"


def case(mesh, shape, source, target, *others):
    return ["--mesh", mesh, "--shape", shape, "--from", source, "--to", target, *others]


CASES = {
    "shard_to_replicated": case("[dp=4]", "8,12", "S(0)", "R"),
    "fused_gather": case("[dp=2,tp=4]", "8,16", "S(0),S(1)", "R,R", "--dtype", "bf16"),
    "reduce_on_two_levels": case("[node=4,gpu=4]", "1024,4096", "P(sum),P(sum)", "R,R",
                                 "--topology", "two_levels.topology.json"),
    "swapped_axes": case("[dp=2,tp=4]", "64,64", "S(0),S(1)", "S(1),S(0)", "--dtype", "f64"),
    "uneven": case("[dp=3,tp=2]", "5,7", "S(0),R", "R,S(1)"),
    "strided": case("[dp=2,tp=2]", "16,6", "SS(0,2),R", "S(0),R", "--element-size", "2"),
    "shard_to_terms": case("[dp=2,tp=2]", "8,8", "S(0),S(1)", "P(sum),S(1)", "--dtype", "i64"),
    "within_peak_bytes": case("[dp=8]", "1024,1024", "S(0)", "S(1)", "--peak-bytes", "1200KiB"),
    "four_dimensions": case("[dp=2,tp=4]", "4,6,8,10", "S(0),S(2)", "S(0),S(1)"),
    "line_of_terms": case("[dp=4,tp=4]", "40", "P(max),S(0)", "S(0),R", "--dtype", "f16"),
    "many_ranks": case("[pp=2,dp=8,tp=8]", "4096,4096", "R,S(0),S(1)", "R,S(0),R", "--dtype", "bf16"),
    "nothing_to_do": case("[dp=2,tp=1]", "6", "S(0),R", "S(0),R"),
}  # fmt: skip


def shown(mesh, shape, layout, *others):
    return ["--mesh", mesh, "--shape", shape, "--layout", layout, *others]


SHOWN = {
    "one_dimension": shown("[dp=4]", "10", "S(0)"),
    "uneven": shown("[dp=3,tp=2]", "5,7", "S(0),S(1)", "--dtype", "bf16"),
    "strided": shown("[dp=2,tp=2]", "16,6", "SS(0,2),R"),
    "three_dimensions": shown("[cp=2,tp=2]", "4,6,8", "S(2),S(0)"),
    "more_dimensions": shown("[dp=2,tp=2]", "2,3,4,5", "S(3),R"),
    "terms": shown("[dp=2,tp=2]", "8,4", "P(sum),S(0)", "--dtype", "f64"),
    "empty_pieces": shown("[dp=4]", "2,3", "S(0)"),
    "many_ranks": shown("[dp=64,tp=8]", "4096,4096", "S(0),S(1)", "--dtype", "bf16"),
    "a_number": shown("[dp=2]", "", "R"),
}  # fmt: skip


def scheduled(kind, ranks, microbatches, *others):
    return ["--kind", kind, "--ranks", str(ranks), "--microbatches", str(microbatches), *others]


SCHEDULED = {
    "1f1b": scheduled("1f1b", 4, 6),
    "zb_v": scheduled("zb-v", 4, 6),
    "interleaved": scheduled("interleaved", 2, 4, "--gathered", "1", "--transfer", "0.25", "--costs", "1,1.5,0.5"),
    "dualpipe_v": scheduled("dualpipe-v", 3, 7, "--together", "0.8"),
    "few": scheduled("looped-bfs", 3, 1, "--blocking", "--transfer", "1"),
}


def run(command, arguments, form):
    result = subprocess.run([PROGRAM, command, *arguments, "--format", form], cwd=FOLDER, capture_output=True,
                            text=True, timeout=60)  # fmt: skip
    assert result.returncode == 0 and not result.stderr, f"{arguments}: {result.returncode}\n{result.stderr}"
    return result.stdout


def difference(path, said):
    """What is not as in the file, as text; writes the file with --update."""
    if UPDATE:
        path.write_text(said)
    known = path.read_text() if path.exists() else ""
    lines = difflib.unified_diff(known.splitlines(), said.splitlines(), str(path), "now", lineterm="")
    return "\n".join(lines)


def text_boxes(picture):
    """The rectangles that texts may take: a character is 0.6 of the font's size, more than in most fonts."""
    for text in picture.iter(f"{SVG}text"):
        x, y, size = (float(text.get(name)) for name in ("x", "y", "font-size"))
        width = 0.6 * size * len(text.text)
        begin = {"start": 0, "middle": width / 2}[text.get("text-anchor")]
        if text.get("transform") is None:
            box = (x - begin, y - 0.75 * size, x - begin + width, y + 0.15 * size)
        else:
            box = (x - 0.75 * size, y + begin - width, x + 0.15 * size, y + begin)
        yield text.text, box


def check_picture(name, svg):
    """It is well-formed, has a white ground, and no text leaves it or covers another."""
    picture = xml.etree.ElementTree.fromstring(svg)
    _, _, width, height = map(float, picture.get("viewBox").split())
    ground = picture.find(f"{SVG}rect")
    assert ground.get("fill") == "#ffffff" and float(ground.get("width")) == width
    assert not re.search(r"href|<style|<script|font-face", svg), "it needs no other file"
    for shape in picture.iter():
        for name_of_place, most in zip(("x", "y", "x1", "y1", "x2", "y2"), (width, height) * 3):
            place = float(shape.get(name_of_place, 0))
            assert 0 <= place <= most, f"{name}: {shape.tag} has {name_of_place}={place}"
    boxes = list(text_boxes(picture))
    for i, (text, (left, top, right, bottom)) in enumerate(boxes):
        assert left >= 0 and top >= 0 and right <= width and bottom <= height, f"{name}: '{text}' is cut off"
        for other, box in boxes[:i]:
            apart = right <= box[0] or box[2] <= left or bottom <= box[1] or box[3] <= top
            assert apart, f"{name}: '{text}' covers '{other}'"


def check_json(name, said):
    found = json.loads(said)
    assert list(found)[:3] == ["mesh", "ranks", "shape"] and list(found)[-2:] == ["steps", "in_all"]
    in_all = found["in_all"]
    assert in_all["collectives"] == sum(step["communicates"] for step in found["steps"])
    if in_all["missing_is_bound"]:
        assert in_all["received_bytes"] >= in_all["missing_bytes"], f"{name} receives less than the bound"
    if found["steps"]:
        assert found["steps"][0]["before"] == found["from"] and found["steps"][-1]["after"] == found["to"], name
    if found["allowed_bytes"] is not None:
        assert in_all["peak_bytes"] <= found["allowed_bytes"], f"{name} takes more memory than allowed"


def compared(command, cases, folder, forms):
    """What differs. `forms`: the endings of their files."""
    wrong = []
    for name, arguments in cases.items():
        for form, ending in forms.items():
            said = run(command, arguments, form)
            if form == "json":
                check_json(name, said)
            if form == "svg":
                check_picture(name, said)
            if form == "html":
                xml.etree.ElementTree.fromstring(said)
            wrong += filter(None, [difference(folder / f"{name}.{ending}", said)])
    known = {f"{name}.{ending}" for name in cases for ending in forms.values()}
    others = {path.name for path in folder.iterdir() if not path.name.endswith(".topology.json")} - known
    return wrong + [f"{folder / name} belongs to no case" for name in sorted(others)]


def main():
    wrong = compared("plan", CASES, FOLDER, {"text": "txt", "json": "json", "svg": "svg"})
    wrong += compared("show", SHOWN, TESTS / "draw" / "golden", {"text": "txt", "svg": "svg", "html": "html"})
    forms = {"text": "txt", "schedule": "schedule", "svg": "svg", "trace": "json"}
    wrong += compared("schedule", SCHEDULED, TESTS / "pipeline" / "golden", forms)
    print("\n".join(wrong) or f"{len(CASES)} plans, {len(SHOWN)} layouts and {len(SCHEDULED)} schedules are as stored")
    if wrong:
        sys.exit("if this is as it should be: golden.py PATH_OF_INTARSIA --update")


if __name__ == "__main__":
    main()
