"""Faults planted in programs on distributed tensors, in the places where such programs are written by hand: local regions, layouts of what comes
from outside, what is kept between steps. Each trains one of the tasks of models.py over all ranks."""

import dataclasses
import functools

import intarsia as it
import torch
import torch.nn.functional as F
from models import CONV, EVEN, GPT, MLP, cross_entropy, train
from torch import nn


def rows(*tensors):
    """The global batch, sharded by rows."""
    return [it.distribute(t, "S(0)") for t in tensors]


def fsdp(task, change=lambda model: None, **changes):
    def wrap(model):
        change(model)
        it.fully_shard(model, mesh=it.mesh(), shard="x")
        return model

    return train(task, **({"wrap": wrap, "batch": rows} | changes))


def laid_out(task, layouts, change=lambda model: None, **changes):
    def wrap(model):
        change(model)
        it.parallelize(model, it.mesh(), layouts)
        return model

    return train(task, wrap=wrap, **({"batch": rows} | changes))


TENSOR_PARALLEL = {
    "blocks.*.attention.[qkv].weight": "S(0)", "blocks.*.attention.[qkv].bias": "S(0)", "blocks.*.up.weight": "S(0)", "blocks.*.up.bias": "S(0)",
    "blocks.*.attention.out.weight": "S(1)", "blocks.*.down.weight": "S(1)",
}  # fmt: skip


def tp(change=lambda model: None, **changes):
    return laid_out(GPT, TENSOR_PARALLEL, change, batch=lambda *t: [it.distribute(each, "R") for each in t], **changes)


def sequence(change=lambda model: None, **changes):
    """All that goes along the sequence is sharded along it."""
    return laid_out(EVEN, {}, change, **({"batch": lambda *t: [it.distribute(each, "S(1)") for each in t]} | changes))


class Region(nn.Module):
    """A linear layer as code on local tensors, whose weight is sharded by its columns."""

    def __init__(self, linear, out="P(sum)"):
        super().__init__()
        self.weight, self.bias, self.out = linear.weight, linear.bias, out

    def forward(self, x):
        return it.local_region(lambda a, w: [F.linear(a, w)], [x, self.weight], ["S(2)", "S(1)"], [self.out])[0] + self.bias


def with_region(out, model):
    model.blocks[1].down = Region(model.blocks[1].down, out)


def region_not_reduced():
    tp(functools.partial(with_region, "R"))


class ScaledNorm(nn.Module):
    """A norm on local rows, whose weight is the same everywhere."""

    def __init__(self, norm, gradient):
        super().__init__()
        self.weight, self.bias, self.gradient = norm.weight, norm.bias, gradient

    def forward(self, x):
        def local(a, w, b):
            return [F.layer_norm(a, (a.shape[-1],), w, b)]

        return it.local_region(local, [x, self.weight, self.bias], ["S(0)", "R", "R"], ["S(0)"], grads=["S(0)", self.gradient, self.gradient])[0]


def norm_with_gradient(layout):
    def change(model):
        model.norm = ScaledNorm(model.norm, layout)

    laid_out(EVEN, {}, change)


def region_gradient_not_reduced():
    norm_with_gradient("R")


def loss_divided_again():
    laid_out(MLP, {}, loss=lambda out, labels: cross_entropy(out, labels) / it.world().size())


def mean_of_means():
    """Each row's own mean over its tokens, and their mean."""

    def loss(out, labels):
        each = F.cross_entropy(out.transpose(1, 2), labels, reduction="none")
        return (each.sum(1) / (labels != -100).sum(1)).mean()

    fsdp(GPT, loss=loss)


def positions_of_pieces():
    def change(model):
        def forward(tokens):
            length = tokens.shape[1] // it.world().size()
            places = it.distribute(torch.arange(tokens.shape[1]) % length, "S(0)")
            x = model.embed(tokens) + model.places(places)
            for block in model.blocks:
                x = block(x)
            return model.head(model.norm(x))

        model.forward = forward

    sequence(change)


def labels_shifted_on_pieces():
    def batch(tokens, labels):
        length = tokens.shape[1] // it.world().size()
        wrong = torch.cat([F.pad(t[:, 1:], (0, 1)) for t in tokens.split(length, 1)], 1)
        return [it.distribute(t, "S(1)") for t in (tokens, wrong)]

    sequence(batch=batch)


def window_of_pieces():
    def change(model):
        length = 12 // it.world().size()
        mask = it.AttentionMask.causal().documents(list(range(0, 12, length)))

        def forward(x):
            a = model.blocks[1].attention
            q, k, v = (f(x).unflatten(-1, (-1, 4)).transpose(1, 2) for f in (a.q, a.k, a.v))
            return a.out(it.attention(q, k, v, mask).transpose(1, 2).flatten(2))

        model.blocks[1].attention.forward = forward

    sequence(change)


def not_causal():
    def change(model):
        model.blocks[0].attention.causal = False

    sequence(change)


def scale_by_heads():
    def change(model):
        model.blocks[1].attention.scale = (4 / it.world().size()) ** -0.5

    tp(change)


def stale_weight():
    """A weight that was gathered before the first step, and is used ever after."""

    def change(model):
        kept = {}
        head = model.head

        def forward(x):
            if "weight" not in kept:
                kept["weight"] = it.distribute(it.full(head.weight).detach(), "R")
            return F.linear(x, kept["weight"] + (head.weight - head.weight.detach()), head.bias)

        head.forward = forward

    laid_out(MLP, {}, change)


def epsilon_of_norm():
    def change(model):
        model.blocks[1].norm1.eps = 1e-4

    fsdp(GPT, change)


def other_gelu():
    def change(model):
        model.blocks[0].act = nn.GELU(approximate="tanh")

    tp(change)


def detached_branch():
    def change(model):
        block = model.blocks[1]
        block.forward = lambda x: (y := x + block.attention(block.norm1(x.detach()))) + block.down(block.act(block.up(block.norm2(y))))

    fsdp(GPT, change)


def clipped_by_pieces():
    def clip(model):
        for p in model.parameters():
            norm = torch.linalg.vector_norm(p.grad)
            p.grad.mul_(torch.clamp(0.05 / norm, max=1.0))

    laid_out(MLP, {}, before_step=clip)


def dropped_bias_gradient():
    def drop(model):
        model.layers[1].bias.grad.zero_()

    fsdp(MLP, before_step=drop)


def decay_on_all():
    fsdp(MLP, optimizer=lambda p: torch.optim.AdamW(p, lr=1e-2, eps=1e-6, weight_decay=0.1))


def optimizer_state_off():
    """The first moment goes on from the state of a run that is one step further."""

    def twice(_, optimizer):
        for state in optimizer.state.values():
            state["exp_avg"].mul_(0.9)

    fsdp(MLP, after_step=twice)


def learning_rate_off():
    def later(_, optimizer):
        for group in optimizer.param_groups:
            group["lr"] *= 0.99

    fsdp(CONV, after_step=later)


def bf16_gradients():
    """Gradients that went through bfloat16 on their way."""

    def narrow(model):
        for p in model.parameters():
            p.grad = p.grad.bfloat16().float()

    laid_out(MLP, {}, before_step=narrow)


def a_row_twice():
    def batch(inputs, labels):
        inputs, labels = inputs.clone(), labels.clone()
        inputs[1], labels[1] = inputs[0], labels[0]
        return rows(inputs, labels)

    fsdp(CONV, batch=batch)


BUGS = {
    "region: a sum that is not reduced": (region_not_reduced, GPT, ["blocks.1.down"]),
    "region: a gradient that is not reduced": (region_gradient_not_reduced, EVEN, ["norm"]),
    "dp: a loss divided by the ranks again": (loss_divided_again, MLP, [""]),
    "fsdp: mean of the rows' means": (mean_of_means, GPT, [""]),
    "sequence: positions counted on pieces": (positions_of_pieces, EVEN, ["", "blocks.0.norm1", "places"]),
    "sequence: labels shifted on pieces": (labels_shifted_on_pieces, EVEN, [""]),
    "sequence: attention inside of pieces": (window_of_pieces, EVEN, ["blocks.1.attention", "blocks.1.attention.out"]),
    "sequence: a mask is forgotten": (not_causal, EVEN, ["blocks.0.attention", "blocks.0.attention.out"]),
    "tp: scaled by the ranks": (scale_by_heads, GPT, ["blocks.1.attention", "blocks.1.attention.out"]),
    "dp: a weight of before the step": (stale_weight, MLP, ["head"]),
    "fsdp: another epsilon in one norm": (epsilon_of_norm, GPT, ["blocks.1.norm1"]),
    "tp: another gelu": (other_gelu, GPT, ["blocks.0.act"]),
    "fsdp: a detached branch": (detached_branch, GPT, ["blocks.0", "blocks.0.down"]),
    "dp: clipped tensor by tensor": (clipped_by_pieces, "clipped", ["head"]),
    "fsdp: a dropped bias gradient": (dropped_bias_gradient, MLP, ["layers.1"]),
    "fsdp: another weight decay": (decay_on_all, MLP, ["head"]),
    "fsdp: first moments are off": (optimizer_state_off, MLP, ["head"]),
    "fsdp: another learning rate": (learning_rate_off, CONV, ["head"]),
    "dp: gradients through bfloat16": (bf16_gradients, MLP, ["head"]),
    "fsdp: a row twice": (a_row_twice, CONV, ["first"]),
}


def layouts_of(task):
    """Healthy programs on a task: by name, what trains it."""
    out = {
        "plain": lambda: train(task),
        "dp": lambda: laid_out(task, {}),
        "fsdp": lambda: fsdp(task),
        "zero on columns": lambda: laid_out(task, {"*.weight": "S(0)"}),
    }
    if task.model is GPT.model:
        on_gpt = {
            "tp": lambda: laid_out(task, TENSOR_PARALLEL, batch=lambda *t: [it.distribute(each, "R") for each in t]),
            "sequence": lambda: laid_out(task, {}, batch=lambda *t: [it.distribute(each, "S(1)") for each in t]),
            "region": lambda: laid_out(task, TENSOR_PARALLEL, functools.partial(with_region, "P(sum)"),
                                       batch=lambda *t: [it.distribute(each, "R") for each in t]),
            "wide": lambda: laid_out(task, {"embed.weight": "S(1)", "head.weight": "S(0)", "head.bias": "S(0)"}),
        }  # fmt: skip
        out |= on_gpt
    return out


def in_dtype(task, dtype):
    return dataclasses.replace(task, dtype=dtype)
