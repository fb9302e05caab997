"""Makes a program that fails smaller while it fails: fewer lines, inputs and axes, simpler layouts, smaller sizes."""

import dataclasses
import re
import time

import inputs
from program import made_by, names_in, without_dependents

SECONDS = 20


def shrink(program, fails, seconds=SECONDS):
    """The smallest program that was found for which `fails` holds, which it must for the given one."""
    until = time.monotonic() + seconds
    smaller = True
    while smaller and time.monotonic() < until:
        smaller = False
        for step in STEPS:
            again = True
            while again and time.monotonic() < until:
                again = False
                for candidate in step(program):
                    if time.monotonic() > until:
                        break
                    if fails(candidate):
                        program, smaller, again = candidate, True, True
                        break
    return program


# ---- steps: each gives programs that are a little smaller ----------------------------------------


def fewer_lines(program):
    count = len(program.lines)
    for part in (count // 2, count // 4):
        for begin in range(count - part, -1, -part) if part > 1 else []:
            yield program.change(lines=program.lines[:begin] + program.lines[begin + part :])
    for index in reversed(range(count)):
        yield program.without_line(index)
        dependents = without_dependents(program, index)
        if len(dependents.lines) < count - 1:
            yield dependents


def bypassed_lines(program):
    """A line is dropped, and one of the values it used stands for what it made."""
    for index in reversed(range(len(program.lines))):
        line = program.lines[index]
        made = made_by(line)
        for used in sorted(names_in(line) - made):
            for name in made:
                rest = [re.sub(rf"\b{name}\b", used, later) for later in program.lines[index + 1 :]]
                yield program.change(lines=program.lines[:index] + tuple(rest))


def fewer_terms(program):
    for index, line in enumerate(program.lines):
        terms = re.findall(r"loss\(\w+, \d+\)", line)
        if len(terms) > 1:
            for term in terms:
                kept = " + ".join(each for each in terms if each != term)
                yield with_line(program, index, line.replace(" + ".join(terms), kept))


def simpler_lines(program):
    """Lines without a step of a chain, and lists of one."""
    for index, line in enumerate(program.lines):
        for chain in re.findall(r"\.\w+\([^()]*\)(?=\.)|\.clone\(\)|\.contiguous\(\)|\.detach\(\)", line):
            yield with_line(program, index, line.replace(chain, "", 1))
        for found in re.finditer(r", create_graph=True|, (?:is_causal|keepdim|stride|padding|dilation)=\w+", line):
            yield with_line(program, index, line[: found.start()] + line[found.end() :])


def with_line(program, index, line):
    return program.change(lines=program.lines[:index] + (line,) + program.lines[index + 1 :])


def fewer_inputs(program):
    used = set().union(*map(names_in, program.lines)) if program.lines else set()
    for index, each in reversed(list(enumerate(program.inputs))):
        rest = program.inputs[:index] + program.inputs[index + 1 :]
        if each.name not in used:
            yield program.change(inputs=rest)
        else:
            for other in rest:
                lines = [re.sub(rf"\b{each.name}\b", other.name, line) for line in program.lines]
                yield program.change(inputs=rest, lines=tuple(lines))


def fewer_axes(program):
    if len(program.mesh) == 1:
        return
    for axis in range(len(program.mesh)):
        mesh = program.mesh[:axis] + program.mesh[axis + 1 :]

        def without(layout, axis=axis):
            places = inputs.placements(layout)
            return ",".join(places[:axis] + places[axis + 1 :])

        kept = tuple(dataclasses.replace(each, layout=without(each.layout)) for each in program.inputs)
        moves = re.compile(r"(?<=move\()(\w+), '([^']*)'")
        lines = tuple(moves.sub(lambda f: f"{f[1]}, '{without(f[2])}'", line) for line in program.lines)
        yield program.change(mesh=mesh, inputs=kept, lines=lines)


def smaller_axes(program):
    for axis, (name, size) in enumerate(program.mesh):
        for less in range(2, size):
            yield program.change(mesh=program.mesh[:axis] + ((name, less),) + program.mesh[axis + 1 :])


def simpler_layouts(program):
    for index, each in enumerate(program.inputs):
        places = inputs.placements(each.layout)
        if "|" in each.layout:
            yield program.with_input(index, layout=",".join(places))
        for axis, place in enumerate(places):
            simpler = [] if place == "R" else ["R"]
            if place.startswith("SS"):
                simpler.append(re.sub(r"SS\((\d+),\d+\)", r"S(\1)", place))
            for new in simpler:
                yield program.with_input(index, layout=",".join(places[:axis] + [new] + places[axis + 1 :]))


def fewer_gradients(program):
    for index, each in enumerate(program.inputs):
        if each.grad:
            yield program.with_input(index, grad=False)


def simpler_values(program):
    """Inputs that are not turned, sliced, expanded or special; and of smaller sizes."""
    for index, each in enumerate(program.inputs):
        try:
            full = inputs.make_plain(each.code, each.seed)
        except Exception:
            continue
        sizes = ", ".join(map(str, full.shape))
        plain = f"randn({sizes})"
        if str(full.dtype) == "torch.float64" and each.code != plain:
            yield program.with_input(index, code=plain)
        for found in re.finditer(r"(?<=[(, ])\d+(?=[,)])", each.code):
            size = int(found[0])
            for less in sorted({1, 2, size - 1} & set(range(1, size))):
                yield program.with_input(index, code=each.code[: found.start()] + str(less) + each.code[found.end() :])


def smaller_sizes(program):
    """One size smaller in all inputs at once: sizes that must agree do."""
    sizes = {int(n) for each in program.inputs for n in re.findall(r"(?<=[(, ])\d+(?=[,)])", each.code)}
    for size in sorted(sizes, reverse=True):
        for less in sorted({2, size - 1} & set(range(1, size))):
            changed = [
                dataclasses.replace(each, code=re.sub(rf"(?<=[(, ]){size}(?=[,)])", str(less), each.code))
                for each in program.inputs
            ]
            yield program.change(inputs=tuple(changed))


STEPS = [
    fewer_lines, fewer_axes, bypassed_lines, fewer_terms, fewer_inputs, fewer_gradients, simpler_layouts, simpler_lines,
    smaller_axes, simpler_values, smaller_sizes,
]  # fmt: skip
