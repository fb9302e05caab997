"""Holds the order of layers: base < layout < plan < rules < world < tensor < prove < the rest.

    layers.py [ROOT]

A file may include its own layer and lower ones; base, layout and plan include nothing of torch; layout,
plan and rules use no unordered containers, whose order of iteration differs between ranks; private
headers are not included by public ones; nothing names a machine's paths. Prints each violation as
file:line.
"""

import pathlib
import re
import sys

ORDER = ["base", "layout", "plan", "rules", "world", "tensor", "prove", "parallel", "checkpoint", "elastic", "tools"]
SIBLINGS = {"parallel", "checkpoint", "elastic"}  # know the layers below, not each other
WITHOUT_TORCH = {"base", "layout", "plan"}
ORDERED_ONLY = {"layout", "plan", "rules"}
# Public headers stand in one folder; each belongs to the layer whose sources implement it.
PUBLIC = {
    "error": "base", "fixed_vector": "base",
    "boxes": "layout", "layout": "layout", "mesh": "layout", "placement": "layout",
    "tensor_type": "layout", "view": "layout",
    "between": "plan", "plan": "plan", "topology": "plan", "rule": "rules", "prove": "prove", "build": "tensor", "predict": "tensor", "communication": "tensor", "redistribute": "tensor", "tensor": "tensor",
    "collectives": "world", "in_process": "world", "ledger": "world", "lockstep": "world", "memory": "world", "simulate": "world", "symmetric_memory": "world", "rendezvous": "world", "waiting": "world", "world": "world",
    "fully_shard": "parallel", "optim": "parallel", "overlap": "parallel", "replicate": "parallel", "state_dict": "parallel", "tensor_parallel": "parallel",
    "intarsia": "tools",
}  # fmt: skip

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
TORCH = re.compile(r"^(ATen|c10|torch|caffe2)/")
UNORDERED = re.compile(r"\bunordered_(map|set|multimap|multiset)\b")
MACHINE_PATH = re.compile(r"(?<![\w.])/(home|root|work|opt|Users)/")


def layer_of(path):
    if path.parts[0] == "include":
        return PUBLIC.get(path.stem)
    return path.parts[1] if len(path.parts) > 2 and path.parts[1] in ORDER else None


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


def violations(path, text):
    layer = layer_of(path)
    if layer is None and path.name != "pch.h":
        yield 1, f"belongs to no layer; add it to {pathlib.Path(__file__).name}"
        return
    for number, line in enumerate(text.splitlines(), 1):
        found = INCLUDE.match(line)
        if found and layer:
            target = found.group(2)
            other = included_layer(target)
            if other and not may_include(layer, other):
                yield number, f"{layer} must not include {target} of {other}"
            if layer in WITHOUT_TORCH and TORCH.match(target):
                yield number, f"{layer} must not know torch: {target}"
            if path.parts[0] == "include" and found.group(1) == '"' and not target.startswith("intarsia/"):
                yield number, f"a public header must not include the private {target}"
        if layer in ORDERED_ONLY and UNORDERED.search(line):
            yield number, f"{layer} must not use unordered containers: ranks would disagree on their order"
        if MACHINE_PATH.search(line):
            yield number, "names a path of one machine"


def main(root):
    count = files = 0
    for top in ("include", "src"):
        for file in sorted((root / top).rglob("*")):
            if file.suffix not in (".h", ".cpp") or "gloo_declarations" in file.parts:
                continue
            files += 1
            path = file.relative_to(root)
            for number, what in violations(path, file.read_text()):
                count += 1
                print(f"{path}:{number}: {what}")
    print(f"{files} files, {count} violations")
    return 1 if count or not files else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
