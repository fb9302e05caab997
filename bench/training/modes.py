"""The ways to train that bench/training compares. Each is built by a function that returns a Mode."""

import dataclasses
from collections.abc import Callable

import bare
import intarsia
import torch
import torch.distributed as dist
import torch.nn.functional as F
from model import VOCABULARY, Chain, Llama, batches, rows, token_loss
from torch import nn

DATA = 8  # batches that take turns


@dataclasses.dataclass
class Mode:
    """`forward(i)`: the loss of batch i, whose mean over ranks is that of one device. `whole(name)`: a parameter, for
    comparison; None where there is nothing to compare with."""

    forward: Callable[[int], torch.Tensor]
    optimizer: torch.optim.Optimizer
    whole: Callable[[str], torch.Tensor] | None = None
    after_backward: Callable[[], None] = lambda: None
    scale: float = 1.0  # of the loss that backward sees
    report: Callable[[], str] = lambda: ""

    def step(self, i):
        loss = self.forward(i)
        self.optimizer.zero_grad()
        (loss if self.scale == 1.0 else loss * self.scale).backward()
        self.after_backward()
        self.optimizer.step()
        return loss.detach()


def adamw(parameters, form):
    """`form`: loop, which is torch's choice for CPUs, foreach or fused. Plain parameters and others are groups of their
    own, since no foreach of DTensors takes both. A large eps: a small one divides rounding errors of gradients near 0 by
    about themselves, and then parameters could not be compared."""
    kinds = {}
    for p in parameters:
        kinds.setdefault((type(p.data), intarsia.has_layout(p)), []).append(p)
    options = {} if form == "loop" else {form: True}
    return torch.optim.AdamW([{"params": kind} for kind in kinds.values()], lr=1e-3, eps=1e-3, **options)


def value(loss):
    """The loss of one device: the mean over ranks of what plain code computed, or ours as it is."""
    if intarsia.has_layout(loss):
        return intarsia.full(loss).item()
    loss = loss.full_tensor() if hasattr(loss, "full_tensor") else loss.clone()
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size()


def llama():
    torch.manual_seed(0)
    return Llama()


def chain():
    torch.manual_seed(0)
    return Chain()


def by_name(module, whole=lambda p: p.detach()):
    parameters = dict(module.named_parameters())
    return lambda name: whole(parameters[name])


def half(data):
    """This rank's part of each batch."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return [tuple(t.chunk(ranks)[rank].contiguous() for t in pair) for pair in data]


def plain(form):
    """One device with the whole batch: what all are compared with, not a mode."""
    model, data = llama(), batches(DATA)
    return Mode(lambda i: token_loss(model(data[i][0]), data[i][1]), adamw(model.parameters(), form), by_name(model))


# ---- computation alone ---------------------------------------------------------------------------


def local_dp(form):
    mode = on_half(llama(), form)
    mode.whole = None
    return mode


def local_tp(form):
    torch.manual_seed(0)
    ranks = dist.get_world_size()
    model = Llama(parts=ranks)
    data = [tuple(t % (VOCABULARY // ranks) for t in pair) for pair in batches(DATA)]
    return Mode(lambda i: token_loss(model(data[i][0]), data[i][1]), adamw(model.parameters(), form))


def on_half(model, form, module=None):
    """A model of plain tensors that computes a part of the batch; `module` is the one that has the parameters' names."""
    data, module = half(batches(DATA)), module or model
    return Mode(lambda i: token_loss(model(data[i][0]), data[i][1]), adamw(model.parameters(), form), by_name(module))


# ---- PyTorch -------------------------------------------------------------------------------------


def device_mesh():
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (dist.get_world_size(),))


def whole_of_theirs(p):
    p = p.detach()
    return p.full_tensor() if hasattr(p, "full_tensor") else p


def ddp(form):
    model = llama()
    return on_half(nn.parallel.DistributedDataParallel(model), form, model)


def fsdp2_of(model):
    from torch.distributed.fsdp import fully_shard

    mesh = device_mesh()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def fsdp2(form):
    mode = on_half(fsdp2_of(llama()), form)
    whole = mode.whole
    mode.whole = lambda name: whole_of_theirs(whole(name))
    return mode


def tp_of(head_layout, local_head):
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh, model = device_mesh(), llama()
    plan = {n: ColwiseParallel() for n in ("wq", "wk", "wv", "w1", "w3")}
    plan |= {n: RowwiseParallel() for n in ("wo", "w2")}
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    head = ColwiseParallel(output_layouts=head_layout, use_local_output=local_head)
    return parallelize_module(model, mesh, {"embed": RowwiseParallel(input_layouts=Replicate()), "head": head})


def tp(form):
    """The logits are gathered, as its tutorial does first."""
    from torch.distributed.tensor import Replicate

    model, data = tp_of(Replicate(), True), batches(DATA)
    return Mode(
        lambda i: token_loss(model(data[i][0]), data[i][1]),
        adamw(model.parameters(), form),
        by_name(model, whole_of_theirs),
    )


def tp_cut_loss(form):
    """The logits stay cut, under its loss_parallel."""
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import loss_parallel

    model, data = tp_of(Shard(-1), False), batches(DATA)

    class Inside(Mode):
        def step(self, i):
            with loss_parallel():
                return super().step(i)

    return Inside(
        lambda i: token_loss(model(data[i][0]), data[i][1]),
        adamw(model.parameters(), form),
        by_name(model, whole_of_theirs),
    )


# ---- Intarsia ------------------------------------------------------------------------------------


def whole_of_ours(p):
    return intarsia.full(p.detach()) if intarsia.has_layout(p) else p.detach()


def ours_dp(form):
    model = llama()
    replica = intarsia.replicate(model, mesh=f"[dp={dist.get_world_size()}]")
    mode = on_half(model, form)
    mode.report = lambda: f"{replica.counters()}"
    return mode


def sharded(model, pairs, loss, form):
    mesh = f"[dp={dist.get_world_size()}]"
    sharding = intarsia.fully_shard(model, mesh=mesh, shard="dp")
    local = half(pairs)

    def forward(i):
        x, y = (intarsia.from_local(t, "S(0)", mesh=mesh) for t in local[i])
        return loss(model(x), y)

    return Mode(forward, adamw(model.parameters(), form), by_name(model, whole_of_ours), report=sharding.report)


def ours_fsdp(form):
    return sharded(llama(), batches(DATA), token_loss, form)


def tensor_parallel_plan():
    """Columns, rows and the vocabulary; what norms give is whole, and so is its gradient."""
    from intarsia import column, prepare_output, row, vocabulary

    return intarsia.TensorParallelPlan(
        [
            ("*.wq|*.wk|*.wv|*.w1|*.w3|head", column()),
            ("*.wo|*.w2", row(output="R")),
            ("embed", vocabulary(output="R")),
            ("norm|*.norm1|*.norm2", prepare_output("R")),
        ]
    )


def ours_tp(form, gathered=False):
    """The logits stay cut, which is what a model in this layout gives."""
    model, data, mesh = llama(), batches(DATA), f"[tp={dist.get_world_size()}]"
    intarsia.parallelize(model, mesh, tensor_parallel_plan())

    def forward(i):
        x, y = (intarsia.from_local(t, "R", mesh=mesh) for t in data[i])
        logits = model(x)
        return token_loss(intarsia.redistribute(logits, "R") if gathered else logits, y)

    return Mode(forward, adamw(model.parameters(), form), by_name(model, whole_of_ours))


def ours_tp_gathered(form):
    """The logits are gathered, as in `tp`."""
    return ours_tp(form, gathered=True)


# ---- by hand -------------------------------------------------------------------------------------


def bare_dp(form):
    model = llama()
    mode = on_half(model, form)
    buckets = bare.Buckets(model.parameters())
    mode.scale, mode.after_backward = 1 / dist.get_world_size(), buckets.finish
    return mode


def bare_fsdp(form, flat=False):
    """Cut by parameter, as ours is."""
    model, data = llama(), half(batches(DATA))
    by_hand = bare.FullySharded(model, flat)
    return Mode(
        lambda i: token_loss(model(data[i][0]), data[i][1]),
        adamw(by_hand.parameters(), form),
        by_name(model, lambda p: by_hand.of[p].whole(p)),
        by_hand.finish,
        1 / dist.get_world_size(),
    )


def bare_fsdp_flat(form):
    """Cut without regard to parameters."""
    return bare_fsdp(form, flat=True)


def bare_tp(form):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model, data = Llama(ranks, bare.Enter.apply, bare.Leave.apply, bare.ShardedEmbedding), batches(DATA)
    given = dict(llama().named_parameters())
    for name, p in model.named_parameters():
        dim = bare.split_dim(name)
        p.data.copy_(given[name] if dim is None else given[name].chunk(ranks, dim)[rank])
    parameters = dict(model.named_parameters())

    def whole(name):
        p, dim = parameters[name].detach(), bare.split_dim(name)
        if dim is None:
            return p
        parts = [torch.empty_like(p) for _ in range(ranks)]
        dist.all_gather(parts, p.contiguous())
        return torch.cat(parts, dim)

    return Mode(
        lambda i: bare.cut_loss(model(data[i][0]), data[i][1]), adamw(model.parameters(), form), whole
    )


# ---- many small parameters -----------------------------------------------------------------------


def many_plain(form):
    """One device with the whole batch: what the other two are compared with."""
    model, data = chain(), rows(DATA)
    return Mode(lambda i: F.mse_loss(model(data[i][0]), data[i][1]), adamw(model.parameters(), form), by_name(model))


def many_local(form):
    model, data = chain(), half(rows(DATA))
    return Mode(lambda i: F.mse_loss(model(data[i][0]), data[i][1]), adamw(model.parameters(), form))


def many_fsdp2(form):
    model, data = fsdp2_of(chain()), half(rows(DATA))
    return Mode(
        lambda i: F.mse_loss(model(data[i][0]), data[i][1]),
        adamw(model.parameters(), form),
        by_name(model, whole_of_theirs),
    )


def many_ours(form):
    return sharded(chain(), rows(DATA), F.mse_loss, form)


LLAMA = {
    f.__name__: f
    for f in (local_dp, local_tp, ddp, fsdp2, tp, tp_cut_loss, ours_dp, ours_fsdp, ours_tp, ours_tp_gathered,
              bare_dp, bare_fsdp, bare_fsdp_flat, bare_tp)
}  # fmt: skip
MANY = {f.__name__: f for f in (many_local, many_fsdp2, many_ours)}
