"""Whether each of tests/programs/defects can still be put back: the text that it replaces stands once in its file.

promises/edges/2-defects puts them back, builds, and lets random programs find them, which takes long; code that moves is noticed here."""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def faults():
    for file in sorted((ROOT / "tests/programs/defects").glob("*.json")):
        for edit in json.loads(file.read_text())["edits"]:
            source = ROOT / edit["file"]
            count = source.read_text().count(edit["now"]) if source.exists() else 0
            if count != 1:
                yield f"{file.relative_to(ROOT)}: {edit['file']} has {count} times, not once: {edit['now']}"


found = list(faults())
print(*found, f"{len(found)} defects that cannot be put back", sep="\n")
sys.exit(1 if found else 0)
