"""Which files of the library a call passes, and whether it comes back to one on the same way.

    walk.py BUILD cached|cold [--most N]

Runs tests/perf/walk.cpp under callgrind. A function belongs to the object file that defines it; one that several define, to the header that
declares it. A header and its source count as one file. A way is a chain of calls; what ATen does between two functions of ours is left
out, so the dispatcher ends a way. A file that is left and entered again on one way has a part that belongs elsewhere."""

import argparse
import collections
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
INLINE = {"", "inline"}  # of a header: any object file may have it


def module_of(path):
    """`src/tensor/move/state.cpp` -> `tensor/move/state`; a public header -> its name."""
    path = pathlib.PurePath(path)
    parts = path.with_suffix("").parts
    return "/".join(parts[parts.index("src") + 1 :] if "src" in parts else parts[-1:])


def module_with_source(module):
    """Of a public header the module that implements it, if it has that name: `layout` -> `layout/layout`."""
    sources = sorted(ROOT.glob(f"src/**/{module}.cpp"))
    return module_of(sources[0].relative_to(ROOT)) if "/" not in module and sources else module


def defined_in(build):
    """{mangled name: modules whose object files define it}"""
    found = collections.defaultdict(set)
    for file in sorted(pathlib.Path(build, "CMakeFiles").rglob("src/**/*.cpp.o")):
        symbols = subprocess.run(["nm", "--defined-only", file], capture_output=True, text=True, check=True).stdout
        for line in symbols.splitlines():
            _, kind, name = line.split(" ", 2)
            if kind in "tT":
                found[name].add(module_of(str(file.relative_to(build)).removesuffix(".o")))
            elif kind in "wW":
                found[name] |= INLINE
    return found


def headers():
    """{name of a class or function of namespace intarsia: the module of the header that has it}"""
    found = {}
    for file in [*ROOT.glob("include/intarsia/*.h"), *ROOT.glob("src/**/*.h")]:
        for name in re.findall(r"^(?:class|struct) (\w+)[^;]*$|^(?:inline|template).*?\b(\w+)\(", file.read_text(), re.M):
            found.setdefault(name[0] or name[1], module_with_source(module_of(file.relative_to(ROOT))))
    return found


class Places:
    """The module of a function, by its mangled name."""

    def __init__(self, build):
        self.defined, self.headers = defined_in(build), headers()

    def of(self, function):
        function = re.sub(r"(\.(part|isra|constprop|cold|lto_priv)\.?\d*|'\d+)+$", "", function)
        modules = self.defined.get(function)
        if not modules:
            return None
        if len(modules) == 1:
            return next(iter(modules))
        name = subprocess.run(["c++filt", function], capture_output=True, text=True, check=True).stdout
        for part in re.findall(r"intarsia::(?:\(anonymous namespace\)::)?(\w+)", name.split("(")[0]):
            if part in self.headers:
                return self.headers[part]
        return None  # of the standard library, made by a compiler for several of us


def calls_of(text):
    """{function: functions it called}, and the functions that were entered."""
    calls, current = collections.defaultdict(set), None
    for line in text.splitlines():
        if line.startswith("fn="):
            current = line[3:]
            calls[current]
        elif line.startswith("cfn="):
            calls[current].add(line[4:])
    return calls


def record(build, what):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "cg"
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--demangle=no", "--compress-strings=no"]
        command += ["--separate-threads=no", f"--callgrind-out-file={out}", pathlib.Path(build) / "tests/walk", what]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr[-3000:]
        dumps = [file for file in sorted(pathlib.Path(folder).iterdir()) if "Client Request: walk" in file.read_text()]
        return calls_of(dumps[0].read_text())


def returns(calls, place):
    """Ways on which a module is left and entered again: (module, the modules between)."""
    found = set()

    def visit(function, way, seen):
        module = place(function)
        if module is None:  # ATen, or the standard library
            if function.startswith(("_ZN2at", "_ZN3c10", "_ZNK3c10", "_ZN5torch")):
                return
        elif not way or way[-1] != module:
            if module in way:
                found.add((module, way[way.index(module) + 1 :]))
                return
            way = (*way, module)
        for called in calls.get(function, ()):
            if called not in seen:
                visit(called, way, seen | {called})

    called = {c for all_ in calls.values() for c in all_}
    for function in calls:
        if place(function) and (function not in called or any(place(f) is None and function in calls[f] for f in calls)):
            visit(function, (), frozenset({function}))
    return sorted(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("build")
    parser.add_argument("what", choices=("cached", "cold"))
    parser.add_argument("--most", type=int)
    options = parser.parse_args()
    calls = record(options.build, options.what)
    places, known = Places(options.build), {}
    place = lambda f: known[f] if f in known else known.setdefault(f, places.of(f))
    modules = sorted({place(f) for f in calls if place(f)})
    print(*modules, sep="\n")
    again = returns(calls, place)
    for module, between in again:
        print(f"left and entered again: {module} -> {' -> '.join(between)} -> {module}")
    print(f"{options.what}: {len(modules)} files{f' (at most {options.most})' if options.most else ''}, {len(again)} entered again")
    return 1 if again or (options.most and len(modules) > options.most) else 0


if __name__ == "__main__":
    sys.exit(main())
