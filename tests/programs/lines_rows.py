"""Lines from rows of the op table: a sample's call on values of the program."""

import functools

import torch

import rows
import torch_differences
from draft import Unfit, kind

# Writes to running statistics, which its schema does not say.
HIDDEN_WRITES = {"native_batch_norm"}
# ATen has these for itself: they return what cannot be compared, or need what a program has not.
NOT_CALLED = {"_fused_moving_avg_obs_fq_helper", "_fused_moving_avg_obs_fq_helper_functional", "_fused_sdp_choice"}


@functools.cache
def names_of_samples():
    """Names of ops with their overloads; those of one row stand together, for a fair draw."""
    by_row = {}
    for name, samples in sorted(rows.samples().items()):
        if samples[0].base not in NOT_CALLED:
            by_row.setdefault(samples[0].base, []).append(name)
    return list(by_row.values())


def sample(d):
    """A sample of a random row; of few bits only where the program has such."""
    found = rows.samples()[d.one(*d.one(*names_of_samples()))]
    fit = [each for each in found if d.low or not each.low]
    if not fit:
        raise Unfit
    return d.one(*fit)


def sizes_of(d, tensors):
    """The sizes of a sample's tensors; `$` gets some that broadcast."""
    patterns = sum(sizes == "$" for _, sizes, *_ in tensors)
    if patterns:
        chosen = iter(d.one(*rows.SIZES[min(patterns, 3)]) + [[]] * 9)
    return [next(chosen) if sizes == "$" else eval(sizes) for _, sizes, *_ in tensors]


def operand(d, tensor, sizes):
    """A value that can stand for a tensor of a sample, as it is or reshaped, cast or sliced; else a new input."""
    dtype, _, values, order = tensor
    wanted = rows.DTYPES[dtype]
    if not order and d.often(0.65):
        made = from_values(d, wanted, values, sizes)
        if made:
            return made
    return d.input(rows.in_order(rows.maker_of(dtype, values, sizes), order))


def from_values(d, dtype, values, sizes):
    shape = torch.Size(sizes)
    if values not in (None, ">0") and not values.startswith("<"):
        return None
    if dtype.is_floating_point or dtype.is_complex:
        alike = lambda t: t.is_floating_point() or t.is_complex() == dtype.is_complex  # noqa: E731
    else:
        alike = lambda t: not t.is_floating_point() and not t.is_complex()  # noqa: E731
    name = None
    ways = {
        "{}": lambda t: t.dtype == dtype and t.shape == shape,
        "{}.to(%s)" % dtype: lambda t: t.shape == shape and alike(t),
        "{}.reshape(%s)" % list(sizes): lambda t: t.dtype == dtype and t.numel() == shape.numel() and t.numel() > 0,
        "{}[%s]" % ", ".join(f":{size}" for size in sizes): lambda t: t.dtype == dtype
        and sizes
        and t.dim() == len(sizes)
        and all(a >= b for a, b in zip(t.shape, sizes)),
    }
    for form, fits in ways.items():
        try:
            name = form.format(d.value(fits))
            break
        except Unfit:
            continue
    if name is None:
        return None
    if values == ">0":
        return f"({name}.abs() + 0.5)" if dtype.is_floating_point else f"({name}.abs().remainder(4) + 1)"
    return f"{name}.remainder({values[1:]})" if values else name


def results(d, chosen, call):
    """The line that names all results of a call."""
    returns = chosen.op._schema.returns
    if len(returns) == 1 and str(returns[0].type) == "Tensor":
        return f"{d.new()} = {call}"
    if len(returns) == 1:  # a list: of two at least
        copied = chosen.base.startswith("unsafe_")  # torch forbids writes to these, and does not see them
        call = f"[t.clone() for t in {call}]" if copied else call
        return f"{d.new()}, {d.new()} = {call}[:2]"
    return ", ".join(d.new() for _ in returns) + f" = {call}"


@kind(7)
def row(d):
    chosen = sample(d)
    sizes = sizes_of(d, chosen.tensors)
    operands = [operand(d, tensor, size) for tensor, size in zip(chosen.tensors, sizes)]
    if torch_differences.avoids(chosen.base, torch_differences.STRIDED):
        operands = [f"{each}.contiguous()" for each in operands]
    if chosen.base == "linalg_lstsq":
        check_least_squares(d, *operands[:2])
    draw = d.chance.random()
    if draw < 0.15 and chosen.written_in_place:
        return in_place(d, chosen, operands)
    if draw < 0.27 and chosen.written_out and not torch_differences.avoids(chosen.base, torch_differences.OUT):
        return into_out(d, chosen, operands)
    if chosen.op._schema.is_mutable or chosen.base in HIDDEN_WRITES:
        operands = [f"{each}.clone()" if each in operands[:i] else each for i, each in enumerate(operands)]
        for i, each in enumerate(operands):
            check_apart(d, chosen, [each], operands[:i])
    return results(d, chosen, chosen.call(operands))


def check_least_squares(d, matrices, right):
    """Raises Unfit where rounding says which of many solutions is found, or which sign a part of it has that is zero."""
    with torch.no_grad():
        found = eval(matrices, d.names)
        if found.numel() == 0:
            return
        full = bool((torch.linalg.matrix_rank(found, rtol=1e-6) == min(found.shape[-2:])).all())
        if not full or bool((torch.linalg.lstsq(found, eval(right, d.names)).solution.abs() < 1e-9).any()):
            raise Unfit


def check_apart(d, chosen, written, read):
    """Raises Unfit where an op would write to memory that it also reads, unless it is pointwise and reads the very same
    tensor: see torch_differences.py."""
    pointwise = torch.Tag.pointwise in chosen.op.tags
    for one in written:
        if any(d.shares(one, other) for other in read if not (pointwise and one == other)):
            raise Unfit


def in_place(d, chosen, operands):
    """The op that writes its first operand."""
    first, *rest = operands
    if not first.isidentifier():
        first = d.new()
        return f"{first} = {operands[0]}.clone(); " + chosen.call([first, *rest], chosen.written_in_place)
    check_apart(d, chosen, [first], rest)
    return chosen.call(operands, chosen.written_in_place)


def into_out(d, chosen, operands):
    """The op with `out`: a value of the result's sizes and dtype, or a new one."""
    with torch.no_grad():
        result = eval(chosen.call(operands), d.names)
    fits = lambda t: t.dtype == result.dtype and t.shape == result.shape and not t.requires_grad  # noqa: E731
    made = ""
    try:
        out = d.value(fits)
        strided = torch_differences.avoids(chosen.base, torch_differences.STRIDED_OUT)
        if strided and not d.at(out).is_contiguous():
            raise Unfit
        check_apart(d, chosen, [out], operands)
    except Unfit:
        out = d.new()
        alike = [name for name in d.values if d.at(name).shape == result.shape and d.at(name).is_contiguous()]
        like = alike[0] if alike else None
        sizes = f"{d.values[0]}.new_zeros({list(result.shape)}, dtype={result.dtype})"
        made = f"{out} = " + (f"torch.zeros_like({like}, dtype={result.dtype}); " if like else f"{sizes}; ")
    return f"{made}with_no_grad(lambda: {chosen.call(operands, chosen.written_out, f', out={out}')})"


GIVEN = {"number": "0.5", "float": "0.5", "int": "2", "List[number]": "[0.5, 2.]", "bool": "False"}


@functools.cache
def lists_of_tensors():
    """Ops of the page that work on lists, in place and not."""
    found = []
    for name, how in rows.table_rows().items():
        if how != "each" or name in NOT_CALLED:
            continue
        for packet_name in (name, f"{name}_"):
            packet = getattr(torch.ops.aten, packet_name, None)
            for overload in packet.overloads() if packet else []:
                op = getattr(packet, overload)
                kinds = {str(a.type) for a in op._schema.arguments}
                if not overload.endswith("out") and kinds <= {"List[Tensor]", *GIVEN}:
                    found.append((f"{packet_name}.{overload}", op))
    return found


@kind(1.5)
def row_of_lists(d):
    name, op = d.one(*lists_of_tensors())
    writes = op._schema.is_mutable
    x, y = (d.writable(), d.writable()) if writes else (d.real(), d.real())
    if writes and x == y:
        raise Unfit
    given = []
    for argument in op._schema.arguments:
        kind_of = str(argument.type)
        positive = f"[{x}.detach().abs() + 0.5, {y}.detach().abs() + 0.5]"
        value = GIVEN.get(kind_of) or (f"[{x}, {y}]" if not given and (writes or d.often(0.4)) else positive)
        given.append(f"{argument.name}={value}" if argument.kwarg_only else value)
    call = f"aten.{name}({', '.join(given)})"
    return f"{d.new()}, {d.new()} = {call}" if op._schema.returns else call


STATE = {"amsgrad": "False", "maximize": "False", "nesterov": "False", "is_first_step": "True", "dampening": "0."}


@kind(0.4)
def optimizer_step(d):
    """A fused step of an optimizer on a value, whose gradient and states are made from it. All lie alike: no partial
    values, which these ops refuse."""
    source, x = d.value(lambda t: t.dtype == torch.float64 and not t.requires_grad), d.new()
    op = getattr(torch.ops.aten, d.one("_fused_sgd_", "_fused_adam_", "_fused_adamw_", "_fused_adagrad_"))
    given = []
    for argument in op.default._schema.arguments:
        if argument.has_default_value():
            continue
        if argument.name == "self":
            given.append(f"[{x}]")
        elif argument.name == "state_steps":
            given.append(f"[{x}.new_ones((), dtype=torch.float32)]")
        elif str(argument.type) == "List[Tensor]":
            empty = argument.name in ("max_exp_avg_sqs", "momentum_buffer_list")
            given.append("[]" if empty else f"[{x}.cos().square()]")
        else:
            given.append(f"{argument.name}={STATE.get(argument.name, '0.1')}")
    if op.__name__ == "_fused_sgd_":
        given = [each.replace("momentum=0.1", "momentum=0.") for each in given]
    return f"{x} = {source}.sin(); aten.{op.__name__}.default({', '.join(given)})"
