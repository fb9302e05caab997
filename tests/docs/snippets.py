"""Every C++ and Python snippet of the documents and of header comments, as it stands.

    snippets.py list                                       what there is
    snippets.py write FILE.cpp                             all C++ programs as one source file
    snippets.py run [--cpp PROGRAM] [--python] [NAME ...]  runs them; PROGRAM is that file, compiled

A snippet is a fenced block of a page that says `cpp` or `python`, or in a comment of a public header lines that are
indented by five blanks behind the slashes. Blocks of a page continue each other, as a reader takes them: what one
defines the next ones have. A Python block that imports torch, and a C++ block that connects or is a whole program,
begins a new program. It runs on as many processes as its mesh has ranks if it meets others (`init`,
`World::connect`), else on one. A C++ block that defines types or functions at its left edge stands outside of functions,
all others in one. Whole programs must be files of examples/, word for word. Examples in headers stand in a member function of
`Frame` in frame.h, in the namespace of the library. A fence without a language behind a whole program is what it prints.

A comment on lines of its own says what the statement before it does:

    # ValueError: [op] what the error says, on as many lines as it takes; `...` stands for anything
    # ValueError on rank 1: the same, where the other ranks go on
    # prints: what it prints

in C++ with two slashes. It is compared, white space aside.
"""

import argparse
import ast
import contextlib
import dataclasses
import importlib.util
import io
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "launch"))
import launch  # noqa: E402

PAGES = ("*.md", "docs/*.md", "examples/*/README.md")
HEADERS = ("include/intarsia/*.h",)
SECONDS = 300
OPTIONAL_MODULES = ("transformers",)  # what a page may be about, and the library does not need


# Types, functions and registrations at the left edge of a C++ block.
DEFINES = re.compile(
    r"^(?:struct|class|enum|namespace|template|TORCH_\w+\(|using )"
    r"|^(?!(?:for|if|while|switch|do|try|else|return|const auto|auto) )[\w:<>&]+(?: [\w:<>&]+)* [\w:]+\([^=;]*\)(?: const)? \{",
    re.M,
)


# --- what there is -----------------------------------------------------------------------------


@dataclasses.dataclass
class Block:
    """A snippet: its text, and the line of the file at which it begins."""

    language: str
    line: int
    text: str
    output: str | None = None  # what a whole program prints, if the page shows it

    def begins_program(self):
        if self.language == "python":
            return re.search(r"^import torch$", self.text, re.M) is not None
        return "World::connect()" in self.text or self.is_whole()

    def is_whole(self):
        return self.language == "cpp" and re.search(r"^int main\(", self.text, re.M) is not None

    def defines(self):
        """Whether it stands outside of functions."""
        return self.language == "cpp" and not self.is_whole() and DEFINES.search(self.text) is not None


@dataclasses.dataclass
class Program:
    """Blocks of one file that continue each other."""

    file: str
    blocks: list[Block]

    @property
    def name(self):
        return f"{self.file}:{self.blocks[0].line}"

    @property
    def language(self):
        return self.blocks[0].language

    @property
    def text(self):
        return "\n".join(block.text for block in self.blocks)

    def ends_before(self, block):
        """Whether a block begins a new program; definitions may stand before its beginning."""
        begun = not all(earlier.defines() for earlier in self.blocks)
        return self.blocks[0].is_whole() or (block.begins_program() and begun)

    def processes(self):
        """How many it is written for, by its first mesh; None where it meets no others."""
        meets = re.search(r"\binit\((.*)" if self.language == "python" else r"World::connect\(\)", self.text)
        if not meets:
            return None
        where = meets.group(1) if self.language == "python" else self.text
        mesh = re.search(r'"\[(\w+=\d+[^]]*)\]"|\{("\w+": *\d+[^}]*)\}', where)
        return math.prod(int(n) for n in re.findall(r"[=:] *(\d+)", mesh.group())) if mesh else 2

    def lacks(self):
        """A module that it needs and that is not installed."""
        needed = [m for m in OPTIONAL_MODULES if re.search(rf"^(import|from) {m}\b", self.text, re.M)]
        return next((m for m in needed if importlib.util.find_spec(m) is None), None)


def blocks_of_page(text):
    fences = list(re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S))
    for found, after in zip(fences, [*fences[1:], None]):
        if found.group(1) in ("cpp", "python"):
            block = Block(found.group(1), text.count("\n", 0, found.start(2)) + 1, found.group(2))
            if block.is_whole() and after and not after.group(1):
                block.output = after.group(2)
            yield block


EXAMPLE = re.compile(r"^\s*///? {5}(.*)$")
EMPTY = re.compile(r"^\s*///?$")


def blocks_of_header(text):
    """Indented by five blanks, after an empty line of the comment. Tables are indented by less."""
    lines, at = text.splitlines(), 1
    while at < len(lines):
        first = at
        if EMPTY.match(lines[at - 1]) and re.match(r"^\s*///? {5}\S", lines[at]):
            while EXAMPLE.match(lines[at]) or (EMPTY.match(lines[at]) and EXAMPLE.match(lines[at + 1])):
                at += 1
            code = [found.group(1) if (found := EXAMPLE.match(line)) else "" for line in lines[first:at]]
            yield Block("cpp", first + 1, "\n".join(code) + "\n")
        at += 1


def programs_of(file, blocks):
    found = {}
    for block in blocks:
        of_language = found.setdefault(block.language, [])
        if not of_language or of_language[-1].ends_before(block):
            of_language.append(Program(file, []))
        of_language[-1].blocks.append(block)
    return [program for programs in found.values() for program in programs]


def all_programs():
    programs = []
    for patterns, blocks_of in ((PAGES, blocks_of_page), (HEADERS, blocks_of_header)):
        for file in sorted(file for pattern in patterns for file in ROOT.glob(pattern)):
            programs += programs_of(str(file.relative_to(ROOT)), blocks_of(file.read_text()))
    return programs


# --- what statements say -----------------------------------------------------------------------


@dataclasses.dataclass
class Said:
    """What the comment at `line` (counted from 0) says of the statement above it."""

    line: int
    indent: int
    kind: str
    text: str
    rank: str | None  # of whom it is said; of all


def sayings(text, slashes):
    """All such comments of a block, with the lines that continue them."""
    lines, said = text.splitlines(), []
    for number, line in enumerate(lines):
        found = re.match(rf"^( *){slashes} (\w+Error|prints)(?: on rank (\d+))?: (.*)$", line)
        if not found:
            continue
        words = [found.group(4)]
        for further in lines[number + 1 :]:
            more = re.match(rf"^{found.group(1)}{slashes} (?!\w+Error(?: on rank \d+)?: |prints: )(.*)$", further)
            if not more:
                break
            words.append(more.group(1))
        said.append(Said(number, len(found.group(1)), found.group(2), " ".join(words), found.group(3)))
    return said


def expression(text):
    """What a comment says as a regular expression, in a form that Python and C++ read alike."""
    parts = [re.sub(r"([\\^$.|?*+()\[\]{}])", r"\\\1", part) for part in " ".join(text.split()).split("...")]
    return ".*".join(parts)


def fits(text, pattern):
    """Whether a text is as a comment says, white space aside; `...` stands for anything."""
    return re.fullmatch(expression(pattern), " ".join(text.split())) is not None


@contextlib.contextmanager
def checked(kind, text, place, rank):
    """Runs a statement that raises, or prints, what the comment below it says."""
    if rank not in (None, os.environ.get("RANK")):
        yield
        return
    printed, raised = io.StringIO(), None
    try:
        with contextlib.redirect_stdout(printed) if kind == "prints" else contextlib.nullcontext():
            yield
    except Exception as error:
        if kind not in [base.__name__ for base in type(error).__mro__]:
            raise
        raised = error
    if kind != "prints" and not raised:
        raise AssertionError(f"{place}: no {kind} was raised")
    given = str(raised) if raised else printed.getvalue()
    if not fits(given, text):
        raise AssertionError(f"{place}: the page says\n  {text}\nbut it is\n  {given}") from None


# --- Python ------------------------------------------------------------------------------------


class Checks(ast.NodeTransformer):
    """Puts each statement that a comment speaks of into `with checked(...)`."""

    def __init__(self, block, file):
        self.file, self.block, self.lines = file, block, block.text.splitlines()
        self.open = sayings(block.text, "#")

    def generic_visit(self, node):
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            if isinstance(getattr(node, name, None), list):
                setattr(node, name, [self.wrapped(statement) for statement in getattr(node, name)])
        return node

    def wrapped(self, statement):
        for said in self.open:
            if said.line == statement.end_lineno and said.indent == statement.col_offset:
                self.open.remove(said)
                place = f"{self.file}:{self.block.line + said.line}"
                call = ast.parse(f"_checked({said.kind!r}, {said.text!r}, {place!r}, {said.rank!r})", mode="eval").body
                guarded = ast.With(items=[ast.withitem(context_expr=call)], body=[statement])
                return ast.fix_missing_locations(ast.copy_location(guarded, statement))
        return statement


def compiled(block, file):
    """The code of a Python block; its lines are those of the page."""
    checks = Checks(block, file)
    tree = checks.visit(ast.parse(block.text))
    assert not checks.open, f"{file}:{block.line + checks.open[0].line}: no statement stands above this comment"
    return compile(ast.increment_lineno(tree, block.line - 1), ROOT / file, "exec")


def execute(program):
    """Runs a Python program in this process."""
    names = {"__name__": "__main__", "_checked": checked}
    for block in program.blocks:
        exec(compiled(block, program.file), names)


# --- C++ ---------------------------------------------------------------------------------------

def written(programs):
    """The C++ programs as one source file, with a main function that runs one of them."""
    includes, bodies, entries = [], [], []
    for number, program in enumerate(programs):
        for block in program.blocks:
            includes += re.findall(r"^#include .*$", block.text, re.M)
        of_header = program.file.endswith(".h")
        bodies.append(written_program(f"{'intarsia::' if of_header else ''}snippet_{number}", program, of_header))
        entries.append(f"      {{{json.dumps(program.name)}, {'intarsia::' if of_header else ''}snippet_{number}::run}},")
    own = ["#include <torch/torch.h>", "#include <intarsia/intarsia.h>", "#include <iostream>"]
    ours = ['#include "docs/checks.h"', '#include "docs/frame.h"']
    return "\n".join([
        "// Written by tests/docs/snippets.py.",
        *own, *sorted(set(includes) - set(own)), *ours, "",
        *bodies,
        "int main(int argc, char** argv) {", "  return snippets::run(argc, argv, {", *entries, "  });", "}", "",
    ])  # fmt: skip


def written_program(namespace, program, of_header):
    outside, inside, depth = [], [], 0
    for block in program.blocks:
        # The blanks keep the number of lines.
        text = re.sub(r"^#(include|pragma).*$", "", checked_cpp(block, program.file), flags=re.M)
        place = f'#line {block.line} "{program.file}"'
        if block.is_whole():
            outside.append(f"{place}\n{text}\nint run() {{ return main(); }}")
        elif block.defines():
            outside.append(f"{place}\n{text}")
        else:
            inside.append(f"{{\n{place}\n{text}")
            depth += 1
    if not program.blocks[0].is_whole():
        body = "\n".join(inside) + "\n" + "}" * depth
        if of_header:
            body = f"struct Example : Frame {{\nvoid run() {{\n{body}\n}}\n}};\nint run() {{ Example().run(); return 0; }}"
        else:
            body = f"int run() {{\n{body}\nreturn 0;\n}}"
        outside.append(body)
    return f"namespace {namespace} {{\n" + "\n".join(outside) + f"\n}}  // namespace {namespace}\n"


def checked_cpp(block, file):
    """The text of a block, with statements that comments speak of as arguments of `snippets::checked`."""
    lines = block.text.splitlines()
    for said in sayings(block.text, "//"):
        first = last = said.line - 1
        while first > 0 and re.search(r"[^;{}:]$", lines[first - 1]) and not lines[first - 1].strip().startswith("//"):
            first -= 1
        place = f"{file}:{block.line + said.line}"
        arguments = ", ".join(json.dumps(text) for text in (said.kind, expression(said.text), place))
        lines[first] = f"snippets::checked({arguments}, [&] {{ {lines[first]}"
        lines[last] += " });"
    return "\n".join(lines)


# --- running -----------------------------------------------------------------------------------


def run_program(program, command):
    """Runs a program, on several processes where it is written for them, and says whether it went well."""
    environment = {"OMP_NUM_THREADS": "1"}
    n = program.processes()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # for files that it writes
        if n is None:
            result = subprocess.run(command, env=os.environ | environment, timeout=SECONDS,
                                    capture_output=True, text=True)  # fmt: skip
        else:
            result = launch.run("plain", n, command, env=environment, timeout=SECONDS)
    shown = program.blocks[0].output
    passed = result.returncode == 0 and (shown is None or sorted(result.stdout.splitlines()) == sorted(shown.splitlines()))
    print(f"{'passed' if passed else 'FAILED'} {program.language} {program.name}, "
          f"{len(program.blocks)} blocks on {n or 1} processes", flush=True)  # fmt: skip
    if not passed:
        print(textwrap.indent(result.stdout + result.stderr, "    "), flush=True)
    return passed


def quoted_from_examples(program):
    """Whether a whole C++ program is the one that users can copy."""
    examples = [file.read_text() for file in ROOT.glob("examples/*/main.cpp")]
    whole = [block for block in program.blocks if block.is_whole()]
    for block in whole:
        if block.text not in examples:
            print(f"FAILED {program.file}:{block.line} is not word for word a file of examples/")
    return all(block.text in examples for block in whole)


def run_all(arguments):
    if "PYTHONPATH" in os.environ:  # programs run elsewhere
        os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, os.environ["PYTHONPATH"].split(os.pathsep)))
    passed = []
    for program in all_programs():
        if arguments.names and not any(name in program.name for name in arguments.names):
            continue
        if program.language == "cpp" and arguments.cpp:
            command = [pathlib.Path(arguments.cpp).resolve(), program.name]
            passed.append(quoted_from_examples(program) and run_program(program, command))
        if program.language == "python" and arguments.python:
            if module := program.lacks():
                print(f"not run {program.name}: {module} is not installed")
                continue
            passed.append(run_program(program, [sys.executable, pathlib.Path(__file__).resolve(), "execute", program.name]))
    print(f"{sum(passed)} of {len(passed)} programs passed")
    return 0 if passed and all(passed) else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list")
    commands.add_parser("write").add_argument("file", type=pathlib.Path)
    run = commands.add_parser("run")
    run.add_argument("--cpp", metavar="PROGRAM")
    run.add_argument("--python", action="store_true")
    run.add_argument("names", nargs="*")
    commands.add_parser("execute").add_argument("name")
    arguments = parser.parse_args()

    if arguments.command == "list":
        for program in all_programs():
            print(f"{program.language:6} {program.name}: {len(program.blocks)} blocks, {program.processes() or 1} processes")
    elif arguments.command == "write":
        arguments.file.write_text(written([p for p in all_programs() if p.language == "cpp"]))
    elif arguments.command == "execute":
        execute(next(program for program in all_programs() if program.name == arguments.name))
    else:
        return run_all(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
