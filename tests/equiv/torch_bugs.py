"""Faults planted in programs of PyTorch alone: DDP, FSDP2, DTensor and collectives by hand. Each trains one of the tasks of models.py on two ranks, with one
fault; with none (`healthy`) it is equal to the serial program."""

import contextlib
import dataclasses
import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import CONV, EVEN, GPT, MLP, ConvNet, adamw, cross_entropy, train
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel as DDP

RANKS = 2


@functools.cache
def mesh():
    return dist.init_device_mesh("cpu", (RANKS,), mesh_dim_names=("x",))


def mine(*tensors):
    return [t.chunk(RANKS)[dist.get_rank()] for t in tensors]


def average(model):
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= RANKS


def clip(model):
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)


# ---- data parallel


def ddp(task, **changes):
    return train(task, **({"wrap": DDP, "batch": mine} | changes))


def by_hand(task, **changes):
    return train(task, **({"batch": mine, "before_step": average} | changes))


def not_averaged():
    by_hand(MLP, before_step=lambda model: None)


def averaged_twice():
    def halve(model):
        for p in model.parameters():
            p.grad /= RANKS

    ddp(MLP, before_step=halve)


def summed():
    def add(model):
        for p in model.parameters():
            dist.all_reduce(p.grad)

    by_hand(EVEN, before_step=add)


def bias_left_out():
    def all_but_one(model):
        for name, p in model.named_parameters():
            if name != "layers.1.bias":
                dist.all_reduce(p.grad)
                p.grad /= RANKS

    by_hand(MLP, before_step=all_but_one)


def bias_dropped_by_hook():
    def wrap(model):
        out = DDP(model)

        def hook(_, bucket):
            def zero(future):
                flat = future.value()[0].div_(RANKS)
                for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
                    if parameter is out.module.head.bias:
                        gradient.zero_()
                return flat

            return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(zero)

        out.register_comm_hook(None, hook)
        return out

    ddp(MLP, wrap=wrap)


def ignored_parameter():
    def wrap(model):
        model._ddp_params_and_buffers_to_ignore = ["norm.weight"]
        return DDP(model)

    ddp(MLP, wrap=wrap)


def accumulate(scale, sync=lambda last: last):
    """Two halves of a rank's batch, as two backwards."""
    model = DDP(MLP.make())
    stepping = adamw(model.parameters())
    for step in range(3):
        inputs, labels = mine(*MLP.batch(step))
        for i, (x, y) in enumerate(zip(inputs.chunk(2), labels.chunk(2), strict=True)):
            with contextlib.nullcontext() if sync(i == 1) else model.no_sync():
                (cross_entropy(model(x), y) * scale).backward()
        stepping.step()
        stepping.zero_grad()


def accumulated_unscaled():
    accumulate(1.0)


def accumulated_unsynced():
    accumulate(0.5, lambda last: False)


def local_token_mean():
    ddp(GPT)


def same_shard():
    ddp(MLP, batch=lambda x, y: (x.chunk(RANKS)[0], y.chunk(RANKS)[0]))


def clipped_before_average():
    by_hand(MLP, before_step=lambda model: (clip(model), average(model)))


def gradients_kept():
    kept = {}

    def remember(model):
        for p in model.parameters():
            if p in kept:
                p.grad += kept[p]
            kept[p] = p.grad.clone()

    ddp(MLP, before_step=remember)


def local_batch_norm():
    ddp(BATCH_NORM)


def eps_inside():
    class Wrong(torch.optim.Optimizer):
        """Adam whose epsilon is under the root."""

        def __init__(self, parameters):
            super().__init__(parameters, {})

        @torch.no_grad()
        def step(self):
            for p in self.param_groups[0]["params"]:
                s = self.state[p]
                s["m"] = 0.9 * s.get("m", 0) + 0.1 * p.grad
                s["v"] = 0.999 * s.get("v", 0) + 0.001 * p.grad**2
                s["t"] = s.get("t", 0) + 1
                p *= 1 - 1e-4
                p -= 1e-2 * (s["m"] / (1 - 0.9 ** s["t"])) / (s["v"] / (1 - 0.999 ** s["t"]) + 1e-6).sqrt()

    ddp(MLP, optimizer=Wrong)


def decay_forgotten():
    ddp(MLP, optimizer=lambda p: torch.optim.AdamW(p, lr=1e-2, eps=1e-6, weight_decay=0.0))


def buffer_not_kept():
    """The second moment begins anew in each step, as where a state is lost."""

    def forget(_, optimizer):
        for state in optimizer.state.values():
            state["exp_avg_sq"].zero_()

    ddp(MLP, after_step=forget)


def step_counter_off():
    def repeat(_, optimizer):
        for state in optimizer.state.values():
            state["step"].fill_(1)

    ddp(MLP, after_step=repeat)


# ---- FSDP2


def leaves(model):
    return [part for part in model.modules() if not list(part.children())]


def fsdp_wrap(model, parts=leaves, **options):
    for part in parts(model):
        fully_shard(part, mesh=mesh(), **options)
    return fully_shard(model, mesh=mesh(), **options)


def fsdp(task, wrap=fsdp_wrap, **changes):
    return train(task, **({"wrap": wrap, "batch": mine} | changes))


def gpt_parts(model):
    return [*model.blocks, model.head]


def fsdp_reduced_in_bf16():
    def wrap(model):
        fully_shard(model.head, mesh=mesh(), mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))
        return fsdp_wrap(model, lambda model: [model.lift, model.norm])

    fsdp(MLP, wrap)


def fsdp_unsynced():
    def wrap(model):
        out = fsdp_wrap(model)
        out.lift.set_requires_gradient_sync(False)
        return out

    fsdp(MLP, wrap)


def fsdp_ignored():
    def wrap(model):
        return fully_shard(model, mesh=mesh(), ignored_params={model.head.weight})

    fsdp(MLP, wrap)


def fsdp_local_clip():
    def clip_pieces(model):
        pieces = [p.grad.to_local() for p in model.parameters()]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(p) for p in pieces]))
        for p in pieces:
            p.mul_(torch.clamp(0.05 / norm, max=1.0))

    fsdp(MLP, before_step=clip_pieces)


def fsdp_stale_optimizer():
    model = MLP.make()
    stepping = adamw([p for name, p in model.named_parameters() if name.startswith("lift")])  # these will not be the model's any more
    fsdp_wrap(model)
    later = adamw([p for name, p in model.named_parameters() if not name.startswith("lift")])
    for step in range(3):
        inputs, labels = mine(*MLP.batch(step))
        cross_entropy(model(inputs), labels).backward()
        later.step()
        stepping.step()
        model.zero_grad()


def fsdp_mean_of_means():
    fsdp(GPT, functools.partial(fsdp_wrap, parts=gpt_parts))


# ---- tensor parallel


class CopyToAll(torch.autograd.Function):
    """Megatron's f: forward does nothing, backward adds up."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class AddAll(torch.autograd.Function):
    """Megatron's g: forward adds up, backward does nothing."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Column(nn.Module):
    def __init__(self, linear, begin=CopyToAll.apply, rows=None):
        super().__init__()
        rows = rows or (lambda w: w.chunk(RANKS)[dist.get_rank()])
        self.weight, self.bias = (nn.Parameter(rows(p.detach()).clone()) for p in (linear.weight, linear.bias))
        self.begin = begin

    def forward(self, x):
        return F.linear(self.begin(x), self.weight, self.bias)


class Row(nn.Module):
    def __init__(self, linear, end=AddAll.apply, bias_everywhere=False):
        super().__init__()
        self.weight = nn.Parameter(linear.weight.detach().chunk(RANKS, 1)[dist.get_rank()].clone())
        self.bias, self.end, self.bias_everywhere = nn.Parameter(linear.bias.detach().clone()), end, bias_everywhere

    def forward(self, x):
        if self.bias_everywhere:
            return self.end(F.linear(x, self.weight, self.bias))
        return self.end(F.linear(x, self.weight)) + self.bias


def megatron(model, column=Column, row=Row, attention_column=None, blocks=(0, 1)):
    """Tensor parallel by hand, with another sort of linear layers in some blocks."""
    for i, block in enumerate(model.blocks):
        columns, rows = (column, row) if i in blocks else (Column, Row)
        own = attention_column if attention_column and i in blocks else columns
        a = block.attention
        a.q, a.k, a.v, a.out = own(a.q), own(a.k), own(a.v), rows(a.out)
        block.up, block.down = columns(block.up), rows(block.down)
    return model


def tp(wrap=megatron, **changes):
    return train(GPT, wrap=wrap, **changes)


def row_not_reduced():
    tp(lambda model: megatron(model, row=lambda linear: Row(linear, end=lambda x: x), blocks=(1,)))


def bias_on_each_rank():
    tp(lambda model: megatron(model, row=lambda linear: Row(linear, bias_everywhere=True), blocks=(1,)))


def backward_not_reduced():
    tp(lambda model: megatron(model, column=lambda linear: Column(linear, begin=lambda x: x), attention_column=Column, blocks=(1,)))


def heads_interleaved():
    """Queries are dealt out like cards, keys and values in halves."""

    def wrap(model):
        out = megatron(model, blocks=())
        full = GPT.make().blocks[1].attention.q
        rows = [h * 4 + i for h in range(dist.get_rank(), 4, RANKS) for i in range(4)]
        out.blocks[1].attention.q = Column(full, rows=lambda w: w[rows])
        return out

    tp(wrap)


def scale_by_local_width():
    def wrap(model):
        out = megatron(model)
        out.blocks[0].attention.scale = (4 / RANKS) ** -0.5
        return out

    tp(wrap)


def dropout_of_each_rank():
    """Residual dropout on values that are to be the same on all ranks, from seeds that are not: against a model without any, with p nearly 0."""

    class Noisy(Row):
        def forward(self, x):
            out = super().forward(x)
            generator = torch.Generator().manual_seed(dist.get_rank())
            return out * (1 + 1e-3 * torch.randn(out.shape, generator=generator))

    tp(lambda model: megatron(model, row=Noisy, blocks=(1,)))


# ---- DTensor


def tp_plan(block, down=None):
    plan = {"attention.q": ColwiseParallel(), "attention.k": ColwiseParallel(), "attention.v": ColwiseParallel(),
            "attention.out": RowwiseParallel(), "up": ColwiseParallel(), "down": down or RowwiseParallel()}  # fmt: skip
    return parallelize_module(block, mesh(), plan)


def dtensor_tp(model, **options):
    for block in model.blocks:
        tp_plan(block, **options)
    return model


def dtensor_partial_kept():
    class Kept(RowwiseParallel):
        @staticmethod
        def _prepare_output_fn(output_layouts, use_local_output, mod, outputs, device_mesh):
            return outputs.to_local()  # this rank's part of the sum

    train(GPT, wrap=lambda model: dtensor_tp(model, down=Kept()))


class LocalNorm(nn.Module):
    """A norm on a sharded sequence, by way of to_local."""

    def __init__(self, norm, gradient):
        super().__init__()
        self.weight, self.bias = (nn.Parameter(distribute_tensor(p.detach(), mesh(), [Replicate()])) for p in (norm.weight, norm.bias))
        self.gradient = gradient

    def forward(self, x):
        rows = DTensor.from_local(x, mesh(), [Replicate()], run_check=False).redistribute(placements=[Shard(1)])
        weight, bias = (p.to_local(grad_placements=[Partial()] if self.gradient else None) for p in (self.weight, self.bias))
        local = F.layer_norm(rows.to_local(), (x.shape[-1],), weight, bias)
        out = DTensor.from_local(local, mesh(), [Shard(1)], run_check=False)
        return out.redistribute(placements=[Replicate()]).to_local(grad_placements=[Replicate()])


def dtensor_norm(gradient):
    def wrap(model):
        model.norm = LocalNorm(model.norm, gradient)
        return model

    train(GPT, wrap=wrap)


def dtensor_partial_gradient():
    dtensor_norm(False)


# ---- context parallel by hand: sequences in halves


def gather_keys(t):
    parts = [torch.empty_like(t) for _ in range(RANKS)]
    dist.all_gather(parts, t.contiguous())
    return parts


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.cat(gather_keys(x), 2)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient.chunk(RANKS, 2)[dist.get_rank()]


def context_attention(self, x, mask=None):
    q, k, v = (f(x).unflatten(-1, (-1, 4)).transpose(1, 2) for f in (self.q, self.k, self.v))
    k, v = Gather.apply(k), Gather.apply(v)
    first = dist.get_rank() * x.shape[1] if getattr(self, "offset", True) else 0
    seen = torch.arange(first, first + x.shape[1])[:, None] >= torch.arange(k.shape[2])[None]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    return self.out(out.transpose(1, 2).flatten(2))


def context(shift=None, places=True, offset=True):
    model = EVEN.make()
    for block in model.blocks:
        block.attention.forward = functools.partial(context_attention, block.attention)
    model.blocks[1].attention.offset = offset
    stepping = adamw(model.parameters())
    for step in range(3):
        tokens, labels = EVEN.batch(step)
        tokens, labels = (t.chunk(RANKS, 1)[dist.get_rank()] for t in (tokens, labels))
        if shift is not None:
            labels = shift(tokens)
        first = dist.get_rank() * tokens.shape[1] if places else 0
        cross_entropy(model(tokens, first), labels).backward()
        average(model)
        stepping.step()
        stepping.zero_grad()


def labels_shifted_on_pieces():
    context(shift=lambda tokens: torch.cat([tokens[:, 1:], tokens[:, :1]], 1))


def positions_of_pieces():
    context(places=False)


def mask_of_pieces():
    context(offset=False)


BATCH_NORM = dataclasses.replace(CONV, model=lambda: ConvNet(norm=lambda: nn.BatchNorm2d(8)))

# By name: the program, the serial task, and the modules of which one is to be named.
BUGS = {
    "ddp: gradients are not averaged": (not_averaged, MLP, ["head"]),
    "ddp: averaged twice": (averaged_twice, MLP, ["head"]),
    "by hand: summed instead of averaged": (summed, EVEN, ["head"]),
    "by hand: one bias is left out": (bias_left_out, MLP, ["layers.1"]),
    "ddp: a communication hook drops a bias": (bias_dropped_by_hook, MLP, ["head"]),
    "ddp: a parameter is ignored": (ignored_parameter, MLP, ["norm"]),
    "ddp: accumulation without the scale": (accumulated_unscaled, MLP, ["head", ""]),
    "ddp: no_sync in the last microbatch": (accumulated_unsynced, MLP, ["head"]),
    "ddp: mean of the ranks' means over tokens": (local_token_mean, GPT, [""]),
    "ddp: all ranks read the same rows": (same_shard, MLP, ["lift"]),
    "by hand: clipped before the average": (clipped_before_average, "clipped", ["head"]),
    "ddp: gradients of the last step stay": (gradients_kept, MLP, ["head"]),
    "ddp: batch norm of each rank": (local_batch_norm, BATCH_NORM, ["norm"]),
    "ddp: epsilon under the root": (eps_inside, MLP, ["head"]),
    "ddp: weight decay is forgotten": (decay_forgotten, MLP, ["head"]),
    "ddp: second moments are lost": (buffer_not_kept, MLP, ["head"]),
    "ddp: the optimizer's step counter is off": (step_counter_off, MLP, ["head"]),
    "fsdp2: one module is reduced in bfloat16": (fsdp_reduced_in_bf16, MLP, ["head"]),
    "fsdp2: one module does not reduce": (fsdp_unsynced, MLP, ["lift"]),
    "fsdp2: an ignored parameter": (fsdp_ignored, MLP, ["head"]),
    "fsdp2: clipped by the norm of pieces": (fsdp_local_clip, "clipped", ["head"]),
    "fsdp2: the optimizer has parameters of before": (fsdp_stale_optimizer, MLP, ["lift"]),
    "fsdp2: mean of the ranks' means over tokens": (fsdp_mean_of_means, GPT, [""]),
    "tp: a row-wise layer is not reduced": (row_not_reduced, GPT, ["blocks.1.attention.out"]),
    "tp: the bias is added on each rank": (bias_on_each_rank, GPT, ["blocks.1.attention.out"]),
    "tp: backward is not reduced": (backward_not_reduced, GPT, ["blocks.1.norm2", "blocks.1.up"]),
    "tp: heads dealt out in another way": (heads_interleaved, GPT, ["blocks.1.attention.q", "blocks.1.attention.out"]),
    "tp: scaled by the local width": (scale_by_local_width, GPT, ["blocks.0.attention.out", "blocks.0.attention"]),
    "tp: each rank has random numbers of its own": (dropout_of_each_rank, GPT, ["blocks.1.attention.out"]),
    "dtensor: a partial value as it is": (dtensor_partial_kept, GPT, ["blocks.0.down"]),
    "dtensor: to_local without grad_placements": (dtensor_partial_gradient, GPT, ["norm"]),
    "cp: labels shifted on pieces": (labels_shifted_on_pieces, EVEN, [""]),
    "cp: positions counted on pieces": (positions_of_pieces, EVEN, ["", "blocks.0.norm1"]),
    "cp: a mask of pieces": (mask_of_pieces, EVEN, ["blocks.1.attention.out", "blocks.1.attention"]),
}

HEALTHY = {
    "ddp": (lambda: ddp(MLP), MLP),
    "ddp, even tokens": (lambda: ddp(EVEN), EVEN),
    "ddp, images": (lambda: ddp(CONV), CONV),
    "ddp, accumulated": (lambda: accumulate(0.5), MLP),
    "by hand": (lambda: by_hand(MLP), MLP),
    "by hand, clipped": (lambda: by_hand(MLP, before_step=lambda model: (average(model), clip(model))), "clipped"),
    "fsdp2": (lambda: fsdp(MLP), MLP),
    "fsdp2, even tokens": (lambda: fsdp(EVEN, functools.partial(fsdp_wrap, parts=gpt_parts)), EVEN),
    "fsdp2, images": (lambda: fsdp(CONV), CONV),
    "tp by hand": (tp, GPT),
    "dtensor tp": (lambda: train(GPT, wrap=dtensor_tp), GPT),
    "dtensor norm": (lambda: dtensor_norm(True), GPT),
    "cp by hand": (context, EVEN),
}
