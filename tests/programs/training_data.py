"""What a random training run is: plain data with a text form, how it is drawn, and what is a little less of it.

A run is one line, such as

    seed=7 mesh=[dp=2] way=fully_shard options=keep batch=S(0) sizes=4x3x5 dtype=f64 entry=tokens blocks=mlp,=0,attention
    model=tied,ema optimizer=adamw,fused steps=acc2+clip;eval;raise_backward

(one blank between parts). All that it does follows from this text, on any machine.

    seed       of weights, data, layouts and plans
    mesh       the ranks
    way        how the model is distributed: see WAYS; `options` belong to it
    batch      the layout of the batch; nothing to `replicate`, where each rank has its rows
    sizes      rows of a batch, their length, the width of the model
    blocks     what the model is made of, in this order: see BLOCKS. `mlp!` is frozen, `mlp~0` has the first weight of
               block 0, `=0` is block 0 once more
    model      what holds for the whole run: see TRAITS
    steps      of the loop, each with its habits: see HABITS; `o0.0.2` uses blocks 0, 0, 2; `b3` has 3 rows; `freeze1`
               freezes block 1 for this step
"""

import dataclasses
import random
import re

WAYS = ("replicate", "fully_shard", "parallelize", "plan", "fully_shard_plan")
BLOCKS = (
    "mlp", "inplace", "attention", "multiquery", "fused", "conv", "norm", "rms", "group", "batchnorm", "mean", "tiny",
    "list", "weightnorm", "views", "single", "half", "position", "experts", "gru", "idle",
)  # fmt: skip
WRITES_BUFFERS = ("batchnorm", "mean")
LOW = ("single", "half")  # blocks of another dtype
OPTIONS = {
    "replicate": ("small_buckets", "averaged"),
    "fully_shard": ("keep", "no_prefetch", "hybrid", "dims", "one_group"),
    "parallelize": (),
    "plan": ("chunks2", "chunks0"),
    "fully_shard_plan": ("keep", "no_prefetch", "chunks2", "dims"),
}
TRAITS = (
    "tied", "two_models", "ema", "hooks", "after_hooks", "schedule", "groups", "two_optimizers", "meta",
)  # fmt: skip
OPTIMIZERS = ("sgd", "adamw", "adam", "rmsprop", "adagrad")
FORMS = ("foreach", "loop", "fused")
# Each with how often it comes, in steps of a hundred.
HABITS = {
    "acc1": 8, "acc2": 6, "drop": 3, "eval": 10, "infer": 6, "mid": 4, "release": 4, "raise_forward": 5,
    "raise_backward": 5, "zero": 12, "keep": 8, "ckpt": 8, "reentrant": 0.3, "two_losses": 5, "retain": 5,
    "penalty": 3, "twice": 5, "detach": 4, "reg": 6, "clip": 8, "clip_ours": 6, "clip_value": 3, "scale": 5,
    "scaler": 4, "poke": 5, "rows": 3, "data": 4, "to": 3, "double": 2, "save": 6, "load": 6, "copy": 4, "grad_zeros": 4,
    "thaw": 3, "no_step": 3, "closure": 3, "total": 5, "finish": 20,
}  # fmt: skip
KEYS = ("seed", "mesh", "way", "options", "batch", "sizes", "dtype", "entry", "blocks", "model", "optimizer", "steps")


@dataclasses.dataclass(frozen=True)
class Run:
    seed: int
    mesh: str
    way: str
    options: tuple[str, ...]
    batch: str
    sizes: tuple[int, int, int]
    dtype: str
    entry: str
    blocks: tuple[str, ...]
    model: tuple[str, ...]
    optimizer: tuple[str, ...]
    steps: tuple[tuple[str, ...], ...]

    def text(self):
        values = {key: getattr(self, key) for key in KEYS}
        values["sizes"] = "x".join(map(str, self.sizes))
        values["steps"] = ";".join("+".join(step) for step in self.steps)
        joined = {k: ",".join(v) if isinstance(v, tuple) else str(v) for k, v in values.items()}
        return " ".join(f"{key}={joined[key]}" for key in KEYS)

    def axes(self):
        """Names and sizes of the mesh's axes."""
        return {name: int(size) for name, size in (a.split("=") for a in self.mesh.strip("[]").split(","))}

    def ranks(self):
        count = 1
        for size in self.axes().values():
            count *= size
        return count

    def has(self, *names):
        """Whether any block, trait, option or habit has one of these names."""
        kinds = [kind_of(b) for b in self.blocks]
        every = {*kinds, *self.model, *self.options, *self.optimizer, *(h for step in self.steps for h in step)}
        return not every.isdisjoint(names)


def kind_of(block):
    """`mlp` of `mlp!` and of `mlp~0`; `=` of `=0`."""
    return "=" if block[0] == "=" else re.match(r"\w+", block)[0]


def other_of(block):
    """The number of the block that this one shares with, or None."""
    found = re.search(r"[=~](\d+)", block)
    return int(found[1]) if found else None


def listed(text, separator=","):
    return tuple(part for part in text.split(separator) if part)


def parse(text):
    """The run of a text. ValueError where it is none."""
    given = dict(part.partition("=")[::2] for part in text.split())
    if tuple(given) != KEYS:
        raise ValueError(f"a run has {', '.join(KEYS)}, in this order, not {', '.join(given)}")
    steps = tuple(listed(step, "+") for step in given["steps"].split(";"))
    run = Run(
        int(given["seed"]), given["mesh"], given["way"], listed(given["options"]), given["batch"],
        tuple(int(n) for n in given["sizes"].split("x")), given["dtype"], given["entry"], listed(given["blocks"]),
        listed(given["model"]), listed(given["optimizer"]), steps,
    )  # fmt: skip
    check(run)
    return run


def check(run):
    """ValueError where names are not known or numbers do not fit."""

    def known(what, names, table):
        for name in names:
            if name not in table:
                raise ValueError(f"{name!r} is none of the {what}: {', '.join(table)}")

    known("ways", [run.way], WAYS)
    known("options", run.options, OPTIONS[run.way])
    known("traits", run.model, TRAITS)
    known("blocks", [kind_of(b) for b in run.blocks], (*BLOCKS, "="))
    known("optimizers", run.optimizer[:1], OPTIMIZERS)
    known("dtypes", [run.dtype], ("f64", "f32"))
    known("entries", [run.entry], ("tokens", "floats"))
    if len(run.sizes) != 3:
        raise ValueError("sizes are rows, length and width")
    for number, block in enumerate(run.blocks):
        other = other_of(block)
        if other is not None and not (other < number and kind_of(run.blocks[other]) != "="):
            raise ValueError(f"block {number}, {block!r}, shares with an earlier block of its own")
    for step in run.steps:
        known("habits", [h for h in step if not re.fullmatch(r"o[\d.]*|b\d+|freeze\d+", h)], HABITS)


# --- drawing -------------------------------------------------------------------------------


def meshes(ranks):
    """Meshes of one and two axes."""
    pairs = [(a, ranks // a) for a in range(1, ranks + 1) if ranks % a == 0]
    return [f"[dp={ranks}]"] * 2 + [f"[dp={a},tp={b}]" for a, b in pairs]


def draw_mesh(chance, way, ranks):
    ranks = ranks or chance.choice([1, 2, 2, 2, 3, 3, 4, 4, 4])
    if way == "replicate":
        return f"[dp={ranks}]"
    found = meshes(ranks)
    if way == "fully_shard_plan":
        found = [m for m in found if "tp" in m]
    if way == "plan":
        found = [m for m in found if "tp" in m] + [f"[tp={ranks}]"] * 2
    return chance.choice(found)


def draw_batch(chance, way, axes):
    """The layout of the batch: rows over dp, mostly."""
    if way == "replicate":
        return "-"
    usual = {"dp": ["S(0)"] * 6 + ["R"], "tp": ["R"] * 4 + ["S(0)"]}
    if way == "parallelize":
        usual["tp"].append("S(1)")
    return ",".join(chance.choice(usual[axis]) for axis in axes)


def draw_blocks(chance, way):
    blocks = []
    for number in range(chance.choice([1, 2, 3, 3, 4])):
        own = [i for i, b in enumerate(blocks) if b[0] != "="]
        if own and chance.random() < 0.12:
            blocks.append(f"={chance.choice(own)}")
            continue
        kind = "mlp" if chance.random() < 0.25 else chance.choice(BLOCKS)
        ties = [i for i in own if kind_of(blocks[i]) == "mlp"]
        if kind == "mlp" and ties and chance.random() < 0.3:
            kind += f"~{chance.choice(ties)}"
        blocks.append(kind + ("!" if chance.random() < 0.07 else ""))
    return tuple(blocks)


def draw_order(chance, count):
    """Blocks in another order, some left out, some twice."""
    order = [i for i in range(count) if chance.random() < 0.8]
    chance.shuffle(order)
    return order + order[:1] * chance.choice([0, 0, 1])


def draw_step(chance, blocks, batch, trouble):
    habits = [name for name, often in HABITS.items() if chance.random() * 100 < often * trouble]
    if chance.random() < 0.25:
        habits.append("o" + ".".join(map(str, draw_order(chance, len(blocks)))))
    if chance.random() < 0.2:
        habits.append(f"b{chance.choice([1, 2, 3, batch + 1])}")
    if chance.random() < 0.08:
        habits.append(f"freeze{chance.randrange(len(blocks))}")
    return tuple(habits)


def draw(seed, ranks=None, ways=WAYS):
    """The run of a seed, on so many ranks."""
    chance = random.Random(f"training {seed}")
    way = chance.choice(ways)
    mesh = draw_mesh(chance, way, ranks)
    axes = [a.split("=")[0] for a in mesh.strip("[]").split(",")]
    blocks = draw_blocks(chance, way)
    rows = chance.choice([4, 4, 5, 6, 7])
    trouble = chance.choice([0.3, 0.6, 1, 1, 1.5])
    steps = [draw_step(chance, blocks, rows, trouble) for _ in range(chance.choice([2, 3, 3, 4]))]
    often = {"tied": 0.3, "two_models": 0.07, "meta": 0.1, "after_hooks": 0.05}
    form = [f for f in FORMS if chance.random() < 0.2][:1]
    run = Run(
        seed, mesh, way,
        options=tuple(o for o in OPTIONS[way] if chance.random() < 0.25),
        batch=draw_batch(chance, way, axes),
        sizes=(rows, chance.choice([2, 3, 4]), chance.choice([4, 4, 5, 6])),
        dtype=chance.choice(["f64"] * 7 + ["f32"]),
        entry=chance.choice(["tokens", "floats"]),
        blocks=blocks,
        model=tuple(t for t in TRAITS if chance.random() < often.get(t, 0.12)),
        optimizer=(chance.choice(OPTIMIZERS), *form),
        steps=tuple(steps),
    )  # fmt: skip
    return sensible(run)


def rows_of(run, step):
    return next((int(h[1:]) for h in step if re.fullmatch(r"b\d+", h)), run.sizes[0])


def sensible(run):
    """The run without what plain training cannot do either, or what means something else on purpose."""
    model, optimizer, options = list(run.model), list(run.optimizer), list(run.options)
    steps = [list(step) for step in run.steps]

    def never(names, listed):
        listed[:] = [name for name in listed if name not in names]

    if run.entry == "floats":
        never({"tied"}, model)
    if {kind_of(block) for block in run.blocks} - {"mlp", "="}:
        never({"meta"}, model)  # other blocks have parameters that no reset_parameters() sets, which is refused
    if "half" in map(kind_of, run.blocks):
        optimizer[0] = "sgd"  # others divide by the gradient's size: rounding of a gradient near zero becomes a step
        never({"fused"}, optimizer)
    if optimizer[0] in ("rmsprop",):
        never({"fused"}, optimizer)
    if len(run.axes()) == 1:
        never({"hybrid"}, options)
    if run.way == "replicate":
        # Plain modules: there is nothing to make in pieces, and hooks see what the rank has.
        never({"meta", "after_hooks"}, model)
    if run.way.startswith("fully_shard"):
        never({"after_hooks"}, model)  # documented: hooks for accumulated gradients do not run
    for step in steps:
        if run.way == "replicate":
            never({"release", "penalty"}, step)
            if run.has(*WRITES_BUFFERS):
                # A recomputed forward writes buffers within backward, of all ranks at once in the reference.
                never({"ckpt", "reentrant", "load"}, step)
                step[:] = [h for h in step if not re.fullmatch(r"b\d+", h)]
        else:
            never({"finish"}, step)
        if run.has("attention", "multiquery"):
            never({"penalty"}, step)  # torch has no second derivative of its kernel
        if "release" in step and not {"eval", "infer"} & set(step):
            never({"release"}, step)
        if "closure" in step:
            never({"clip", "clip_ours", "clip_value", "scale", "scaler", "no_step", "keep", "finish"}, step)
        if "scaler" in step:
            never({"scale"}, step)
        if "reentrant" in step:
            never({"ckpt"}, step)
        if {"retain", "raise_backward", "penalty", "two_losses", "reg"} & set(step):
            never({"finish"}, step)
        if run.has("tied") or run.has(*LOW):
            never({"double"}, step)
        if run.dtype == "f32":
            never({"double"}, step)
    return dataclasses.replace(
        run, model=tuple(model), optimizer=tuple(optimizer), options=tuple(options), steps=tuple(map(tuple, steps))
    )


def without(run, names):
    """The run without blocks, traits, options and habits of these names."""

    def left(listed):
        return tuple(name for name in listed if name not in names)

    blocks = tuple("mlp" if kind_of(b) in names and b[0] != "=" else b for b in run.blocks)
    steps = tuple(left(step) for step in run.steps)
    return sensible(dataclasses.replace(run, blocks=blocks, model=left(run.model), options=left(run.options), steps=steps))


# --- a little less -------------------------------------------------------------------------


def without_block(run, number):
    """The run without a block, or None where another one shares with it."""
    if len(run.blocks) < 2 or any(other_of(b) == number for b in run.blocks):
        return None

    def moved(match):
        at = int(match[2])
        return f"{match[1]}{at - (at > number)}"

    blocks = tuple(re.sub(r"([=~])(\d+)", moved, b) for i, b in enumerate(run.blocks) if i != number)
    steps = []
    for step in run.steps:
        habits = []
        for h in step:
            if h == f"freeze{number}":
                continue
            if re.fullmatch(r"o[\d.]*", h):
                order = [int(n) for n in h[1:].split(".") if n]
                h = "o" + ".".join(str(n - (n > number)) for n in order if n != number)
            habits.append(re.sub(r"(freeze)(\d+)", moved, h))
        steps.append(tuple(habits))
    return dataclasses.replace(run, blocks=blocks, steps=tuple(steps))


def smaller(run):
    """Runs that do a little less, the boldest first."""
    change = dataclasses.replace
    for i in reversed(range(len(run.steps))):
        if len(run.steps) > 1:
            yield change(run, steps=run.steps[:i] + run.steps[i + 1 :])
    for i in reversed(range(len(run.blocks))):
        if (less := without_block(run, i)) is not None:
            yield less
    for i, step in enumerate(run.steps):
        for j in range(len(step)):
            yield change(run, steps=(*run.steps[:i], step[:j] + step[j + 1 :], *run.steps[i + 1 :]))
    for key in ("model", "options"):
        values = getattr(run, key)
        for i in range(len(values)):
            yield change(run, **{key: values[:i] + values[i + 1 :]})
    if run.optimizer != ("sgd",):
        yield change(run, optimizer=("sgd",))
        yield change(run, optimizer=run.optimizer[:1])
    yield from simpler_blocks(run)
    yield from simpler_mesh(run)
    if run.entry == "tokens" and "tied" not in run.model:
        yield change(run, entry="floats")
    if run.dtype == "f32":
        yield change(run, dtype="f64")
    for at, least in enumerate((2, 2, 4)):
        if run.sizes[at] > least:
            yield change(run, sizes=(*run.sizes[:at], least, *run.sizes[at + 1 :]))


def simpler_blocks(run):
    """A block that neither is frozen nor shares, or an mlp in its place."""
    for i, block in enumerate(run.blocks):
        for other in ("mlp",) if block[0] == "=" else (kind_of(block), "mlp"):
            if other != block:
                yield dataclasses.replace(run, blocks=(*run.blocks[:i], other, *run.blocks[i + 1 :]))


def simpler_mesh(run):
    """The same on one axis, and on fewer ranks."""
    axes = run.axes()
    layouts = dict(zip(axes, run.batch.split(",")))
    for name in axes:
        if len(axes) > 1 and not (run.way == "fully_shard_plan" or (run.way == "plan" and name == "tp")):
            left = {n: s for n, s in axes.items() if n != name}
            if run.way == "fully_shard" and "dp" not in left:
                continue
            yield remeshed(run, left, layouts)
    for name, size in axes.items():
        if size > 2:
            yield remeshed(run, axes | {name: 2}, layouts)


def remeshed(run, axes, layouts):
    mesh = "[" + ",".join(f"{n}={s}" for n, s in axes.items()) + "]"
    batch = run.batch if run.way == "replicate" else ",".join(layouts[n] for n in axes)
    options = tuple(o for o in run.options if o != "hybrid" or len(axes) > 1)
    return dataclasses.replace(run, mesh=mesh, batch=batch, options=options)


def shrink(run, first_failing, tries=200, ranks=None):
    """The least run that is found to fail as this one does. `first_failing(runs)`: the number of the first of them that
    does, or None. With `ranks` it keeps so many."""
    at = 0
    while tries > 0:
        less = [sensible(r) for r in smaller(run)]
        less = [r for r in less[at:] + less[:at] if r != run and ranks in (None, r.ranks())][:tries]
        found = first_failing(less)
        if found is None:
            break
        tries -= found + 1
        # What came before it did not fail for a bigger run, and is tried again at the end.
        run, at = less[found], (at + found) % len(less)
    return run
