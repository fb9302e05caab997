"""Training written by hand with torch.distributed and plain tensors: what the engine costs without a library."""

import torch
import torch.distributed as dist
from torch import nn

MIB = 2**20


class Buckets:
    """Data parallel: gradients are summed in flat buckets while backward goes on. As DDP has them: the first bucket
    holds 1 MiB, the others 25; parameters enter in reverse order."""

    def __init__(self, parameters):
        self.buckets, self.place = [], {}
        limit = 1 * MIB
        for p in reversed(list(parameters)):
            if not self.buckets or self.buckets[-1]["bytes"] + p.nbytes > limit:
                limit = 25 * MIB if self.buckets else limit
                self.buckets.append({"bytes": 0, "members": []})
            bucket = self.buckets[-1]
            self.place[p] = bucket, bucket["bytes"] // p.element_size()
            bucket["members"].append(p)
            bucket["bytes"] += p.nbytes
            p.register_post_accumulate_grad_hook(self.arrived)
        for bucket in self.buckets:
            bucket["flat"] = torch.empty(bucket["bytes"] // 4)
        self.begin()

    def begin(self):
        for bucket in self.buckets:
            bucket["missing"] = len(bucket["members"])
        self.under_way = []

    def arrived(self, p):
        bucket, offset = self.place[p]
        slot = bucket["flat"].narrow(0, offset, p.numel()).view_as(p)
        slot.copy_(p.grad)
        p.grad = slot
        bucket["missing"] -= 1
        if bucket["missing"] == 0:
            self.under_way.append(dist.all_reduce(bucket["flat"], async_op=True))

    def finish(self):
        for work in self.under_way:
            work.wait()
        self.begin()


class Group:
    """Parameters that are gathered and reduced together. Each rank stores one flat shard.

    Cut by parameter: the shard holds the first dimension's part of each parameter, as fully_shard and FSDP2 store it, so
    what is gathered is copied into place. Cut flat: the shard is a part of all parameters one after the other, and
    is gathered into place; then pieces of parameters are not parts of them that one could save.
    """

    def __init__(self, parameters, flat):
        self.world, self.flat = dist.get_world_size(), flat
        self.parameters, self.places = list(parameters), []
        at = 0
        for p in self.parameters:
            self.places.append(at)
            at += p.numel()
        assert at % self.world == 0 and all(p.shape[0] % self.world == 0 for p in self.parameters)
        self.length = at // self.world
        self.all = torch.empty(at)
        for p, place in zip(self.parameters, self.places):
            self.all.narrow(0, place, p.numel()).copy_(p.detach().reshape(-1))
        mine = self.packed(self.in_parts(self.all))[dist.get_rank()].clone()
        self.shard = nn.Parameter(mine)
        for p, place in zip(self.parameters, self.places):
            p.data = self.all.data.narrow(0, place, p.numel()).view_as(p).data
        self.here, self.work, self.terms = True, None, None
        self.arrived = 0
        self.reducing = None
        self.release()

    # Where the part of each rank stands in all parameters, and in what is sent: pairs of equal sizes.
    def in_parts(self, flat):
        if self.flat:
            return [flat.view(self.world, -1)]
        return [flat.narrow(0, a, p.numel()).view(self.world, -1) for p, a in zip(self.parameters, self.places)]

    def in_rows(self, sent):
        if self.flat:
            return [sent]
        return [
            sent.narrow(1, a // self.world, p.numel() // self.world) for p, a in zip(self.parameters, self.places)
        ]

    def packed(self, parts):
        sent = torch.empty(self.world, self.length)
        for row, part in zip(self.in_rows(sent), parts):
            row.copy_(part)
        return sent

    def gather(self):
        """Begins to bring the parameters."""
        if self.here or self.work:
            return
        self.all.untyped_storage().resize_(self.all.nbytes)
        self.got = self.all.view(self.world, -1) if self.flat else torch.empty(self.world, self.length)
        self.work = dist.all_gather_into_tensor(self.got.view(-1), self.shard.detach(), async_op=True)

    @torch.no_grad()
    def complete(self):
        self.gather()
        if self.work:
            self.work.wait()
            if not self.flat:
                for part, row in zip(self.in_parts(self.all), self.in_rows(self.got)):
                    part.copy_(row)
            self.got, self.work, self.here = None, None, True

    def release(self):
        self.all.untyped_storage().resize_(0)
        self.here = False

    @torch.no_grad()
    def take(self, i):
        """Takes the gradient of a parameter; whether it was the last."""
        if self.terms is None:
            self.terms = torch.empty(self.world, self.length)
        p, place = self.parameters[i], self.places[i]
        if self.flat:
            self.terms.view(-1).narrow(0, place, p.numel()).copy_(p.grad.view(-1))
        else:
            size = p.numel() // self.world
            self.terms.narrow(1, place // self.world, size).copy_(p.grad.view(self.world, size))
        p.grad = None
        self.arrived += 1
        return self.arrived == len(self.parameters)

    def reduce(self):
        received = torch.empty_like(self.terms)
        self.reducing = received, dist.all_to_all_single(received, self.terms, async_op=True), self.terms
        self.arrived, self.terms = 0, None

    @torch.no_grad()
    def finish(self):
        received, work, _ = self.reducing
        work.wait()
        self.shard.grad = received.sum(0)
        self.reducing = None

    def whole(self, p):
        """All of a parameter, for comparison."""
        self.complete()
        out = p.detach().clone()
        self.release()
        return out


class FullySharded:
    """ZeRO-3: parameters gathered group by group, the next one ahead; given up after use, and gathered again in
    backward, but for the last two groups, which backward begins with; gradients reduced and scattered by an all-to-all
    and a sum, at most two at a time."""

    def __init__(self, model, flat):
        blocks = list(model.blocks)
        self.model = model
        self.groups = [Group(model.embed.parameters(), flat)]
        self.groups += [Group(block.parameters(), flat) for block in blocks]
        self.groups += [Group([*model.norm.parameters(), *model.head.parameters()], flat)]
        self.of = {p: group for group in self.groups for p in group.parameters}
        self.reducing = []
        last = len(self.groups) - 1
        units = [model.embed, *blocks, model.norm]
        for at, unit in enumerate(units):
            unit.register_forward_pre_hook(lambda _, __, at=at: self.enter(at))
        for at, unit in enumerate(units[:-1]):
            unit.register_forward_hook(lambda _, __, out, at=at: self.leave(at, out))
        model.head.register_forward_hook(lambda _, __, out: self.before_backward(last, out))
        for group in self.groups:
            for i, p in enumerate(group.parameters):
                p.register_post_accumulate_grad_hook(lambda _, group=group, i=i: self.arrived(group, i))

    def parameters(self):
        return [group.shard for group in self.groups]

    def enter(self, at):
        self.groups[at].complete()
        if at + 1 < len(self.groups):
            self.groups[at + 1].gather()

    def leave(self, at, out):
        if at < len(self.groups) - 2:
            self.groups[at].release()
        if at > 0:
            self.before_backward(at, out)

    def before_backward(self, at, out):
        out.register_hook(lambda _: self.enter_backward(at))

    def enter_backward(self, at):
        """Backward of the embedding does not need its table."""
        self.groups[at].complete()
        if at > 1:
            self.groups[at - 1].gather()

    def arrived(self, group, i):
        if not group.take(i):
            return
        group.release()
        self.finish(1)
        group.reduce()
        self.reducing.append(group)

    def finish(self, but=0):
        while len(self.reducing) > but:
            self.reducing.pop(0).finish()


# ---- Megatron's tensor parallelism ---------------------------------------------------------------


class Enter(torch.autograd.Function):
    """Replicated from here on: gradients are summed."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class Leave(torch.autograd.Function):
    """Terms up to here: they are summed."""

    @staticmethod
    def forward(ctx, x):
        dist.all_reduce(x)  # in place: no formula before it reads its own result
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class ShardedEmbedding(nn.Embedding):
    """A part of the rows; tokens of others add nothing."""

    def forward(self, tokens):
        mine = tokens - dist.get_rank() * self.num_embeddings
        others = (mine < 0) | (mine >= self.num_embeddings)
        out = super().forward(mine.masked_fill(others, 0))
        return Leave.apply(out.masked_fill(others.unsqueeze(-1), 0.0))


class CutLoss(torch.autograd.Function):
    """Cross entropy of logits whose classes are cut: two numbers a token are sent, and none in backward."""

    @staticmethod
    def forward(ctx, logits, targets):
        classes = logits.shape[1]
        highest = logits.amax(1, keepdim=True)
        dist.all_reduce(highest, dist.ReduceOp.MAX)
        shifted = logits - highest
        mine = targets - dist.get_rank() * classes
        others = (mine < 0) | (mine >= classes)
        mine = mine.masked_fill(others, 0).unsqueeze(1)
        chosen = shifted.gather(1, mine).squeeze(1).masked_fill(others, 0.0)
        powers = shifted.exp_()
        both = torch.stack((powers.sum(1), chosen))
        dist.all_reduce(both)
        ctx.save_for_backward(powers, both[0], mine, others)
        return (both[0].log() - both[1]).mean()

    @staticmethod
    def backward(ctx, gradient):
        powers, total, mine, others = ctx.saved_tensors
        out = powers / total.unsqueeze(1)
        out.scatter_add_(1, mine, (~others).to(out.dtype).neg_().unsqueeze(1))
        return out.mul_(gradient / total.shape[0]), None


def cut_loss(logits, targets):
    return CutLoss.apply(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


def split_dim(name):
    """Which dimension of a parameter is cut, None where none is."""
    last = name.split(".")[-2]
    if last in ("wq", "wk", "wv", "w1", "w3", "embed", "head"):
        return 0
    return 1 if last in ("wo", "w2") else None
