"""What a training program computes, noted while it runs: outputs of modules and their gradients, losses, gradients and parameters.

Nothing is sent. Each rank keeps its own pieces, each with the place that its tensor says it has; they are put together when runs are compared.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator

import torch
from torch.nn.modules import module as nn_module
from torch.optim import optimizer as torch_optimizer
from torch.utils._python_dispatch import _disable_current_modes

from . import _C
from ._dtensor import is_dtensor, layout_of_dtensor
from ._patches import pieces_here

# In the order in which a step makes them.
OUTPUT, LOSS, OUTPUT_GRADIENT, GRADIENT, PARAMETER = "output", "loss", "gradient of the output", "gradient", "parameter"
WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


@dataclasses.dataclass(frozen=True)
class Key:
    """What a value is: of a step, of a module (or parameter) by name, and the how-manieth of its kind there."""

    step: int
    kind: str
    name: str
    call: int = 0

    def __str__(self) -> str:
        times = f" (call {self.call})" if self.call else ""
        of = "" if self.kind == LOSS else f" of {self.name or 'the model'}"
        return f"{self.kind}{of}{times}"


@dataclasses.dataclass
class Piece:
    """A rank's part of a value. `runs`: for each dimension the ranges of the full tensor that it holds, one after the other; None for a plain
    tensor, which does not say. `share`: the rank's coordinate on the axes along which values are partial. `holders`: how many ranks have a piece."""

    rank: int
    value: torch.Tensor
    runs: list[list[tuple[int, int]]] | None = None
    shape: tuple[int, ...] | None = None
    share: tuple[int, ...] = ()
    reduction: str = ""
    holders: int = 0


@dataclasses.dataclass
class Record:
    """A run on some ranks, or what one of them noted of it."""

    ranks: int = 1
    values: dict[Key, list[Piece]] = dataclasses.field(default_factory=dict)  # in the order in which they were made
    made_by: dict[Key, str] = dataclasses.field(default_factory=dict)  # the op of autograd

    def add(self, other: Record) -> None:
        """The pieces of other ranks."""
        for key, pieces in other.values.items():
            self.values.setdefault(key, []).extend(pieces)
        self.made_by = other.made_by | self.made_by


def pieces_of(tensor: torch.Tensor, rank: int) -> list[Piece]:
    """A tensor as the ranks of this process hold it."""
    if _C.has_layout(tensor):
        return [_piece(_C.layout_of(tensor), tuple(tensor.shape), *held) for held in pieces_here(tensor)]
    if is_dtensor(tensor):
        layout = layout_of_dtensor(tensor)
        return [_piece(layout, tuple(tensor.shape), rank, tensor.to_local())] if layout.mesh().contains(rank) else []
    return [Piece(rank, _kept(tensor))]


def _kept(value: torch.Tensor) -> torch.Tensor:
    value = value.detach()
    return (value.to_dense() if value.layout != torch.strided else value).to("cpu", copy=True)


def _piece(layout: _C.Layout, shape: tuple[int, ...], rank: int, value: torch.Tensor) -> Piece:
    at = layout.mesh().coordinate_of(rank)
    partial = [a for a, p in enumerate(layout.placements()) if p.is_partial()]
    boxes = _C.boxes(layout, list(shape), list(at))
    runs = [[(r.begin, r.end) for r in boxes.runs(d)] for d in range(len(shape))]
    reduction = {str(layout.placements()[a]) for a in partial}
    return Piece(rank, _kept(value), runs, shape, tuple(at[a] for a in partial), ", ".join(sorted(reduction)), layout.mesh().size())


def names_below(root: torch.nn.Module) -> dict[int, str]:
    """Modules by id; wrappers such as DistributedDataParallel go by the name of what they wrap."""
    names: dict[int, str] = {}

    def visit(module: torch.nn.Module, name: str) -> None:
        names.setdefault(id(module), name)
        for child, part in module._modules.items():
            if part is not None:
                visit(part, name if child in WRAPPERS or is_wrapper(module) else f"{name}.{child}" if name else child)

    visit(root, "")
    return names


def is_wrapper(module: torch.nn.Module) -> bool:
    return isinstance(module, (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel))


class Recorder:
    """Notes what the modules, losses and optimizers of this thread's program make, from `begin` to `end`."""

    def __init__(self, rank: int = 0, ranks: int = 1, *, outputs: bool = True):
        self.record = Record(ranks)
        self._rank = rank
        self._outputs = outputs
        self._roots: list[torch.nn.Module] = []
        self._names: dict[int, str] = {}
        self._depth = 0
        self._step = 0
        self._counts: dict[tuple, int] = {}
        self._first_optimizer: torch.optim.Optimizer | None = None

    @contextlib.contextmanager
    def recording(self) -> Iterator[Record]:
        with contextlib.ExitStack() as stack:
            if self._outputs:
                stack.enter_context(_removed_at_end(nn_module.register_module_forward_pre_hook(self._enter)))
                stack.enter_context(_removed_at_end(nn_module.register_module_forward_hook(self._leave, always_call=True)))
            stack.enter_context(_removed_at_end(torch_optimizer.register_optimizer_step_pre_hook(self._before_step)))
            stack.enter_context(_removed_at_end(torch_optimizer.register_optimizer_step_post_hook(self._after_step)))
            stack.enter_context(_replaced(torch.autograd, "backward", self._backward(torch.autograd.backward)))
            yield self.record

    # ---- what is noted

    def _note(self, kind: str, name: str, tensor: torch.Tensor, made_by: str = "") -> None:
        call = self._counts.get((self._step, kind, name), 0)
        self._counts[self._step, kind, name] = call + 1
        self._put(Key(self._step, kind, name, call), tensor, made_by)

    def _put(self, key: Key, tensor: torch.Tensor, made_by: str = "") -> None:
        with torch.no_grad(), _disable_current_modes():
            self.record.values[key] = pieces_of(tensor, self._rank)
        if made_by:
            self.record.made_by[key] = made_by

    def _enter(self, module: torch.nn.Module, _) -> None:
        self._depth += 1
        if id(module) not in self._names and self._depth == 1:
            self._add_root(module)

    def _add_root(self, module: torch.nn.Module) -> None:
        prefix = f"{type(module).__name__}#{len(self._roots)}" if self._roots else ""
        self._roots.append(module)  # which keeps ids from being used again
        for part, name in names_below(module).items():
            self._names.setdefault(part, ".".join(filter(None, (prefix, name))))

    def _leave(self, module: torch.nn.Module, _, output) -> None:
        self._depth -= 1
        if torch._C._current_graph_task_id() != -1:  # checkpointing computes it once more
            return
        name = self._names.get(id(module))
        if name is None or is_wrapper(module) or not torch.is_grad_enabled():
            return
        for tensor in _tensors_in(output):
            if tensor.is_floating_point():
                self._note_output(name, tensor)

    def _note_output(self, name: str, tensor: torch.Tensor) -> None:
        made_by = tensor.grad_fn.name() if tensor.grad_fn is not None else ""
        self._note(OUTPUT, name, tensor, made_by)
        if tensor.grad_fn is None:
            return
        key = Key(self._step, OUTPUT_GRADIENT, name, self._counts[self._step, OUTPUT, name] - 1)

        def note_gradient(gradient: torch.Tensor) -> None:
            self._put(key, gradient)

        tensor.register_hook(note_gradient)

    def _backward(self, original):
        def backward(tensors, *args, **kwargs):
            for loss in [tensors] if isinstance(tensors, torch.Tensor) else tensors:
                if loss.numel() == 1:
                    self._note(LOSS, "", loss, loss.grad_fn.name() if loss.grad_fn is not None else "")
            return original(tensors, *args, **kwargs)

        return backward

    def _parameters(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
        names = {}
        for root in self._roots:
            for module in root.modules():
                for name, parameter in module._parameters.items():
                    if parameter is not None and id(module) in self._names:
                        names.setdefault(id(parameter), ".".join(filter(None, (self._names[id(module)], name))))
        for g, group in enumerate(optimizer.param_groups):
            for p, parameter in enumerate(group["params"]):
                yield names.get(id(parameter), f"group {g}[{p}]"), parameter

    def _before_step(self, optimizer: torch.optim.Optimizer, *_) -> None:
        self._first_optimizer = self._first_optimizer or optimizer
        for name, parameter in self._parameters(optimizer):
            if parameter.grad is not None:
                self._note(GRADIENT, name, parameter.grad)

    def _after_step(self, optimizer: torch.optim.Optimizer, *_) -> None:
        for name, parameter in self._parameters(optimizer):
            self._note(PARAMETER, name, parameter)
        if optimizer is self._first_optimizer:
            self._step += 1


@contextlib.contextmanager
def _removed_at_end(handle) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def _replaced(module, name: str, by) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, by)
    try:
        yield
    finally:
        setattr(module, name, before)


def _tensors_in(output) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, (tuple, list)):
        yield from itertools.chain.from_iterable(map(_tensors_in, output))
    elif isinstance(output, dict):
        yield from itertools.chain.from_iterable(map(_tensors_in, output.values()))
