"""Clipping by the norm of all gradients, the check of optimizers' states, and Muon. See docs/optimizers.md."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from . import _C

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def _listed(tensors: Tensor | Iterable[Tensor]) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def total_norm(
    tensors: Tensor | Iterable[Tensor], norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Tensor:
    """The norm of all tensors as if they were one, as a plain tensor, the same on all ranks; with one small
    reduction. COLLECTIVE: all ranks of the meshes."""
    return _C.total_norm(_listed(tensors), float(norm_type), error_if_nonfinite)


def get_grad_norm(
    parameters: Tensor | Iterable[Tensor], norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Tensor:
    """The norm of all gradients. COLLECTIVE: all ranks of the meshes."""
    return _C.get_grad_norm(_listed(parameters), float(norm_type), error_if_nonfinite)


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scales gradients in place so that their norm is at most `max_norm`; returns the norm that they had.
    torch's function works too where all gradients are distributed, on one mesh. COLLECTIVE: all ranks of the
    meshes."""
    return _C.clip_grad_norm_(_listed(parameters), float(max_norm), float(norm_type), error_if_nonfinite)


def check_optimizer(optimizer: torch.optim.Optimizer, module: torch.nn.Module | None = None) -> None:
    """Refuses states that have the sizes of their parameter but not its layout: ValueError that names them.
    `module`: gives parameters their names, where the optimizer was not made from named ones; plain ones that are not
    the module's, where that has distributed ones, are refused too."""
    names = {} if module is None else {p: name for name, p in module.named_parameters()}
    states, trained = [], []
    for g, group in enumerate(optimizer.param_groups):
        for i, (p, name) in enumerate(zip(group["params"], group.get("param_names", group["params"]))):
            name = name if isinstance(name, str) else names.get(p, f"{i} of group {g}")
            trained.append((name, p))
            for key, value in optimizer.state.get(p, {}).items():
                if isinstance(value, Tensor):
                    states.append((name, key, p, value))
    _C.check_parameters(trained, [(name, p) for p, name in names.items()])
    _C.check_optimizer(states)


_replaced = "_intarsia_replaced"  # on plain parameters in whose place a module has others: their names
_step_hooks: list = []


def _refuse_replaced(optimizer: torch.optim.Optimizer, args, kwargs) -> None:
    for group in optimizer.param_groups:
        for p in group["params"]:
            if _replaced in vars(p):
                raise ValueError(
                    f"[optimizer] it has {vars(p)[_replaced]!r}, {_C.describe(p)}, as it was before the module was "
                    "laid out: a step would train nothing; make the optimizer again, from module.parameters()"
                )


def keep_identity(old: torch.nn.Parameter, new: torch.nn.Parameter, name: str) -> torch.nn.Parameter:
    """The parameter that stands for `old` from now on, with the values of `new`: `old` itself, so that optimizers and
    others who know it go on with it. Where something else holds on to its memory, such as a graph, it is `new`, and
    optimizers refuse to step on `old`."""
    vars(new).update(vars(old))
    if old._backward_hooks:
        new._backward_hooks = old._backward_hooks
    if old._use_count() == 1:
        with contextlib.suppress(RuntimeError):  # C++ knows it weakly
            torch._C._swap_tensor_impl(old, new)
            return old
    setattr(old, _replaced, name)
    if not _step_hooks:
        _step_hooks.append(register_optimizer_step_pre_hook(_refuse_replaced))
    return new


def balanced_owners(costs: Sequence[int], ranks: int) -> list[int]:
    """The rank that does each of many tasks, such that the busiest rank has little more to do than the others: tasks are
    given out by falling cost, each to the rank that has least so far."""
    return _C.balanced_owners(list(costs), ranks)


def orthogonalize(
    matrices: Sequence[Tensor],
    ns_coefficients: tuple[float, float, float] = COEFFICIENTS,
    ns_steps: int = 5,
    eps: float = 1e-7,
    ns_dtype: torch.dtype = torch.bfloat16,
) -> list[Tensor]:
    """Orthogonal matrices near those given, in their layouts. Each is computed by one rank, which gets the full matrix.
    All of them travel in one exchange, and back in another one. COLLECTIVE: all ranks of the meshes."""
    return _C.orthogonalize(list(matrices), ns_coefficients, ns_steps, eps, ns_dtype)


class Muon(torch.optim.Optimizer):
    """torch.optim.Muon for distributed matrices, with the same options, defaults and states; plain ones work
    too. Each matrix is orthogonalized by one rank. `ns_dtype`: the dtype of that computation, in which matrices are also sent."""

    def __init__(
        self,
        params,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = COEFFICIENTS,
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        ns_dtype: torch.dtype = torch.bfloat16,
    ):
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise ValueError(
                f"[Muon] adjust_lr_fn is {adjust_lr_fn!r}; give 'original', 'match_rms_adamw' or None"
            )
        for name, value in (("lr", lr), ("weight_decay", weight_decay), ("momentum", momentum)):
            if not value >= 0 or math.isinf(value):
                raise ValueError(f"[Muon] {name} is {value}; give at least 0")
        defaults = dict(
            lr=lr, weight_decay=weight_decay, momentum=momentum, nesterov=nesterov,
            ns_coefficients=ns_coefficients, eps=eps, ns_steps=ns_steps, adjust_lr_fn=adjust_lr_fn,
            ns_dtype=ns_dtype,
        )  # fmt: skip
        super().__init__(params, defaults)
        for group in self.param_groups:
            for p in group["params"]:
                if p.dim() != 2 or not p.is_floating_point():
                    raise ValueError(
                        f"[Muon] takes matrices of real numbers, not {_C.describe(p)}; give other "
                        "parameters to another optimizer, such as AdamW"
                    )

    @torch.no_grad()
    def step(self, closure=None):
        """One step for all groups. COLLECTIVE: all ranks of the meshes, with the same gradients present."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        _C.muon_step([self._tensors_of(group) for group in self.param_groups])
        return loss

    def _tensors_of(self, group):
        parameters = [p for p in group["params"] if p.grad is not None]
        for p in parameters:
            if "momentum_buffer" not in self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p, memory_format=torch.preserve_format)
        return _C.MuonTensors(
            parameters=parameters,
            gradients=[p.grad for p in parameters],
            momenta=[self.state[p]["momentum_buffer"] for p in parameters],
            lr=float(group["lr"]),
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            nesterov=group["nesterov"],
            coefficients=group["ns_coefficients"],
            steps=group["ns_steps"],
            epsilon=group["eps"],
            dtype=group["ns_dtype"],
            like_adamw=group["adjust_lr_fn"] == "match_rms_adamw",
        )
