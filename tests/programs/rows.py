"""The op table as lines of programs: samples of the prover, with values of a program in place of made-up tensors.

    sum.dim_IntList(f64[4, 6], [-1], True)    ->    v3 = aten.sum.dim_IntList(v1, [-1], True)

The samples are those of src/prove/samples_table.cpp, and for pointwise ops that have none there, made from the schema;
the ops that count are those of docs/generated/ops.md, which a test compares with the table of rules.
"""

import functools
import pathlib
import re

import torch


ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = ROOT / "src" / "prove" / "samples_table.cpp"
PAGE = ROOT / "docs" / "generated" / "ops.md"

DTYPES = {
    "f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i64": torch.int64,
    "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool, "b1": torch.bool,
    "c128": torch.complex128, "c64": torch.complex64,
}  # fmt: skip
LOW = {"f32", "bf16", "f16", "c64"}  # dtypes with fewer bits than programs have as a rule
FORMATS = {"channels_last", "channels_last_3d", "contiguous", "preserve"}
TENSOR = re.compile(
    rf"\b({'|'.join(DTYPES)})(\[[^\]]*\]|\$)(<\d+|>0|in\([^)]*\)|distinct|of\([^)]*\))?(~\([^)]*\))?"
)
WORD = re.compile(rf"(?<![\w.'])({'|'.join([*DTYPES, *FORMATS, 'strided', 'cpu'])})(?![\w(\[$'])")

# Ops that only ATen itself calls, which says nothing of what becomes of their memory or gradients.
NOT_CALLED = {"_unsafe_view", "detach_copy"}

# Sizes that stand for `$`: of one tensor, and of two or three that broadcast.
SIZES = {
    1: [[[]], [[5]], [[4, 6]], [[3, 1, 7]], [[3, 0]], [[2, 3, 4]], [[7]], [[3]], [[4, 3]]],
    2: [[[], []], [[5], [5]], [[5], []], [[], [5]], [[3, 4], [4]], [[3, 4], [3, 1]], [[7], [2, 7]], [[2, 1, 5], [3, 1]],
        [[4, 6], [4, 6]], [[1, 4], [3, 1]]],
    3: [[[], [], []], [[5], [5], [5]], [[5], [], []], [[], [3, 4], [4]], [[3, 4], [4], [3, 1]], [[3, 1], [5], [3, 5]],
        [[4, 6], [4, 6], [4, 6]]],
}  # fmt: skip


def sample_lines():
    """The lines of the table as written."""
    parts = re.findall(r'R"\(\n(.*?)\)"', TABLE.read_text(), re.S)
    return [line for part in parts for line in part.splitlines() if line]


def overload_of(name):
    """torch's op of a name such as `sum.dim_IntList`; None where this torch has none."""
    base, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    return getattr(packet, overload or "default", None) if packet is not None else None


def pattern_argument(argument):
    """A made-up argument of a pointwise op that has no sample."""
    kind = str(argument.type)
    if kind == "Tensor":
        return {"n": "i64$<4", "x": "f64$in(0, 1)"}.get(argument.name, "f64$")
    numbers = {"number": "3" if argument.name == "n" else "0.5", "float": "0.5", "int": "2", "bool": "False"}
    return numbers.get(kind)


def pointwise_lines(known):
    """Lines with `$` for ops that ATen tags pointwise, and of which the table has none."""
    lines = []
    for full_name in sorted(torch._C._dispatch_get_all_op_names()):
        if not full_name.startswith("aten::") or full_name.startswith("aten::_foreach"):
            continue
        name = full_name.removeprefix("aten::")
        op = overload_of(name) if name not in known else None
        if op is None or torch.Tag.pointwise not in op.tags or torch.Tag.nondeterministic_seeded in op.tags:
            continue
        schema = op._schema
        if schema.is_mutable or any(str(r.type) != "Tensor" for r in schema.returns):
            continue
        parts = [pattern_argument(a) for a in schema.arguments if not a.has_default_value()]
        if None not in parts and any("$" in part for part in parts):
            lines.append(f"{name}({', '.join(parts)})")
    return lines


class Sample:
    """A line of the table: its op, and its text with the tensors to be filled in."""

    def __init__(self, line):
        self.text = line
        self.name = line[: line.index("(")]
        self.op = overload_of(self.name)
        self.tensors = [found.groups() for found in TENSOR.finditer(line)]
        self.low = any(dtype in LOW for dtype, *_ in self.tensors) or any(word in LOW for word in WORD.findall(line))

    @property
    def base(self):
        return self.name.split(".")[0]

    def call(self, operands, name=None, extra=""):
        """The line's call with these operands, of this op or of its like in place."""
        given = iter(operands)
        body = TENSOR.sub(lambda _: next(given), self.text[self.text.index("(") + 1 : -1])
        body = WORD.sub(python_word, body)
        called = name or self.name
        if "." not in called:
            called += ".default"
        return f"aten.{called}({named_where_needed(self.op, body)}{extra})"

    @functools.cached_property
    def written_in_place(self):
        """The name of the op that does the same in place, if there is one."""
        base, _, overload = self.name.partition(".")
        name = f"{base}_" + (f".{overload}" if overload else "")
        op = overload_of(name)
        return name if op is not None and self.tensors and self.is_first_a_tensor() else None

    @functools.cached_property
    def written_out(self):
        """The name of the op that writes into one tensor `out`, if there is one."""
        base, _, overload = self.name.partition(".")
        for name in (f"{base}.{overload}_out" if overload else f"{base}.out", f"{base}.out"):
            op = overload_of(name)
            if op is None:
                continue
            ours = [a.name for a in self.op._schema.arguments]
            theirs = [a.name for a in op._schema.arguments]
            if theirs[:-1] == ours and theirs[-1] == "out":
                return name
        return None

    def is_first_a_tensor(self):
        return bool(re.match(TENSOR, self.text[self.text.index("(") + 1 :]))


def python_word(found):
    word = found[1]
    if word in FORMATS:
        return "torch." + (word if word.startswith("channels") else f"{word}_format")
    if word == "strided":
        return "torch.strided"
    return "'cpu'" if word == "cpu" else str(DTYPES[word])


def split_arguments(body):
    """The arguments of a call's text."""
    parts, depth, begin = [], 0, 0
    for at, letter in enumerate(body):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append(body[begin:at].strip())
            begin = at + 1
    return parts + [body[begin:].strip()] * bool(body.strip())


def named_where_needed(op, body):
    """Arguments that Python takes only by name get theirs."""
    arguments = op._schema.arguments
    parts = []
    for index, part in enumerate(split_arguments(body)):
        named = re.match(r"[a-z_]\w*=", part)
        parts.append(f"{arguments[index].name}={part}" if not named and arguments[index].kwarg_only else part)
    return ", ".join(parts)


@functools.cache
def samples():
    """All samples, by the op's name with overload."""
    lines = sample_lines()
    known = {line[: line.index("(")] for line in lines}
    found = {}
    for line in lines + pointwise_lines(known):
        sample = Sample(line)
        if sample.op is not None and sample.name.partition(".")[0] not in NOT_CALLED:
            found.setdefault(sample.name, []).append(sample)
    return found


# ---- operands ----------------------------------------------------------------------------------


def maker_of(dtype, values, sizes):
    """The expression of an input for a tensor of a sample; sizes are a list."""
    given = "".join(f", {size}" for size in sizes)
    plain = given.removeprefix(", ")
    if values is None:
        code = {"i": f"ints(-4, 5{given})", "u": f"ints(0, 5{given})", "b": f"bools({plain})", "c": f"cplx({plain})"}
        kind = "f" if dtype == "bf16" else dtype[0]
        coarse = dtype in ("bf16", "f16")
        made = code.get(kind, f"{'coarse' if coarse else 'randn'}({plain})")
    elif values.startswith("<"):
        made = f"ints(0, {values[1:]}{given})"
    elif values == ">0":
        made = f"positive({plain})" if dtype[0] in "fbc" else f"ints(1, 5{given})"
    elif values == "distinct":
        made = f"distinct({plain})" if dtype[0] in "fb" else f"(distinct({plain}) * 4)"
    elif values.startswith("in("):
        low, high = values[3:-1].split(",")
        made = f"between({low.strip()}, {high.strip()}{given})"
        if dtype[0] in "iu":
            made = f"ints({low.strip()}, {int(float(high)) + 1}{given})"
    else:
        numbers = re.sub(r"\b(nan|inf)\b", r"float('\1')", values[3:-1])
        made = f"listed([{numbers}]{given})"
    default = {"ints": "i64", "bools": "bool", "cplx": "c128"}.get(made.split("(")[0], "f64")
    return made if DTYPES[dtype] == DTYPES[default] else f"{made}.to({DTYPES[dtype]})"


def in_order(code, order):
    """The expression in another order in memory: dimensions from the outermost to the innermost."""
    if not order:
        return code
    dims = [int(dim) for dim in order[2:-1].split(",")]
    back = [dims.index(dim) for dim in range(len(dims))]
    return f"{code}.permute({dims}).contiguous().permute({back})"


# ---- coverage ----------------------------------------------------------------------------------


@functools.cache
def table_rows():
    """The ops that the page lists, and how each is done, by name."""
    rows, how = {}, None
    titles = {
        "Ops with a rule": "rule", "Pointwise": "pointwise", "Views": "view", "Random": "random", "Lists": "each",
        "New tensors": "like",
    }  # fmt: skip
    in_table = False
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            how = next((word for title, word in titles.items() if line.startswith(f"## {title}")), None)
            in_table = False
        elif how == "rule" and line.startswith("### "):
            rows[line.removeprefix("### ")] = how
        elif how and how != "rule":
            in_table = in_table or line.startswith(("|", "These"))
            if not in_table and line.startswith("`"):
                for name in re.findall(r"`(\w+)`", line):
                    rows.setdefault(name, how)
    return rows


def row_of(op):
    """The row of a called op: those in place and with `out` belong to the op itself."""
    rows = table_rows()
    name = op._schema.name.removeprefix("aten::")
    return name if name in rows or not name.endswith("_") or name.endswith("__") else name[:-1]


