"""Checkpoints: the state of a training run on disk, in pieces. See docs/checkpoints.md."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from . import _C
from ._dtensor import as_ours
from ._world import world as default_world

Path = str | os.PathLike
Form = Literal["native", "hf"]
Names = Iterable[Mapping[str, Any]] | None
_SAVE, _LOAD = "save_checkpoint", "load_checkpoint"


@dataclasses.dataclass(frozen=True)
class LoadedCheckpoint:
    """What a load gave beside the tensors."""

    step: int
    values: dict[str, Any]  # what was saved, by name; not what modules, optimizers and the like of `state` have taken


def save_checkpoint(
    folder: Path,
    step: int,
    state: Mapping[str, Any],
    *,
    world: _C.World | None = None,
    replace: bool = False,
    check_replicas: bool = True,
    form: Form = "native",
    hf_file_bytes: int = 5_000_000_000,
    hf_dtype: torch.dtype | None = None,
    without: Iterable[str] = (),
) -> None:
    """Saves a step below `folder`, which is made if it is not there: each rank writes what it holds.

    `state` names what is saved: modules, optimizers, anything else with `state_dict` and `load_state_dict`, generators,
    tensors (distributed, DTensors or plain), and values of Python that are numbers, texts, lists or dicts. What cannot be
    saved is a ValueError that names it. Plain tensors and values are taken to be the same on all ranks.

    Returns when the step would survive a crash of all machines. An error is the same on all ranks, and steps that were there
    are as they were. `replace`: a step that is there already is replaced. `check_replicas`: ranks that should hold the same
    values compare them first. `without`: patterns; tensors of modules whose names, such as `model.rotary.cos`, fit one are
    left out. `form="hf"`: ranks write together into a folder as Hugging Face has it, with all of each tensor in
    files of at most `hf_file_bytes`, numbers as `hf_dtype`; give it the state dict of a model. COLLECTIVE: all ranks of the world.
    """
    with without_gc():
        _C.save_checkpoint(
            world or default_world(),
            os.fspath(folder),
            step,
            *state_to_save(_SAVE, state, patterns_of(without)),
            replace,
            check_replicas,
            checked_form(_SAVE, form, hf_file_bytes),
            hf_dtype,
        )


def checked_form(where: str, form: str, hf_file_bytes: int) -> int | None:
    """The length of files in the hf form; None for the native one."""
    if form not in ("native", "hf"):
        raise ValueError(f"[{where}] form is {form!r}; it is 'native' or 'hf'")
    if form == "hf" and hf_file_bytes < 1:
        raise ValueError(f"[{where}] hf_file_bytes is {hf_file_bytes}; it is at least 1")
    return hf_file_bytes if form == "hf" else None


@contextlib.contextmanager
def without_gc() -> Iterator[None]:
    """No collection of garbage begins: the many small lists of a state would set one off, which looks at every object of the
    program."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def state_to_save(
    where: str, state: Mapping[str, Any], without: list[str]
) -> tuple[list[tuple[str, Tensor]], dict[str, str]]:
    """The tensors of a state by name, and the rest as JSON. `where` is the function that was called."""
    collected = _Collected(where, without=without)
    for key, value in state.items():
        if isinstance(value, Tensor):
            collected.add(str(key), value)
        else:
            collected.values[key] = _kind_of(value, state).save(collected, str(key), value)
    tensors = [(name, as_ours(tensor)) for name, tensor in collected.tensors.items()]
    to_json = json.JSONEncoder(allow_nan=False).encode
    return tensors, {key: to_json(value) for key, value in collected.values.items()}


def load_checkpoint(
    folder: Path,
    state: Mapping[str, Any],
    *,
    step: int | None = None,
    world: _C.World | None = None,
    verify: bool = True,
    strict: bool = True,
    convert: bool = False,
    fall_back: bool = False,
    names: Names = None,
    only: Iterable[str] = (),
    without: Iterable[str] = (),
) -> LoadedCheckpoint:
    """Gives modules, optimizers and tensors the values of a step, by default the newest: each rank reads what it needs,
    straight into its pieces. Meshes and layouts need not be those of the run that saved.

    `state` names what is loaded, as for save_checkpoint; values of Python are returned. An optimizer may be new: its states
    are made, laid out as its parameters are. Before any tensor changes, a ValueError lists all that the step lacks, what
    nobody asks for (not `strict`: left out), and what has other sizes or another dtype (`convert`: values are converted).
    `verify`: what is read is compared with its hashes. `fall_back`: a step that is damaged or cannot be read is told on
    stderr, and the next older one is taken. `names`: rules by which saved tensors become those of the state: renamed, joined,
    split, stacked, transposed (docs/checkpoints.md). `only`: patterns; of modules and tensors only what fits one is loaded.
    `without`: patterns; tensors of modules that fit one, and saved tensors that do, are left out.
    COLLECTIVE: all ranks of the world.
    """
    patterns, left_out = patterns_of(only), patterns_of(without)
    _check_only(state, patterns)
    loading: list[_Loading] = []

    def into(contents: _C.CheckpointContents) -> list[tuple[str, Tensor]]:
        loading[:] = [_Loading(state, contents, left_out)]  # of the step that is tried now
        return [(name, as_ours(tensor)) for name, tensor in loading[0].collected.tensors.items()]

    ranks, path, rules = world or default_world(), os.fspath(folder), _rules(names)
    _C.load_checkpoint(ranks, path, into, step, verify, strict, convert, fall_back, rules, patterns, left_out)
    return loading[0].finish()


class _Loading:
    """A state that is given the values of a step: which tensors are read, and what is done when they were."""

    def __init__(self, state: Mapping[str, Any], contents: _C.CheckpointContents, without: list[str]):
        self.state, self.step = state, contents.step
        self.collected = _Collected(_LOAD, contents, without)
        missing = [key for key, value in state.items() if not self.collected.has_saved(str(key), value)]
        if missing:
            raise ValueError(
                f"[{_LOAD}] step {self.step} has nothing under {', '.join(map(repr, missing))}; nothing was changed"
            )
        self.kinds = {key: _kind_of(value, state) for key, value in state.items()}
        self.afterwards = [self.kinds[key].load(self.collected, str(key), value) for key, value in state.items()]
        for name in filter(self.collected.is_left_out, self.collected.tensors):
            raise ValueError(f"[{_LOAD}] {name!r} cannot be left out: it is of no module; nothing was changed")

    def finish(self) -> LoadedCheckpoint:
        collected = self.collected
        _note_written(collected.tensors.values())
        for each in self.afterwards:
            each()
        returned = [key for key in collected.saved_values if isinstance(self.kinds.get(key, _Value()), _Value)]
        values = {key: _decoded(collected, _saved_value(collected, key)) for key in returned}
        tensors = {key: value for key, value in self.state.items() if isinstance(value, Tensor)}
        return LoadedCheckpoint(self.step, tensors | values)


def load_hugging_face(
    folder: Path,
    module: nn.Module,
    *,
    world: _C.World | None = None,
    strict: bool = True,
    convert: bool = False,
    names: Names = None,
    only: Iterable[str] = (),
    without: Iterable[str] = (),
) -> None:
    """Gives a module, laid out or plain, the values of a folder of Hugging Face: `model.safetensors`, or several files with
    `model.safetensors.index.json`. Each rank reads what it needs, straight into its pieces, so that the module is best made
    without values, by `build_sharded` or on all ranks alike.

    Names are those of the module's state dict. Of a tensor with several names one is enough. `strict`, `convert`, `names`,
    `only` and `without` as for load_checkpoint. COLLECTIVE: all ranks of the world.
    """
    ranks, path, rules = world or default_world(), os.fspath(folder), _rules(names)
    tensors = {name: value for name, value in module.state_dict(keep_vars=True).items() if isinstance(value, Tensor)}
    try:
        contents = _C.read_hugging_face(path)
        there = (_C.with_names(contents, rules) if rules else contents).tensors
    except (_C.FileError, ValueError):  # all ranks are told below
        there = {}
    loaded = {id(value) for name, value in tensors.items() if name in there}
    wanted = {name: value for name, value in tensors.items() if name in there or id(value) not in loaded}
    laid_out = [(name, as_ours(value)) for name, value in wanted.items()]
    _C.load_hugging_face(ranks, path, laid_out, strict, convert, rules, patterns_of(only), patterns_of(without))
    _note_written(wanted.values())


def _rules(names: Names) -> str:
    return json.dumps(list(names)) if names else ""


def patterns_of(only: Iterable[str]) -> list[str]:
    return [only] if isinstance(only, str) else list(only)


def _check_only(state: Mapping[str, Any], only: list[str]) -> None:
    others = [key for key, value in state.items() if not isinstance(value, nn.Module | Tensor)]
    if only and others:
        raise ValueError(f"[{_LOAD}] `only` is for modules and tensors; leave out {', '.join(map(repr, others))}")


def _note_written(tensors: Iterable[Tensor]) -> None:
    with torch.no_grad():
        for tensor in tensors:
            if not _C.has_layout(tensor):
                torch.autograd.graph.increment_version(tensor)


def checkpoint_steps(folder: Path) -> list[int]:
    """The steps that were saved below a folder, in ascending order. Communicates nothing."""
    return _C.checkpoint_steps(os.fspath(folder))


def read_checkpoint(folder: Path, step: int | None = None) -> _C.CheckpointContents:
    """What a step, by default the newest, holds: its tensors' types by name, and its values as JSON. Communicates nothing."""
    return _C.read_checkpoint(os.fspath(folder), step)


class _Collected:
    """The tensors of a state by name, and what the values of others are."""

    def __init__(self, where: str, contents: _C.CheckpointContents | None = None, without: Iterable[str] = ()):
        self.where = where
        self.without = without  # patterns
        self.tensors: dict[str, Tensor] = {}
        self.values: dict[str, Any] = {}
        # Taken once: each time the extension makes new dicts of them.
        self.saved_tensors = contents.tensors if contents else {}
        self.saved_values = contents.values if contents else {}

    def add(self, name: str, tensor: Tensor) -> None:
        if name in self.tensors:
            raise ValueError(f"[{self.where}] two tensors are called {name!r}; give one another name")
        self.tensors[name] = tensor

    def is_left_out(self, name: str) -> bool:
        return any(_C.matches(name, pattern) for pattern in self.without)

    def has_saved(self, key: str, value: Any) -> bool:
        """Whether something was saved under a key. Of modules, tensors are enough: other programs save nothing else."""
        if key in self.saved_values or key in self.saved_tensors:
            return True
        return isinstance(value, nn.Module) and any(name.startswith(f"{key}.") for name in self.saved_tensors)

    def like_saved(self, name: str) -> Tensor:
        """A plain tensor for what was saved under a name."""
        saved = self.saved_tensors[name]
        return torch.empty(saved.shape, dtype=_DTYPES[saved.dtype.name])


# ---- values of Python as JSON. What JSON has no word for is an object with one name of these.

_TUPLE, _ITEMS, _INT, _FLOAT, _TENSOR, _DTYPE = "__tuple__", "__items__", "__int__", "__float__", "__tensor__", "__dtype__"


def _encoded(collected: _Collected, name: str, value: Any) -> Any:
    """A value as JSON; the tensors in it are collected."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Tensor):
        collected.add(name, value)
        return {_TENSOR: name}
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**63 else {_INT: str(int(value))}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {_FLOAT: str(float(value))}
    if isinstance(value, torch.dtype) and value in _DTYPE_NAMES:
        return {_DTYPE: _DTYPE_NAMES[value]}
    if isinstance(value, tuple | list):
        parts = [_encoded(collected, f"{name}.{i}", part) for i, part in enumerate(value)]
        return {_TUPLE: parts} if isinstance(value, tuple) else parts
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("__") for key in value):
            return {key: _encoded(collected, f"{name}.{key}", part) for key, part in value.items()}
        return {
            _ITEMS: [
                [_encoded(collected, f"{name}.key", key), _encoded(collected, f"{name}.{key}", part)]
                for key, part in value.items()
            ]
        }
    raise ValueError(
        f"[{collected.where}] {name!r} is a {type(value).__name__}, which no checkpoint holds; save what it is made of, or leave it out"
    )


def _decoded(collected: _Collected, value: Any) -> Any:
    """The value that such a JSON stands for. Tensors that were not asked for are None."""
    if isinstance(value, list):
        return [_decoded(collected, part) for part in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((word, inside),) = value.items()
        if word == _TUPLE:
            return tuple(_decoded(collected, part) for part in inside)
        if word == _INT:
            return int(inside)
        if word == _FLOAT:
            return float(inside)
        if word == _DTYPE:
            return _DTYPES[inside]
        if word == _ITEMS:
            return {_decoded(collected, key): _decoded(collected, part) for key, part in inside}
        if word == _TENSOR:
            return collected.tensors.get(inside)
    return {key: _decoded(collected, part) for key, part in value.items()}


def _tensor_names(value: Any) -> list[str]:
    """The tensors that a JSON value names."""
    if isinstance(value, list):
        return [name for part in value for name in _tensor_names(part)]
    if isinstance(value, dict):
        return [value[_TENSOR]] if set(value) == {_TENSOR} else [n for part in value.values() for n in _tensor_names(part)]
    return []


# ---- kinds of things that have a state: `save` collects tensors and gives the rest as JSON; `load` names the tensors that are
# to be read, and gives what is to be done when they were.


def _nothing() -> None:
    pass


def _saved_value(collected: _Collected, key: str) -> Any:
    return json.loads(collected.saved_values[key])


class _Value:
    """Numbers, texts, lists, dicts and tensors: tensors are loaded in place, the rest is returned."""

    def save(self, collected: _Collected, key: str, value: Any) -> Any:
        return _encoded(collected, key, value)

    def load(self, collected: _Collected, key: str, value: Any) -> Callable[[], None]:
        _encoded(collected, key, value)
        return _nothing


class _Module:
    def _state(self, module: nn.Module) -> dict[str, Any]:
        return module.state_dict(keep_vars=True)

    def save(self, collected: _Collected, key: str, module: nn.Module) -> Any:
        rest = {}
        for name, value in self._state(module).items():
            if collected.is_left_out(f"{key}.{name}"):
                continue
            if isinstance(value, Tensor):
                collected.add(f"{key}.{name}", value)
            else:
                rest[name] = _encoded(collected, f"{key}.{name}", value)
        return rest

    def load(self, collected: _Collected, key: str, module: nn.Module) -> Callable[[], None]:
        for name, value in self._state(module).items():
            if isinstance(value, Tensor) and not collected.is_left_out(f"{key}.{name}"):
                collected.add(f"{key}.{name}", value)
        rest = _saved_value(collected, key) if key in collected.saved_values else {}
        if not rest:
            return _nothing
        for name in _tensor_names(rest):
            collected.add(name, collected.like_saved(name))
        return lambda: module.load_state_dict(_decoded(collected, rest), strict=False) and None


class _Optimizer:
    """By the names that its parameters have in the modules of the same state."""

    def __init__(self, state: Mapping[str, Any]):
        self._names = {
            p: f"{key}.{name}"
            for key, module in state.items()
            if isinstance(module, nn.Module)
            for name, p in module.named_parameters()
        }

    def _parameters(self, optimizer: torch.optim.Optimizer) -> list[list[tuple[str, Tensor]]]:
        """By group. A parameter that no module has goes by its number."""
        numbers = iter(range(10**9))
        return [
            [(self._names.get(p, str(number)), p) for p, number in zip(group["params"], numbers)]
            for group in optimizer.param_groups
        ]

    def save(self, collected: _Collected, key: str, optimizer: torch.optim.Optimizer) -> Any:
        groups, state = [], {}
        for g, named in enumerate(self._parameters(optimizer)):
            options = {k: v for k, v in optimizer.param_groups[g].items() if k not in ("params", "param_names")}
            groups.append(
                {
                    "params": [name for name, _ in named],
                    "options": _encoded(collected, f"{key}.param_groups.{g}", options),
                }
            )
            for name, p in named:
                if p in optimizer.state:
                    state[name] = _encoded(collected, f"{key}.state.{name}", dict(optimizer.state[p]))
        return {"param_groups": groups, "state": state}

    def load(self, collected: _Collected, key: str, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
        saved, groups = _saved_value(collected, key), self._parameters(optimizer)
        self._check(key, saved, groups)
        by_name = dict(named for group in groups for named in group)
        for name, parts in saved["state"].items():
            p = by_name[name]
            for part, value in parts.items():
                for tensor in _tensor_names(value):
                    collected.add(tensor, self._state_tensor(collected, tensor, p, optimizer.state.get(p, {}).get(part)))
        for group in saved["param_groups"]:
            for tensor in _tensor_names(group["options"]):
                collected.add(tensor, collected.like_saved(tensor))

        def finish() -> None:
            optimizer.state.clear()
            for name, parts in saved["state"].items():
                optimizer.state[by_name[name]] = _decoded(collected, parts)
            for group, theirs in zip(optimizer.param_groups, saved["param_groups"], strict=True):
                group.update(_decoded(collected, theirs["options"]))

        return finish

    @staticmethod
    def _check(key: str, saved: Any, groups: list[list[tuple[str, Tensor]]]) -> None:
        theirs, ours = [group["params"] for group in saved["param_groups"]], [[name for name, _ in g] for g in groups]
        if theirs == ours:
            return
        for g, (there, here) in enumerate(zip(theirs, ours)):
            for a, b in zip(there, here):
                if a != b:
                    raise ValueError(f"[{_LOAD}] {key!r} trains {a!r} there where it trains {b!r} here, in group {g}; nothing was changed")
        raise ValueError(
            f"[{_LOAD}] {key!r} has groups of {', '.join(str(len(g)) for g in theirs)} parameters there and of "
            f"{', '.join(str(len(g)) for g in ours)} here; nothing was changed"
        )

    @staticmethod
    def _state_tensor(collected: _Collected, name: str, p: Tensor, now: Any) -> Tensor:
        """Where a state is read to: the tensor that the optimizer has, or a new one, laid out as the parameter."""
        plain = collected.like_saved(name)
        if isinstance(now, Tensor) and now.shape == plain.shape and now.dtype == plain.dtype:
            return now
        if plain.shape == p.shape and plain.dim() > 0:
            return torch.zeros_like(p.detach(), dtype=plain.dtype)
        if _C.has_layout(p) and plain.dim() == p.dim() > 0:
            mesh = _C.layout_of(p).mesh()
            return _C.distribute(plain.zero_().to(p.device), _C.Layout.replicated(mesh), _C.world_of(p))
        return plain


class _Stateful:
    """Anything else with a state_dict: schedulers, loaders of data."""

    def save(self, collected: _Collected, key: str, thing: Any) -> Any:
        return _encoded(collected, key, thing.state_dict())

    def load(self, collected: _Collected, key: str, thing: Any) -> Callable[[], None]:
        saved = _saved_value(collected, key)
        for name in _tensor_names(saved):
            collected.add(name, collected.like_saved(name))
        return lambda: thing.load_state_dict(_decoded(collected, saved)) and None


class _Generator:
    def save(self, collected: _Collected, key: str, generator: torch.Generator) -> Any:
        return _encoded(collected, key, generator.get_state())

    def load(self, collected: _Collected, key: str, generator: torch.Generator) -> Callable[[], None]:
        state = torch.empty_like(generator.get_state())
        collected.add(key, state)
        return lambda: generator.set_state(state) and None


def _kind_of(value: Any, state: Mapping[str, Any]) -> Any:
    if isinstance(value, Tensor):
        return _Value()
    if isinstance(value, nn.Module):
        return _Module()
    if isinstance(value, torch.optim.Optimizer):
        return _Optimizer(state)
    if isinstance(value, torch.Generator):
        return _Generator()
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return _Stateful()
    return _Value()


_DTYPES = {
    "b1": torch.bool,
    "u8": torch.uint8,
    "u16": torch.uint16,
    "u32": torch.uint32,
    "u64": torch.uint64,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "c32": torch.complex32,
    "c64": torch.complex64,
    "c128": torch.complex128,
}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
