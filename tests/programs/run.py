"""Runs a program beside its reference, and says what came of it.

The reference of a program is plain torch. Random numbers of Intarsia are not those of plain torch; they must not depend
on the number of ranks. So the reference of a program that draws some is Intarsia on a mesh of the same axes with one
rank each:

    random default    the same seed: the same values, and the default generator is left in the same state
    random own        lines draw from the generator `own`; the default ones have other seeds, and are not touched
"""

import contextlib
import dataclasses
import re
import warnings

import intarsia as it
import torch

import compare
import inputs
from program import DEFAULT, OWN, Program, made_by, mesh_text, without_dependents
from words import WORDS, own_generator

SEED_OF_REFERENCE, SEED = 11, 12
SHAKE = 8  # roundings
ROUNDS = 24

warnings.filterwarnings("ignore")


class LineError(Exception):
    """A line raised; -2 stands for the inputs."""

    def __init__(self, line, error):
        super().__init__(f"{type(error).__name__}: {error}")
        self.line = line


class Invalid(Exception):
    """The program does not run where nothing is laid out: it says nothing."""


@dataclasses.dataclass(frozen=True)
class Refusal:
    line: str
    text: str

    @property
    def stale(self):
        return compare.STALE in self.text


@dataclasses.dataclass
class Result:
    program: Program  # without what was refused
    differences: list = dataclasses.field(default_factory=list)
    refusals: list = dataclasses.field(default_factory=list)
    stale: int = 0  # values that could not be compared: views older than a write to their base
    undetermined: int = 0  # values of the reference that a few roundings of the inputs change

    @property
    def kind(self):
        return "wrong" if self.differences else "ok"


# ---- one side ----------------------------------------------------------------------------------


class Side:
    """The names of one run. `values` are those that are compared."""

    def __init__(self, program, seed, make):
        self.program, self.names = program, dict(WORDS)
        try:
            for each in program.inputs:
                made = make(each, inputs.make_plain(each.code, each.seed)).detach()
                self.names[each.name] = made.requires_grad_() if each.grad else made
        except Exception as error:
            raise LineError(-2, error) from error
        self.names["own"] = own_generator()
        if program.random:
            torch.manual_seed(seed)
            self.before = torch.get_rng_state()

    def run(self):
        for index, line in enumerate(self.program.lines):
            try:
                exec(inputs.compiled(line, "exec"), self.names)
            except Exception as error:
                raise LineError(index, error) from error
        if self.program.random:
            self.after = torch.get_rng_state()
        return self

    def values(self):
        names = [each.name for each in self.program.inputs]
        for line in self.program.lines:
            names += sorted(made_by(line))
        return {name: self.names[name] for name in dict.fromkeys(names)}


def shaken(tensor, seed):
    """The tensor with each element a few roundings away; zeros stay."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    noise = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1
    eps = torch.finfo(tensor.dtype).eps
    scaled = tensor * (1 + SHAKE * eps * noise).to(tensor.dtype.to_real() if tensor.is_complex() else tensor.dtype)
    return inputs.in_strides_of(tensor, scaled)


@contextlib.contextmanager
def reference_world(program):
    """The world of the reference: none, or one rank on each axis where the program is random."""
    if program.random:
        with it.lockstep(mesh_text(alone(program.mesh))) as world:
            yield world
    else:
        yield None


def alone(mesh):
    return [(name, 1) for name, _ in mesh]


def reference_of(program, world, shake=None):
    """Runs the reference, with inputs a few roundings away if asked for."""

    def make(each, full):
        value = full if shake is None else shaken(full, shake)
        if world is None:
            return value
        return inputs.distribute(value, each.layout, mesh_text(alone(program.mesh)), each.seed, world)

    try:
        return Side(program, SEED_OF_REFERENCE, make).run()
    except LineError as error:
        if program.random:
            raise  # refused, on one rank
        raise Invalid(str(error)) from error


def laid_out(program, world):
    """Runs the program laid out."""
    mesh = mesh_text(program.mesh)
    seed = SEED if program.random == OWN else SEED_OF_REFERENCE
    return Side(program, seed, lambda each, full: inputs.distribute(full, each.layout, mesh, each.seed, world)).run()


# ---- both sides ----------------------------------------------------------------------------------


def streams_apart(program, wanted, got):
    """How the generators differ that the two sides leave behind."""
    if program.random == DEFAULT and not torch.equal(wanted.after, got.after):
        return [compare.Difference("random", "generator", "its state depends on the ranks")]
    if program.random == OWN:
        if not torch.equal(got.before, got.after):
            return [compare.Difference("random", "generator", "the default one was used in place of `own`")]
        if not torch.equal(wanted.names["own"].get_state(), got.names["own"].get_state()):
            return [compare.Difference("random", "own", "its state depends on the ranks")]
    return []


def limit_of(side):
    tensors = [t for value in side.values().values() for _, t in compare.tensors_of(value) if t is not None]
    return compare.coarsest(tensors)


def undetermined(program, wanted, limit):
    """Names whose values or gradients a few roundings of the inputs change in the reference itself: a comparison or a
    maximum that is a tie but for rounding, a quotient of differences."""
    found = set()
    for shake in (1, 2):
        try:
            with reference_world(program) as world:
                other = reference_of(program, world, shake)
                differences, _ = compare.compare(wanted.values(), other.values(), limit / 4)
                found |= {d.name for d in differences}
        except (Invalid, LineError):  # such as: another number of elements is above a limit
            return None
    return found


# Ops whose results are dense here and have gaps, or another order of dimensions, in ATen: values are the same, but a
# `view` of the result may be refused, or `reshape` copy it, on one side alone.
OWN_STRIDES = re.compile(
    r"linalg_lstsq|binary_cross_entropy_with_logits|aten\.copy\.default|\broll\b|conv1d|conv_transpose1d|_pad\dd|nn\.pad|_pad_nd|"
    r"torch\.cat|stack\(|\.fft\.|_fft_|aten\.addr|max_unpool|unsafe_split|unsafe_chunk|one_hot|_foreach_copy|_foreach_pow|"
    r"einsum|rot90|max_pool3d_with_indices_backward"
)


def with_own_strides(program):
    """The names of results of such ops, and of all that is made of them."""
    found = set()
    for line in program.lines:
        made, _, rest = line.partition(" = ")
        if rest and (OWN_STRIDES.search(rest) or found & set(re.findall(r"\w+", rest))):
            found |= set(re.findall(r"\w+", made))
    return found


def judged(program, wanted, got, result):
    """Compares the sides and fills in the result."""
    limit = limit_of(wanted)
    differences, result.stale = compare.compare(wanted.values(), got.values(), limit)
    loose = with_own_strides(program)
    differences = [d for d in differences if d.kind != "strides" or d.name.split("[")[0] not in loose]
    if any(d.kind in ("values", "gradient", "sizes") for d in differences):
        unsure = undetermined(program, wanted, limit)
        sure = [] if unsure is None else [d for d in differences if d.name not in unsure]
        result.undetermined = len(differences) - len(sure)
        differences = sure
    result.differences = differences + streams_apart(program, wanted, got)
    return result


def attempt(program, open_world, look):
    """One run beside the reference. Raises LineError where a line is refused, Invalid where the reference fails."""
    with reference_world(program) as one_rank:
        wanted = reference_of(program, one_rank)
        with open_world(program) as world:
            got = laid_out(program, world)
            result = judged(program, wanted, got, Result(program))
            if look:
                look(result, got)
            return result


def lockstep(program):
    return it.lockstep(mesh_text(program.mesh))


def check(program, open_world=lockstep, look=None, agree=lambda line: None):
    """Runs a program in lockstep, or in another world. A line that is refused is dropped, with all that need what it
    makes, and the rest runs anew. `look` gets the result and the laid-out side while its world is open; `agree` the
    number of the line that stopped a run, or -1 at its end."""
    refusals = []
    for _ in range(ROUNDS):
        try:
            result = attempt(program, open_world, look)
            agree(-1)
            break
        except LineError as error:
            agree(error.line)
            if error.line < 0:
                result = Result(program.change(lines=()))
                refusals.append(Refusal("inputs", str(error)))
                break
            refusals.append(Refusal(program.lines[error.line], str(error)))
            program = without_dependents(program, error.line)
    else:
        raise Invalid(f"{ROUNDS} lines are refused")
    result.refusals = refusals
    return result
