"""Programs as data, with a text form that can be run again.

    mesh [a=2,b=3]
    random default
    input x0 = randn(4, 3); seed 17; layout S(0),P(sum); grad
    v1 = x0.sin()
    L = (v1 * w(v1, 0)).sum()
    L.backward()

An input is a plain expression (makers of inputs.py), the seed of its values, and its layout. `random` stands only in
programs that draw random numbers: see run.py. All that follows are lines of Python on the names of words.py; each
stands alone, so that a part of a program is a program. `#` begins a comment where a line begins.
"""

from __future__ import annotations

import dataclasses
import re

NAME = r"[a-zA-Z_]\w*"
DEFAULT, OWN = "default", "own"
RANDOM = ("", DEFAULT, OWN)


@dataclasses.dataclass(frozen=True)
class Input:
    name: str
    code: str
    seed: int
    layout: str
    grad: bool = False

    def __str__(self):
        return f"input {self.name} = {self.code}; seed {self.seed}; layout {self.layout}" + ("; grad" * self.grad)


@dataclasses.dataclass(frozen=True)
class Program:
    mesh: tuple[tuple[str, int], ...]
    inputs: tuple[Input, ...] = ()
    lines: tuple[str, ...] = ()
    random: str = ""  # which generator its random lines draw from: none do, the default one, one of their own

    def __str__(self):
        head = [f"mesh {mesh_text(self.mesh)}"] + [f"random {self.random}"] * bool(self.random)
        return "\n".join([*head, *map(str, self.inputs), *self.lines]) + "\n"

    def change(self, **fields):
        return dataclasses.replace(self, **fields)

    def with_input(self, index, **fields):
        inputs = list(self.inputs)
        inputs[index] = dataclasses.replace(inputs[index], **fields)
        return self.change(inputs=tuple(inputs))

    def without_line(self, index):
        return self.change(lines=self.lines[:index] + self.lines[index + 1 :])


def mesh_text(mesh):
    return "[" + ",".join(f"{name}={size}" for name, size in mesh) + "]"


def parse_mesh(text):
    if not re.fullmatch(rf"\[{NAME}=\d+(,{NAME}=\d+)*\]", text):
        raise ValueError(f"[parse] the mesh is {text!r}; it should be like [a=2,b=3]")
    return tuple((name, int(size)) for name, size in (part.split("=") for part in text[1:-1].split(",")))


def parse_input(line):
    form = rf"input ({NAME}) = (.+); seed (\d+); layout (.+?)(; grad)?"
    found = re.fullmatch(form, line)
    if not found:
        raise ValueError(f"[parse] {line!r} should be like: input x0 = randn(4, 3); seed 17; layout S(0),R; grad")
    name, code, seed, layout, grad = found.groups()
    return Input(name, code, int(seed), layout, grad is not None)


def parse(text):
    """The program of a text: parse(str(program)) == program."""
    mesh, random, inputs, lines = None, "", [], []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("mesh "):
            mesh = parse_mesh(line.removeprefix("mesh "))
        elif line.startswith("random "):
            random = line.removeprefix("random ")
        elif line.startswith("input "):
            inputs.append(parse_input(line))
        else:
            lines.append(line.rstrip())
    if mesh is None:
        raise ValueError("[parse] the program has no mesh; its first line should be like: mesh [a=2]")
    if random not in RANDOM:
        raise ValueError(f"[parse] random is {random!r}; it should be {DEFAULT} or {OWN}")
    return Program(mesh, tuple(inputs), tuple(lines), random)


# ---- what lines make and use -------------------------------------------------------------------

VALUE = re.compile(r"\b(?:[vx]\d+(?:_\d+)?|L\d*|gs)\b")
MADE = re.compile(rf"^(?:with [^:]+: )?({VALUE.pattern}(?:, {VALUE.pattern})*),? = ")


def names_in(line):
    """The values that a line mentions."""
    return set(VALUE.findall(line))


def made_by(line):
    """The values that a line gives a name to."""
    found = MADE.match(line)
    return set(VALUE.findall(found[1])) if found else set()


def without_dependents(program, index):
    """The program without a line and without all that need what it made."""
    gone, kept = made_by(program.lines[index]), list(program.lines[:index])
    for line in program.lines[index + 1 :]:
        if names_in(line) & gone:
            gone |= made_by(line)
        else:
            kept.append(line)
    return program.change(lines=tuple(kept))
