"""What is drawn: a trace, a bill, and who holds what. Drawings are compared with files that the docs show.

    test_pictures.py --update     writes them; look at the difference before you keep it
"""

import json
import os
import pathlib
import re
import sys
import xml.etree.ElementTree

import intarsia as it
import torch
from _harness import refuses, run
from torch import nn

ROOT = pathlib.Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "pictures"
STORED = pathlib.Path(__file__).resolve().parent / "golden" / "trace.json"
UPDATE = os.environ.get("UPDATE_PICTURES") == "1"


def is_as_stored(name, text):
    if UPDATE:
        (PICTURES / name).write_text(text)
    assert (PICTURES / name).read_text() == text, f"docs/pictures/{name} is another; UPDATE_PICTURES=1 writes it"


def stored_trace():
    found = json.loads(STORED.read_text())
    trace = it.Trace()
    trace.events, trace.steps = found["events"], [it.StepTimes(**s) for s in found["steps"]]
    return trace


def test_a_trace_is_drawn():
    picture = stored_trace().picture(step=0)
    is_as_stored("trace.svg", picture)
    drawing = xml.etree.ElementTree.fromstring(picture)
    _, _, width, height = map(float, drawing.get("viewBox").split())
    for bar in drawing.iter("{http://www.w3.org/2000/svg}rect"):
        right = float(bar.get("x", 0)) + float(bar.get("width"))
        assert 0 <= float(bar.get("x", 0)) and right <= width + 0.5 and float(bar.get("y", 0)) < height
    assert picture.count("rank ") == 4 and "<title>intarsia::wait" in picture


def test_odd_traces_are_drawn():
    xml.etree.ElementTree.fromstring(it.Trace().picture())
    refuses(ValueError, "there is no step 3; the trace has 1", lambda: stored_trace().picture(step=3))


def bill_of_a_step():
    with it.lockstep("[dp=2,tp=2]"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(64, 16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 64, bias=False))
        it.parallelize(model, it.mesh(), {"1.*": "R,S(0)", "3.weight": "R,S(1)"})
        tokens = it.distribute(torch.randint(64, (8, 5)), "S(0),R")
        it.clear_bill()
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        it.clip_grad_norm_(list(model.parameters()), 1.0)
        return it.bill()


def test_a_bill_is_a_page_and_data():
    bill = bill_of_a_step()
    page = bill.to_html("A step of training on [dp=2,tp=2]")
    is_as_stored("bill.html", page)
    xml.etree.ElementTree.fromstring(page.split("\n", 1)[1].replace('<meta charset="utf-8">', ""))
    data = json.loads(bill.to_json())
    assert [e["op"] for e in data["entries"]] == [e.op for e in bill.entries]
    assert data["bytes"] == bill.bytes() == sum(e["bytes"] for e in data["entries"])
    assert data["calls"] == bill.calls() >= data["count"] == bill.count() > 3
    assert all(f"<td>{e.op}</td>" in page for e in bill.entries)
    assert "<title>a &lt;b&gt;</title>" in bill.to_html("a <b>")


def test_show_draws_tensors():
    with it.lockstep("[dp=2]"):
        x = it.distribute(torch.arange(10.0).view(5, 2), "S(0)")
        shown = it.show(x)
        assert isinstance(shown, str) and repr(shown) == str(shown) and "rank 1 holds [3,5)" in shown
        assert shown.picture("text") == it.TensorType.parse("f32[5@dp, 2]", it.Mesh("[dp=2]")).picture()
        assert shown._repr_html_() == shown.picture("html") and shown.picture().startswith("<svg")
        refuses(ValueError, "the format is text, svg or html, not 'png'", lambda: shown.picture("png"))
    plain = it.show(torch.ones(2))
    assert plain._repr_html_() is None and "plain" in plain
    refuses(ValueError, "[show] f32[2] plain has no layout to draw", plain.picture)


def test_every_way_to_lay_out_is_drawn():
    mesh = it.Mesh("[a=2,b=3]")
    placements = ["R", "S(0)", "S(1)", "S(2)", "SS(0,2)", "P(sum)", "P(max)"]
    for first in placements:
        for second in placements:
            if {first, second} in ({"P(sum)", "P(max)"}, {"SS(0,2)", "S(0)"}):
                continue
            for shape in ((7, 4, 5), (1, 0, 9), (2, 2, 2)):
                kind = it.TensorType(it.DType.f32, shape, it.Layout.parse(f"{first},{second}", mesh))
                text, html = kind.picture(), kind.picture("html")
                xml.etree.ElementTree.fromstring(html)
                assert text.startswith(f"{kind} on {mesh}") and len(re.findall("<tr>", html)) == 7
                # Every rank that holds something is in the text.
                held = [r for r in range(6) if html.split("</tr>")[r + 1].count("nothing") == 0]
                seen = set()
                for word in re.findall(r"(\d+)(?:-(\d+))?", "".join(re.findall(r"^ +(\|.*)$", text, re.MULTILINE))):
                    seen |= set(range(int(word[0]), int(word[1] or word[0]) + 1))
                assert seen == set(held), (kind, held, seen, text)


if __name__ == "__main__":
    if "--update" in sys.argv:
        sys.argv.remove("--update")
        os.environ["UPDATE_PICTURES"] = "1"
        UPDATE = True
    run(globals())
