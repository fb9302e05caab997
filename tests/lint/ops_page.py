"""Writes docs/ops.md: the ops that have a rule, as the sources list them.

    ops_page.py --check|--update [ROOT]

--check exits with 1 where the page is not what the sources say; --update writes it.
"""

import pathlib
import re
import sys

PAGE = "docs/ops.md"
TABLE = "src/rules/table.cpp"
FAMILIES = "src/rules/families.h"
# Lists of names, and how the page speaks of them.
RANDOM = "src/tensor/random.cpp"
EACH = ("src/tensor/each.cpp", "kElementwise")
LIKE = ("src/tensor/op_info.cpp", "kLike")
REFUSED = ("src/tensor/op_info.cpp", "kRefused")

ROW = re.compile(r'\{\s*"(?P<op>\w+)",\s*(?P<family>\w+),\s*\w+\s*(?:,\s*\{(?P<options>[^{}]*(?:\{[^{}]*\}[^{}]*)*)\}\s*)?\}')
NOTE = re.compile(r"^Rows (\w+)\(const Question& q\);\s*//\s*(.+)$", re.M)

HEAD = """\
# Ops

Written by `tests/lint/ops_page.py --update` from the sources; do not edit. Names are those of ATen, without
overload. A rule also holds for the op in place (`add_`) and with `out=`.

An op of ATen that is made of others (`linear`, `matmul`, `einsum`, `cross_entropy_loss`, ...) needs no rule:
ATen takes it apart before it gets here. An op that nothing below covers runs on whole tensors: its operands are
gathered, and the bill marks the entry with `no rule`.
"""


def read(root, path):
    return (root / path).read_text()


def rules(root):
    """(op, family, form) of each row of the table."""
    text = read(root, TABLE)
    body = text[text.index("new std::vector<Rule>{") : text.index("return *rows;")]
    found = [(m["op"], m["family"], form(m["options"] or "")) for m in ROW.finditer(body)]
    named = re.findall(r'^ +\{"\w+",', body, re.M)
    assert found and len(found) == len(named), f"{TABLE}: {len(named)} rows, of which {len(found)} were understood"
    assert [op for op, *_ in found] == sorted(op for op, *_ in found), f"{TABLE}: the rows are not sorted by name"
    return found


def form(options):
    found = re.search(r"LocalForm::(\w+)", options)
    return found[1] if found else ""


def names(root, path, *lists):
    """The names in constant lists of a source."""
    text = read(root, path)
    found = set()
    for name in lists:
        values = re.search(rf"constexpr std::array<[^>]*>\s+{name}\{{([^}}]*)\}}", text)
        assert values, f"{path}: no list {name}"
        found |= set(re.findall(r'"(\w+)"', values[1]))
    return sorted(found)


def quoted(words):
    return wrapped(", ".join(f"`{word}`" for word in words) + ".")


def wrapped(text, width=110):
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) + 1 > width:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return "\n".join(lines)


def page(root):
    rows = rules(root)
    notes = dict(NOTE.findall(read(root, FAMILIES)))
    out = [HEAD, f"## Ops with a row of their own: {len(rows)}\n"]
    out.append(
        "A row is in `src/rules/table.cpp`. The family says which dimensions may be cut and what the result then is,\n"
        "in `src/rules/families*.cpp`. The form says how the op on the pieces differs from the op on the whole:\n"
        "`LocalForm` in `src/rules/rule.h`.\n"
    )
    out += ["| op | family | form |", "|---|---|---|"]
    out += [f"| `{op}` | {family} | {kind} |" for op, family, kind in rows]
    used = {family for _, family, _ in rows}
    out.append("\nNotes on families:\n")
    out += [f"- {family}: {note}" for family, note in sorted(notes.items()) if family in used]
    out += ["\n## Pointwise ops\n", "Every op that ATen tags pointwise and that has no row: family pointwise.\n"]
    out += ["## Views\n"]
    out.append(
        "Every op of ATen that returns a view of its first argument. Where a dimension that is cut has to be taken\n"
        "apart, the elements are moved first: see [tensors.md](tensors.md#in-place-and-views).\n"
    )
    out += ["## Random ops\n", "Values depend on the seed and the global index of an element, not on the layout. With `out=` they are refused.\n"]
    random = names(root, RANDOM, "kFunctional")
    out += [quoted([f"{name}_" for name in names(root, RANDOM, "kInPlace")] + random) + "\n"]
    out += ["## Lists of tensors\n", "`_fused_*`, and `_foreach_*` of the following, run tensor by tensor on the pieces:\n"]
    out += [quoted(names(root, *EACH)) + "\n"]
    out += ["Other `_foreach_*` ops are done as the single ops that they stand for.\n"]
    out += ["## New tensors like another one\n", "They lie like it where they have its sizes; R otherwise.\n"]
    out += [quoted(name for name in names(root, *LIKE) if name not in random) + "\n"]
    out += ["## Refused\n", "A distributed tensor cannot take other sizes or memory in place:\n"]
    out += [quoted(names(root, *REFUSED))]
    return "\n".join(out) + "\n"


def main(arguments):
    modes = [a for a in arguments if a.startswith("--")]
    if modes not in (["--check"], ["--update"]):
        print(__doc__, end="")
        return 2
    root = pathlib.Path(next((a for a in arguments if not a.startswith("--")), "."))
    wanted, file = page(root), root / PAGE
    if modes == ["--update"]:
        file.write_text(wanted)
    elif not file.exists() or file.read_text() != wanted:
        print(f"{PAGE} is not what the sources say; run python tests/lint/ops_page.py --update")
        return 1
    print(f"{PAGE}: {len(rules(root))} ops with a row")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
