"""Holds the order of layers, and inside of them the order of rooms, the folders of a layer.

    layers.py [ROOT]

A file may include its own layer and lower ones, and of its own layer its own room and lower ones. No two modules, a header
and its source as one, include each other, in one step or in several. base, layout, plan, draw and most rooms of checkpoint include nothing of torch; layout,
plan, draw and rules use no unordered containers, whose order of iteration differs between ranks; private headers are not included
by public ones; nothing names a machine's paths. No folder has more than 25 files, no file more than 500 lines unless it is
a table, no class more than 300 lines with its members that stand outside. Headers of torch that are not public are included
only where docs/torch_versions.md says. Prints each violation as file:line.
"""

import pathlib
import re
import sys

ORDER = [
    "base", "layout", "plan", "draw", "rules", "world", "tensor", "prove", "parallel", "checkpoint", "training", "equiv", "context", "pipeline",
    "experts", "elastic", "tools",
]  # fmt: skip
SIBLINGS = {"parallel", "checkpoint"}  # know the layers below, not each other
ROOMS = {
    "world": ["transport", "guard", "collectives", "session"],
    "tensor": ["core", "move", "call", "local", "random", "formula", "dispatch", "api"],
    "parallel": ["optim", "model", "gradients", "replicate", "sharded", "tensor_parallel"],
    "checkpoint": ["files", "store", "format", "plan", "transfer", "session", "inspect", "state"],
    "context": ["mask", "attend", "scan"],
    "pipeline": ["schedule", "run"],
    "tools": ["common", "ckpt", "calibrate", "doctor", "ops", "plan", "schedule", "show"],
}
WITHOUT_TORCH = {"base", "layout", "plan", "draw"}
# The rooms of a layer that know torch, where the others do not.
ROOMS_WITH_TORCH = {"checkpoint": {"state"}, "context": {"attend", "scan"}, "pipeline": {"run"}}
ORDERED_ONLY = {"layout", "plan", "draw", "rules"}
TABLES = {"src/prove/samples_table.cpp", "src/rules/table.cpp"}
# Longer than the limits, and to be split; nothing may be added.
LONG_FILES = set()
LONG_CLASSES = set()
MOST_FILES, MOST_LINES, MOST_CLASS_LINES = 25, 500, 300
# Public headers stand in one folder; each belongs to the layer whose sources implement it.
PUBLIC = {
    "error": "base", "fixed_vector": "base", "pattern": "base",
    "boxes": "layout", "layout": "layout", "mesh": "layout", "placement": "layout",
    "tensor_type": "layout", "view": "layout",
    "picture": "draw", "between": "plan", "plan": "plan", "step_time": "plan", "topology": "plan", "rule": "rules", "prove": "prove", "build": "tensor", "predict": "tensor", "communication": "tensor", "redistribute": "tensor", "replicas": "tensor", "tensor": "tensor",
    "collectives": "world", "in_process": "world", "ledger": "world", "lockstep": "world", "memory": "world", "phase": "world", "simulate": "world", "symmetric_memory": "world", "rendezvous": "world", "waiting": "world", "watch": "world", "world": "world",
    "checkpoint": "checkpoint",
    "checkpoint_manager": "checkpoint",
    "training_state": "training",
    "attention": "context", "attention_mask": "context", "packing": "context", "sequence": "context", "sequence_order": "context", "scan": "context",
    "pipeline": "pipeline", "schedule": "pipeline",
    "fully_shard": "parallel", "optim": "parallel", "overlap": "parallel", "replicate": "parallel", "state_dict": "parallel", "tensor_parallel": "parallel",
    "intarsia": "tools",
}  # fmt: skip

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
TORCH = re.compile(r"^(ATen|c10|torch|caffe2)/")
# What torch's documentation tells authors of extensions, ops and process groups to include. All else is in the page.
PUBLIC_TORCH = re.compile(
    r"torch/(torch|library|version|nn/.*|optim/.*|csrc/autograd/(autograd|custom_function))\.h|ATen/(ATen|Parallel|core/Tensor)\.h"
    r"|torch/csrc/distributed/c10d/(Backend|ProcessGroup|Store|Types|Work)\.hpp"
    r"|c10/core/(Allocator|Device|DeviceType|InferenceMode|ScalarType)\.h|c10/util/(Exception|Logging|SmallVector|complex)\.h"
)
PRIVATE_ROW = re.compile(r"^\| `([\w/]+\.hp*)` \| ((?:`[\w/.]+` ?)+)\|", re.M)
PAGE = "docs/torch_versions.md"
UNORDERED = re.compile(r"\bunordered_(map|set|multimap|multiset)\b")
MACHINE_PATH = re.compile(r"(?<![\w.])/(home|root|work|opt|Users)/")
CLASS = re.compile(r"^(?:template <.*>\s*)?(?:class|struct) (\w+)(?: final)?(?:\s*:[^;{]*)?\s*\{", re.M)
MEMBER = re.compile(r"^(?!\s)[^#/\n][^;{}\n]*?\b(\w+)::~?\w+\(", re.M)


def layer_of(path):
    if path.parts[0] == "include":
        return PUBLIC.get(path.stem)
    return path.parts[1] if len(path.parts) > 2 and path.parts[1] in ORDER else None


def room_of(parts):
    """The room of a file, given by its parts from the layer on; nothing for files beside the rooms."""
    return parts[1] if len(parts) > 2 else None


def included_layer(target):
    parts = pathlib.PurePosixPath(target).parts
    if parts[0] == "intarsia":
        return PUBLIC.get(pathlib.PurePosixPath(target).stem)
    return parts[0] if parts[0] in ORDER else None


def may_include(layer, other):
    if layer == other:
        return True
    if layer in SIBLINGS and other in SIBLINGS:
        return False
    return ORDER.index(other) < ORDER.index(layer)


def room_violation(path, target):
    """What is wrong with an include inside of a layer; nothing where it goes to the same or a lower room."""
    layer, parts = path.parts[1], pathlib.PurePosixPath(target).parts
    rooms = ROOMS.get(layer)
    if rooms is None or parts[0] != layer or path.parts[0] != "src":
        return None
    mine, other = room_of(path.parts[1:]), room_of(parts)
    if mine is None or other is None or other not in rooms:
        return None
    if rooms.index(other) > rooms.index(mine):
        return f"the room {layer}/{mine} must not include {target}: {other} is above it"
    return None


def violations(path, text):
    layer = layer_of(path)
    if layer is None and path.name != "pch.h":
        yield 1, f"belongs to no layer; add it to {pathlib.Path(__file__).name}"
        return
    room = room_of(path.parts[1:]) if path.parts[0] == "src" and layer else None
    if room is not None and room not in ROOMS.get(layer, []):
        yield 1, f"the room {layer}/{room} is unknown; add it to {pathlib.Path(__file__).name}"
    for number, line in enumerate(text.splitlines(), 1):
        found = INCLUDE.match(line)
        if found and layer:
            target = found.group(2)
            other = included_layer(target)
            if other and not may_include(layer, other):
                yield number, f"{layer} must not include {target} of {other}"
            if wrong := room_violation(path, target):
                yield number, wrong
            if layer in WITHOUT_TORCH and TORCH.match(target):
                yield number, f"{layer} must not know torch: {target}"
            if room and room not in ROOMS_WITH_TORCH.get(layer, {room}) and TORCH.match(target):
                yield number, f"the room {layer}/{room} must not know torch: {target}"
            if path.parts[0] == "include" and found.group(1) == '"' and not target.startswith("intarsia/"):
                yield number, f"a public header must not include the private {target}"
        if layer in ORDERED_ONLY and UNORDERED.search(line):
            yield number, f"{layer} must not use unordered containers: ranks would disagree on their order"
        if MACHINE_PATH.search(line):
            yield number, "names a path of one machine"
    lines = text.count("\n")
    if path.parts[0] == "src" and lines > MOST_LINES and path.as_posix() not in TABLES | LONG_FILES:
        yield lines, f"has {lines} lines, more than {MOST_LINES}"


def module_of(path):
    """A header and its source as one: the path from src on, without its ending."""
    return path.relative_to("src").with_suffix("").as_posix()


def cycles(files):
    """Lists of modules that include each other, in one step or in several; by Tarjan's algorithm."""
    edges = {}
    for path, text in files.items():
        if path.parts[0] == "src":
            targets = (found.group(2) for found in map(INCLUDE.match, text.splitlines()) if found)
            private = {target.removesuffix(".h") for target in targets if not target.startswith("intarsia/")}
            edges.setdefault(module_of(path), set()).update(private - {module_of(path)})
    order, low, stack, found = {}, {}, [], []

    def visit(module):
        order[module] = low[module] = len(order)
        stack.append(module)
        for other in sorted(edges[module] & edges.keys()):
            if other not in order:
                visit(other)
            if other in stack:
                low[module] = min(low[module], low[other])
        if low[module] == order[module]:
            at = stack.index(module)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for module in sorted(edges):
        if module not in order:
            visit(module)
    return found


def block_lines(text, begin):
    """How many lines a definition has that begins here: to its closing brace at the beginning of a line."""
    end = re.compile(r"^\}", re.M).search(text, begin)
    return text.count("\n", begin, end.end() if end else len(text)) + 1


def class_lines(texts):
    """The lines of each class of one module: its body, and members that are defined outside of it."""
    found = {}
    for text in texts:
        for each in CLASS.finditer(text):
            if "}" in text[each.end() : text.find("\n", each.end())]:
                continue  # on one line
            found[each.group(1)] = found.get(each.group(1), 0) + block_lines(text, each.end())
    for text in texts:
        for each in MEMBER.finditer(text):
            rest = text[each.end() : each.end() + 2000]
            if each.group(1) in found and re.match(r"[^;]*?\{", rest, re.S):
                found[each.group(1)] += block_lines(text, each.start())
    return found


def whole_violations(files):
    """What only all files together show."""
    for cycle in cycles(files):
        yield f"src/{cycle[0]}", f"a cycle of modules: {', '.join(cycle)}"
    folders, modules = {}, {}
    for path, text in files.items():
        if path.parts[0] == "src":
            folders.setdefault(path.parent.as_posix(), []).append(path)
            modules.setdefault(module_of(path), []).append(text)
    for folder, inside in sorted(folders.items()):
        if len(inside) > MOST_FILES:
            yield folder, f"has {len(inside)} files, more than {MOST_FILES}"
    for module, texts in sorted(modules.items()):
        for name, lines in class_lines(texts).items():
            if lines > MOST_CLASS_LINES and name not in LONG_CLASSES:
                yield f"src/{module}", f"class {name} has {lines} lines, more than {MOST_CLASS_LINES}"


def private_torch(page):
    """The headers of torch that the page lists, each with the folders and files that may include it."""
    return {header: where.replace("`", "").split() for header, where in PRIVATE_ROW.findall(page)}


def torch_violations(files, page):
    """Private headers of torch in places that the page does not name, and rows of the page that nothing needs."""
    rows, used = private_torch(page), set()
    for path, text in files.items():
        for number, line in enumerate(text.splitlines(), 1):
            found = INCLUDE.match(line)
            if not found or not TORCH.match(found.group(2)) or PUBLIC_TORCH.fullmatch(found.group(2)):
                continue
            here = [where for where in rows.get(found.group(2), []) if (path.as_posix() + "/").startswith(where + "/")]
            used.update((found.group(2), where) for where in here)
            if not here:
                yield f"{path}:{number}", f"torch's private {found.group(2)} is not in {PAGE} for this place"
    for header, places in rows.items():
        for where in places:
            if (header, where) not in used:
                yield PAGE, f"{where} does not include {header}"


def main(root):
    count, files = 0, {}
    for top in ("include", "src"):
        for file in sorted((root / top).rglob("*")):
            if file.suffix in (".h", ".cpp") and "gloo_declarations" not in file.parts:
                files[file.relative_to(root)] = file.read_text()
    for path, text in files.items():
        for number, what in violations(path, text):
            count += 1
            print(f"{path}:{number}: {what}")
    for where, what in whole_violations(files):
        count += 1
        print(f"{where}:1: {what}")
    bindings = {file.relative_to(root): file.read_text() for file in sorted((root / "python/bindings").glob("*.[ch]*"))}
    page = root / PAGE
    for where, what in torch_violations(files | bindings, page.read_text() if page.exists() else ""):
        count += 1
        print(f"{where}: {what}")
    print(f"{len(files)} files, {count} violations")
    return 1 if count or not files else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
