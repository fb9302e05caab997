"""Compares what a program left on one device with what it left laid out."""

import dataclasses

import intarsia as it
import torch

STALE = "older than the last write"
KINDS = ("values", "gradient", "sizes", "dtype", "strides", "requires_grad", "random", "lockstep")


@dataclasses.dataclass(frozen=True)
class Difference:
    kind: str
    name: str
    text: str

    def __str__(self):
        return f"{self.name}: {self.text}"


def tolerance(dtype):
    """How far values of this dtype may be apart, as part of the largest: a few hundred roundings in float64,
    fewer where there are few bits."""
    return torch.finfo(dtype).eps ** 0.62


def coarsest(tensors):
    """The tolerance of the dtype with the fewest bits among these."""
    floats = {t.dtype for t in tensors if t.dtype.is_floating_point or t.dtype.is_complex}
    return max(map(tolerance, floats), default=0.0)


def tensors_of(value):
    """A value's tensors with the ends of their names: gradients come as a list."""
    if isinstance(value, torch.Tensor):
        return [("", value)]
    if isinstance(value, (list, tuple)):
        return [(f"[{i}]", each) for i, each in enumerate(value)]
    return []


def full(tensor):
    value = it.full(tensor.detach()) if it.has_layout(tensor) else tensor.detach()
    return value.resolve_conj().resolve_neg()


def some(tensor):
    return f"{tensor.flatten()[:6].tolist()}"


def values_apart(wanted, got, limit):
    """How two plain tensors of one dtype and size differ; empty where they do not. Infinite values and NaN must
    be at the same places. Whole numbers and truth values must be equal."""
    if wanted.numel() == 0 or torch.equal(wanted, got):
        return ""
    if wanted.is_complex():
        return values_apart(torch.view_as_real(wanted), torch.view_as_real(got), limit)
    if not wanted.is_floating_point():
        return f"{some(got)} for {some(wanted)}"
    wanted, got = wanted.to(torch.float64), got.to(torch.float64)
    finite = wanted.isfinite()
    if not torch.equal(finite, got.isfinite()) or not torch.equal(
        wanted[~finite].nan_to_num(0.5), got[~finite].nan_to_num(0.5)
    ):
        return f"{some(got)} for {some(wanted)}, which are not finite at the same places"
    wanted, got = wanted[finite], got[finite]
    if wanted.numel() == 0:
        return ""
    apart = (wanted - got).abs()
    if apart.max().item() <= limit * max(1.0, wanted.abs().max().item()):
        return ""
    at = int(apart.argmax())
    return f"off by {apart.max().item():.3g} at {at}: {some(got[at:])} for {some(wanted[at:])}"


def strides_that_count(tensor):
    return [stride for size, stride in zip(tensor.shape, tensor.stride()) if size > 1]


def tensor_apart(name, wanted, got, limit):
    """The first difference between two tensors, values before form."""
    if wanted.dtype != got.dtype:
        return Difference("dtype", name, f"{got.dtype} for {wanted.dtype}")
    if wanted.shape != got.shape:
        return Difference("sizes", name, f"{list(got.shape)} for {list(wanted.shape)}")
    text = values_apart(full(wanted), full(got), limit)
    if text:
        return Difference("gradient" if name.endswith(".grad") else "values", name, text)
    if wanted.requires_grad != got.requires_grad:
        return Difference("requires_grad", name, f"{got.requires_grad} for {wanted.requires_grad}")
    # A gradient has no strides of its own: plain torch leaves it as a part of a larger one, or expanded.
    gradient = name.endswith(".grad") or name.startswith("gs")
    if wanted.numel() and not gradient and strides_that_count(wanted) != strides_that_count(got):
        return Difference("strides", name, f"{list(got.stride())} for {list(wanted.stride())}")
    return None


def keeps_gradient(tensor):
    """Whether it is a leaf, or keeps its gradient. torch refuses to say so of a view of many whose base was written, or
    of a view that its base, squeezed in place, no longer has."""
    try:
        return tensor.requires_grad and (tensor.is_leaf or tensor.retains_grad)
    except (RuntimeError, IndexError):
        return False


def grads_of(name, wanted, got):
    return [(f"{name}.grad", wanted.grad, got.grad)] if keeps_gradient(wanted) else []


def pairs(wanted, got):
    """All that two sides left, by name: values, then gradients."""
    found, gradients = [], []
    for name, value in wanted.items():
        for (end, one), (_, other) in zip(tensors_of(value), tensors_of(got[name])):
            found.append((name + end, one, other))
            if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
                gradients += grads_of(name + end, one, other)
    return found + gradients


def compare(wanted, got, limit):
    """All differences, and how many views were stale. A stale view is older than a write to its base, and says so
    when it is read."""
    differences, stale = [], 0
    for name, one, other in pairs(wanted, got):
        if (one is None) != (other is None):
            text = f"{'nothing' if other is None else 'a tensor'} for {'nothing' if one is None else 'a tensor'}"
            differences.append(Difference("gradient", name, text))
        elif one is not None:
            try:
                difference = tensor_apart(name, one, other, limit)
            except Exception as error:
                stale += STALE in str(error)
                difference = None if STALE in str(error) else Difference("values", name, f"cannot be read: {error}")
            if difference:
                differences.append(difference)
    return sorted(differences, key=lambda d: KINDS.index(d.kind)), stale
