"""Kinds of lines about gradients: hooks, Functions, recomputation, modes; and how programs end."""

import torch

from draft import F64, kind


def tracked(d, fits=lambda t: True):
    """A value that has or gets a gradient, not a view that others may write through."""
    return d.value(lambda t: t.requires_grad and t.dtype == F64 and fits(t))


@kind(0.7)
def hook(d):
    # Not of views: torch itself crashes where the view was written through a detached copy.
    x = tracked(d, lambda t: not t._is_view())
    return f"{x}.register_hook(lambda q: {d.one('q * 0.5', 'q.clone()', 'q + 1', 'None')})"


@kind(0.5)
def kept_gradient(d):
    return f"{tracked(d, lambda t: not t.is_leaf)}.retain_grad()"


@kind(1.2)
def function(d):
    x = d.real()
    t = d.at(x)
    if d.often(0.4):
        return f"{d.new()} = Product.apply({x}, {d.like(t)})"
    if d.often(0.5):
        return f"{d.new()}, {d.new()} = Exponential.apply({x}.tanh())"
    return f"{d.new()} = Doubled.apply({x}.clone())"


@kind(1.2)
def recomputed(d):
    x = d.real(1)
    t = d.at(x)
    body = d.one(
        "lambda q: (q.sin() * q).cumsum(-1)", "lambda q: q.softmax(-1) * q.mean(0)", "lambda q: nn.gelu(q).sum(0)",
        "lambda q: nn.layer_norm(q, [q.shape[-1]])", "lambda q: q[..., :1] * q", "lambda q: (q @ q.mT).tanh()",
    )  # fmt: skip
    if d.often(0.3):
        return f"{d.new()} = recompute(lambda p, q: (p * q).tanh() + q, {x}, {d.like(t)})"
    return f"{d.new()} = recompute({body}, {x})"


@kind()
def without_gradients(d):
    x = d.real()
    t = d.at(x)
    mode = d.one("torch.no_grad()", "torch.no_grad()", "torch.set_grad_enabled(False)", "torch.inference_mode()")
    if mode.startswith("torch.inference"):
        # A tensor made there may not be used for gradients later; so its copy is named.
        form = d.one("{}.sin()", "{}.t()", "{}.sum(0)", "{0} * {0}", "{}[..., :1]", "{}.reshape(-1)", "nn.relu({})")
        made = d.new()
        return f"with {mode}: {made} = {form.format(x)}"
    if d.often(0.5) or (t.is_leaf and t.requires_grad):
        return f"with {mode}: {x}.{d.one('mul_(0.5)', 'add_(1)', 'copy_(%s)' % d.like(t), 'zero_()', 'neg_()')}"
    return f"with {mode}: {d.new()} = {x}.{d.one('sin()', 'clone()', 'sum(0)', 'relu()')}"


@kind(0.5)
def detached_again(d):
    return f"{d.new()} = {d.real()}.detach().requires_grad_()"


@kind(0.8)
def gradient_midway(d):
    """A gradient in the middle of a program, which later lines use."""
    x = tracked(d, lambda t: t.is_leaf)
    y = tracked(d, lambda t: not t.is_leaf and t.grad_fn is not None)
    graph = d.one(True, False)
    made = f"torch.autograd.grad(loss({y}), [{x}], create_graph={graph}, retain_graph=True)[0]"
    return f"{d.new()} = {made}.clone(memory_format=torch.contiguous_format)"


def endings(d, leaves, losses):
    """Lines by which gradients are computed at the end, one of several ways."""
    each = " + ".join(f"loss({name}, {k})" for k, name in enumerate(losses))
    listed, first = ", ".join(leaves), leaves[0]
    twice = [
        f"gs = torch.autograd.grad(L, [{listed}], create_graph=True, allow_unused=True)",
        "L2 = sum([(q * q * w(q, 1)).sum() for q in gs if q is not None and q.requires_grad])",
        "L2.backward()",
    ]
    ways = [
        ["L.backward()"], ["L.backward()"], ["L.backward()"],
        ["L.backward(retain_graph=True)", "L.backward()"],
        [f"gs = torch.autograd.grad(L, [{listed}], allow_unused=True)"],
        twice, twice, twice,
        [f"L.backward(inputs=[{first}], retain_graph=True)",
         f"gs = torch.autograd.grad([L, L * 2], [{listed}], allow_unused=True)"],
        ["L.backward(retain_graph=True)", f"{first}.grad = None", "(L * 0.5).backward()"],
        ["L.backward(retain_graph=True)", f"with torch.no_grad(): {first}.grad.mul_(0.5)", "L.backward()"],
        ["L.backward(torch.ones_like(L) * 3)"],
    ]  # fmt: skip
    return [f"L = {each}", *d.one(*ways)]


def end(d):
    """Ends a draft with gradients, if it has values for that."""
    leaves = [each.name for each in d.inputs if each.grad]
    candidates = [
        name for name in d.values
        if name.startswith("v") and d.at(name).requires_grad and d.at(name).dtype in (F64, torch.complex128)
    ]  # fmt: skip
    if not leaves or not candidates:
        return
    losses = d.chance.sample(candidates, min(len(candidates), d.one(1, 2, 3)))
    for line in endings(d, leaves, losses):
        if not d.add(lambda _, line=line: line):
            break

