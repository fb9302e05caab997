"""The tool that runs snippets finds those that are wrong."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from snippets import Block, Program, blocks_of_header, blocks_of_page, checked_cpp, execute, fits, programs_of, written

PAGE = """# A page

```python
import torch
x = torch.ones(2)
```

Text.

```python
y = x + 1
```

```cpp
struct Net {};
```

```cpp
const auto world = intarsia::World::connect();
const auto mesh = intarsia::Mesh::parse("[dp=3,tp=2]");
```

```cpp
const auto world = intarsia::World::connect();
```

```python
import torch
it.init({"dp": 3})
```
"""

HEADER = """// A header.
//
//     Net net;
//
//     net.forward();
//
//   R     a table
//         is none
#pragma once
/// A class.
///
///     int indented = 1;
/// text
"""


def python(text):
    return Program("page.md", [Block("python", 10, text)])


def fails(text, words):
    try:
        execute(python(text))
    except AssertionError as error:
        assert words in str(error), error
        return
    raise AssertionError(f"nothing is wrong with:\n{text}")


def test_blocks_continue_each_other():
    programs = programs_of("page.md", blocks_of_page(PAGE))
    found = [(p.name, p.language, len(p.blocks), p.processes()) for p in programs]
    assert found == [
        ("page.md:4", "python", 2, None),
        ("page.md:28", "python", 1, 3),
        ("page.md:15", "cpp", 2, 6),
        ("page.md:24", "cpp", 1, 2),
    ], found


def test_examples_in_headers_are_indented_by_five():
    found = [(b.line, b.text) for b in blocks_of_header(HEADER)]
    assert found == [(3, "Net net;\n\nnet.forward();\n"), (12, "int indented = 1;\n")], found


def test_errors_are_compared():
    right = "x = [1]\nx[3]\n# IndexError: list index\n# out of range\nx.append(2)\nassert x == [1, 2]\n"
    execute(python(right))
    fails(right.replace("list index", "tuple index"), "page.md:12: the page says")
    fails("x = 1\n# ValueError: none\n", "page.md:11: no ValueError was raised")
    fails("\n# ValueError: none\n", "page.md:11: no statement stands above this comment")


def test_prints_are_compared():
    right = "for i in range(2):\n    print(i, 'b')\n    # prints: ... b\n"
    execute(python(right))
    fails(right.replace("... b", "... c"), "but it is")


def test_dots_stand_for_anything():
    assert fits("[op] 3 rows,\n not 4", "[op] ... rows, not 4")
    assert fits("[op] 3 rows", "[op]...")
    assert not fits("[op] 3 rows, not 4", "[op] 3 rows")
    assert not fits("no [op] 3 rows", "[op]...")


def test_statements_of_cpp_are_wrapped():
    block = Block("cpp", 5, "int x = 1;\nf(x,\n  2);\n// ValueError: [f] is\n// wrong\n")
    assert 'snippets::checked("ValueError", "\\\\[f\\\\] is wrong", "page.md:8", [&] { f(x,\n  2); });' in checked_cpp(block, "page.md")


def test_definitions_stand_outside():
    text = written([Program("page.md", [Block("cpp", 1, "struct Net {};\n"), Block("cpp", 9, "Net net;\n")])])
    assert text.index("struct Net") < text.index("int run()") < text.index("Net net;"), text


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print("passed", name)
