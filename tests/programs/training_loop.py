"""The loop of a random training run: the same for plain training and for each way to distribute it.

A Side is how one of them takes part: what is done to a model before it trains, which batch it gets, how its loss
counts. All else is one code.
"""

import contextlib
import copy
import random
import re

import intarsia as it
import torch
import torch.nn.functional as F
from torch import nn
from training_data import rows_of
from training_models import DTYPES, FEATURES, VOCABULARY, Net, Planned, hash_of, values_of

CLIP = 0.3
SCALE = 8.0


# --- sides ---------------------------------------------------------------------------------


class Side:
    """Plain training on the whole batch."""

    distributed = False

    def __init__(self, run):
        self.run = run

    def make(self, number, exact):
        """A model with its values, ready to train, and its handle or None."""
        net = Net(self.run, exact)
        net.load_state_dict(values_of(Net(self.run), self.run.seed + number))
        return net, None

    def place(self, batch):
        return batch

    def forward(self, net, x, *how, **more):
        return net(x, *how, **more)

    def scaled(self, total, count):
        """The loss of a sum over elements, of which there are so many in the whole batch."""
        return total / count

    def value(self, output, loss):
        """What is recorded of a forward: sums of squares, in which nothing cancels."""
        return loss.detach()

    def synced(self, net):
        """After a backward whose gradients counted."""

    def idle(self, rows):
        """Whether this rank has none of so many rows."""
        return False


def part(t, ranks, rank):
    """The rows of a rank, as torch.chunk would cut them; none for the last ranks of a small batch."""
    size = -(-t.shape[0] // ranks)
    return t[rank * size : (rank + 1) * size]


class Parts(Side):
    """What `replicate` is compared with: one model, that sees the parts of all ranks one after the other, with buffers
    for each of them."""

    def __init__(self, run, rank):
        super().__init__(run)
        self.rank, self.ranks, self.buffers = rank, run.ranks(), {}

    def make(self, number, exact):
        net, _ = super().make(number, exact)
        self.buffers[net] = [{n: b.clone() for n, b in net.named_buffers()} for _ in range(self.ranks)]
        self.load(net, self.rank)
        return net, None

    def load(self, net, rank):
        for name, buffer in self.buffers[net][rank].items():
            owner, _, key = name.rpartition(".")
            net.get_submodule(owner)._buffers[key] = buffer

    def forward(self, net, x, *how, **more):
        outputs, error = [], None
        for rank in range(self.ranks):
            self.load(net, rank)
            try:
                outputs.append(net(part(x, self.ranks, rank), *how, **more))
            except Planned as planned:
                error = planned
        self.load(net, self.rank)
        if error is not None:
            raise error
        return torch.cat(outputs)

    def value(self, output, loss):
        return part(output, self.ranks, self.rank).detach().square().sum()

    def synced(self, net):
        every = self.buffers[net]
        for name, first in every[0].items():
            average = first.is_floating_point() and "averaged" in self.run.options
            value = torch.stack([b[name] for b in every]).mean(0) if average else first.clone()
            for buffers in every:
                buffers[name].copy_(value)


class Replica(Side):
    """A rank of `replicate`: a plain model and some rows."""

    distributed = True

    def __init__(self, run, world):
        super().__init__(run)
        self.world, self.ranks = world, run.ranks()

    def make(self, number, exact):
        net = Net(self.run)
        # The values of the first rank are to count.
        net.load_state_dict(values_of(net, self.run.seed + number + 1000 * self.world.rank()))
        more = {"bucket_bytes": 100, "first_bucket_bytes": 50} if "small_buckets" in self.run.options else {}
        buffers = "averaged" if "averaged" in self.run.options else "from_first"
        return net, it.replicate(net, mesh=self.run.mesh, axis="dp", world=self.world, buffers=buffers, **more)

    def place(self, batch):
        return part(batch, self.ranks, self.world.rank())

    def scaled(self, total, count):
        return total * self.ranks / count

    def value(self, output, loss):
        return output.detach().square().sum()

    def idle(self, rows):
        return not self.place(torch.empty(rows)).numel()


class Distributed(Side):
    """Distributed parameters, in the default world."""

    distributed = True

    def make(self, number, exact):
        run = self.run
        torch.manual_seed(run.seed)
        values = values_of(Net(run), run.seed + number)
        with torch.device("meta") if "meta" in run.model else contextlib.nullcontext():
            net = Net(run)
        if "meta" not in run.model:
            net.load_state_dict(values)
        handle = {
            "parallelize": lambda: it.parallelize(net, run.mesh, random_layouts(run, net)),
            "plan": lambda: it.parallelize(net, run.mesh, random_plan(run, net)),
            "fully_shard": lambda: it.fully_shard(net, mesh=run.mesh, **sharding_options(run, net)),
            "fully_shard_plan": lambda: it.fully_shard(
                net, mesh=run.mesh, layouts=random_plan(run, net), **sharding_options(run, net)
            ),
        }[run.way]()
        if "meta" in run.model:
            net.load_state_dict(values)
        return net, handle if run.way.startswith("fully_shard") else None

    def place(self, batch):
        return it.distribute(batch, self.run.batch)


def chance_of(run, what):
    """Chance for one name, so that it does not change when others are left out."""
    return random.Random(hash_of(f"{run.seed} {what}"))


def random_layouts(run, net):
    layouts = {}
    for name, t in [*net.named_parameters(), *net.named_buffers()]:
        chance = chance_of(run, f"layout {name}")
        if t.dim() and (isinstance(t, nn.Parameter) or chance.random() < 0.4):
            places = ["R"] + [f"S({d})" for d in range(t.dim())] * 2
            layouts[name] = ",".join(chance.choice(places) for _ in run.axes())
    return layouts


def style_of(run, name, module):
    """A style that could stand in a plan for such a module, or None."""
    chance = chance_of(run, f"style {name}")
    between = ["R", "S(1)", "S(0)", "S(2)"]
    enters = chance.choice([None, None, *between])
    leaves = chance.choice([None, None, *between])
    if chance.random() < 0.2:
        return None
    if isinstance(module, nn.Linear):
        rows = name.endswith(("down", "wo")) != (chance.random() < 0.15)
        return (it.row if rows else it.column)(input=enters, output=leaves)
    if isinstance(module, nn.Embedding):
        return it.vocabulary(output=leaves if leaves != "S(2)" or name == "entry" else None)
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        return it.sequence(chance.choice([0, 1, 1]))
    if re.fullmatch(r"blocks\.\d+", name) and chance.random() < 0.4:
        place = chance.choice(between)
        return (it.prepare_input if chance.random() < 0.5 else it.prepare_output)(place)
    return None


def random_plan(run, net):
    styles = [(name, style_of(run, name, module)) for name, module in net.named_modules() if name]
    chunks = 2 if "chunks2" in run.options else 0 if "chunks0" in run.options else 1
    return it.TensorParallelPlan([(n, s) for n, s in styles if s is not None], axis="tp", chunks=chunks)


def sharding_options(run, net):
    options = {"keep_after_forward": "keep" in run.options, "prefetch": "no_prefetch" not in run.options}
    axes = list(run.axes())
    chance = chance_of(run, "axes")
    if run.way == "fully_shard_plan" or len(axes) == 1:
        options["shard"] = ["dp"]
    elif "hybrid" in run.options:
        chance.shuffle(axes)
        options |= {"shard": axes[:1], "replicate": axes[1:]}
    else:
        options["shard"] = chance.choice([axes, axes[::-1], ["dp"], ["tp"]])
    if "dims" in run.options:
        options["dims"] = {
            name: chance_of(run, f"dim {name}").randrange(p.dim()) for name, p in net.named_parameters() if p.dim()
        }
    if "one_group" in run.options:
        options["blocks"] = ["blocks"]
    return options


# --- the loop ------------------------------------------------------------------------------


def make_optimizer(run, parameters, lr):
    form = {"foreach": {"foreach": True}, "loop": {"foreach": False}, "fused": {"fused": True}}
    more = form[run.optimizer[1]] if len(run.optimizer) > 1 else {}
    if "groups" in run.model:
        half = len(parameters) // 2
        parameters = [{"params": parameters[:half]}, {"params": parameters[half:], "lr": lr / 2}]
    # With its usual epsilon, Adam makes a whole step of a gradient that is zero but for rounding.
    return {
        "sgd": lambda: torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=0.01, **more),
        "adamw": lambda: torch.optim.AdamW(parameters, lr=lr, eps=1e-3, **more),
        "adam": lambda: torch.optim.Adam(parameters, lr=lr, eps=1e-3, amsgrad=True, **more),
        "rmsprop": lambda: torch.optim.RMSprop(parameters, lr=lr / 5, eps=1e-2, momentum=0.5, **more),
        "adagrad": lambda: torch.optim.Adagrad(parameters, lr=lr, eps=1e-2, **more),
    }[run.optimizer[0]]()


def halve(p):
    p.grad.mul_(0.5)


class Training:
    """One side of a run."""

    def __init__(self, run, side, exact=False):
        self.run, self.side = run, side
        self.dtype = torch.float64 if exact else DTYPES[run.dtype]
        made = [side.make(number, exact) for number in range(2 if "two_models" in run.model else 1)]
        self.nets, self.handles = [net for net, _ in made], [handle for _, handle in made]
        self.parameters = [p for net in self.nets for p in net.parameters()]
        split = 2 if "two_optimizers" in run.model else 1
        self.optimizers = [make_optimizer(run, self.parameters[i::split], 0.05 / (i + 1)) for i in range(split)]
        self.schedules = []
        if "schedule" in run.model:
            self.schedules = [torch.optim.lr_scheduler.StepLR(o, 1, gamma=0.7) for o in self.optimizers]
        self.ema = copy.deepcopy(self.nets[0]) if "ema" in run.model else None
        self.add_hooks()
        self.generator = torch.Generator().manual_seed(run.seed)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0) if run.has("scaler") else None
        self.total = torch.zeros((), dtype=self.dtype)
        self.losses, self.saved = [], None

    def add_hooks(self):
        for p in self.parameters[::3]:
            if "hooks" in self.run.model and p.requires_grad:
                p.register_hook(lambda gradient: gradient * 0.5)
            if "after_hooks" in self.run.model and p.requires_grad:
                p.register_post_accumulate_grad_hook(halve)

    # --- pieces of a step

    def batch(self, habits):
        rows, length = rows_of(self.run, habits), self.run.sizes[1]
        if self.run.entry == "tokens":
            both = [torch.randint(0, VOCABULARY, (rows, length), generator=self.generator) for _ in range(2)]
        else:
            # Drawn in double and rounded to single, so that runs in all dtypes see the same.
            both = [
                torch.randn(rows, length, width, generator=self.generator, dtype=torch.float64).float().to(self.dtype)
                for width in (FEATURES, 2)
            ]
        return [self.side.place(t) for t in both]

    def loss(self, output, y, habits):
        count = rows_of(self.run, habits) * self.run.sizes[1]
        if self.run.entry == "tokens":
            total = F.cross_entropy(output.flatten(0, 1), y.flatten(), reduction="sum")
        else:
            total = (output - y).square().sum() / 2
        return self.side.scaled(total, count)

    def record(self, number):
        self.losses.append(number.item() if isinstance(number, torch.Tensor) else number)

    def order(self, habits):
        given = next((h for h in habits if re.fullmatch(r"o[\d.]*", h)), None)
        if given is None:
            return list(range(len(self.run.blocks)))
        return [int(n) for n in given[1:].split(".") if n]

    def forward(self, net, x, habits, **more):
        recompute = True if "reentrant" in habits else False if "ckpt" in habits else None
        return self.side.forward(net, x, self.order(habits), recompute, **more)

    def backward(self, number, loss, habits, sync=True, **more):
        handle = self.handles[number]
        if "scaler" in habits:
            loss = self.scaler.scale(loss)
        with contextlib.nullcontext() if sync or handle is None else handle.no_sync():
            if "finish" in habits and self.side.idle(rows_of(self.run, habits)):
                handle.finish()
            else:
                loss.backward(**more)
        if sync:
            self.side.synced(self.nets[number])

    def evaluate(self, net, habits):
        x, _ = self.batch(habits)
        net.eval()
        with torch.inference_mode() if "infer" in habits else torch.no_grad():
            output = self.side.forward(net, x, self.order(habits))
            self.record(self.side.value(output, output.square().mean()))
        net.train()

    def fail_forward(self, net, habits):
        with contextlib.suppress(Planned):
            self.forward(net, self.batch(habits)[0], habits, fail="forward")

    def fail_backward(self, number, habits):
        """A backward that fails in the middle of the model; its gradients are dropped."""
        net = self.nets[number]
        x, y = self.batch(habits)
        with contextlib.suppress(Planned):
            self.loss(self.forward(net, x, habits, fail="backward"), y, habits).backward()
        for p in net.parameters():
            p.grad = None

    def accumulate(self, number, habits, times):
        for _ in range(times):
            x, y = self.batch(habits)
            self.backward(number, self.loss(self.forward(self.nets[number], x, habits), y, habits), habits, sync=False)

    def penalty(self, net, loss):
        wanted = [p for p in net.parameters() if p.requires_grad]
        found = torch.autograd.grad(loss, wanted, create_graph=True, allow_unused=True)
        return loss + 0.1 * sum((g * g).sum().to(loss.dtype) for g in found if g is not None)

    def train_once(self, number, habits):
        """The forward and backward whose gradients count, with what habits add to it."""
        net = self.nets[number]
        x, y = self.batch(habits)
        output = self.forward(net, x, habits)
        if "twice" in habits:
            output = output + self.forward(net, self.batch(habits)[0], habits)
        if "detach" in habits:
            output = output + 0.1 * self.forward(net, x, habits).detach()
        loss = self.loss(output, y, habits)
        self.record(self.side.value(output, loss))
        if "total" in habits:
            self.total += self.side.value(output, loss)
        if "two_losses" in habits:
            x, y = self.batch(habits)
            other = self.loss(self.forward(net, x, habits), y, habits)
            self.backward(number, loss, habits)
            loss = other
        if "reg" in habits:
            loss = loss + 0.01 * sum((p * p).sum().to(loss.dtype) for p in net.parameters() if p.requires_grad)
        if "penalty" in habits:
            loss = self.penalty(net, loss)
        if "scale" in habits:
            loss = loss * SCALE
        if "mid" in habits:
            self.evaluate(net, habits)
        if "retain" in habits:
            self.backward(number, loss, habits, retain_graph=True)
        self.backward(number, loss, habits)
        return loss

    def clear(self, habits):
        for o in self.optimizers:
            if "keep" not in habits:
                o.zero_grad(set_to_none="zero" not in habits)

    def before(self, number, habits):
        net, handle = self.nets[number], self.handles[number]
        if "raise_forward" in habits:
            self.fail_forward(net, habits)
        if {"eval", "infer"} & set(habits):
            self.evaluate(net, habits)
            if "release" in habits and handle is not None:
                handle.release()
        if "drop" in habits:
            self.accumulate(number, habits, 1)
            net.zero_grad()
        if "raise_backward" in habits:
            self.fail_backward(number, habits)
        if "grad_zeros" in habits:
            for p in list(net.parameters())[::4]:
                p.grad = torch.zeros_like(p) if p.requires_grad else None
        self.accumulate(number, habits, 1 if "acc1" in habits else 2 if "acc2" in habits else 0)

    def clip(self, habits):
        if "scale" in habits:
            for p in self.parameters:
                if p.grad is not None:
                    p.grad.div_(SCALE)
        if "scaler" in habits and {"clip", "clip_ours", "clip_value"} & set(habits):
            for o in self.optimizers:
                self.scaler.unscale_(o)
        if "clip" in habits:
            self.record(nn.utils.clip_grad_norm_(self.parameters, CLIP))
        if "clip_ours" in habits:
            norm = it.clip_grad_norm_ if self.side.distributed else nn.utils.clip_grad_norm_
            self.record(norm(self.parameters, CLIP))
        if "clip_value" in habits:
            nn.utils.clip_grad_value_(self.parameters, CLIP / 10)

    def update(self, habits, closure):
        if "no_step" in habits:
            return
        for number, o in enumerate(self.optimizers):
            if "scaler" in habits:
                self.scaler.step(o)
            elif "closure" in habits and number == 0:
                o.step(closure)
            else:
                o.step()
        if "scaler" in habits:
            self.scaler.update()
        for schedule in self.schedules:
            schedule.step()

    def meddle(self, habits):
        """What people do to models between steps."""
        net = self.nets[0]
        with torch.no_grad():
            if "poke" in habits:
                for p in self.parameters[::2]:
                    p.mul_(0.9)
                net.head.bias.add_(0.1)
            if "rows" in habits:
                net.head.weight[0, :2] = 0.25
                net.entry.weight[-1].zero_()
            if "data" in habits:
                net.head.weight.data.add_(0.01)
            if self.ema is not None:
                for mean, p in zip(self.ema.parameters(), net.parameters()):
                    mean.lerp_(p, 0.1)
        if "to" in habits:
            net.to("cpu")
        if "double" in habits:
            net.to(self.dtype)
        if "load" in habits and self.saved is not None:
            net.load_state_dict(self.saved[0])
            for o, state in zip(self.optimizers, self.saved[1]):
                o.load_state_dict(copy.deepcopy(state))
        if "save" in habits:
            state = {name: t.detach().clone() for name, t in net.state_dict().items()}
            self.saved = state, [copy.deepcopy(o.state_dict()) for o in self.optimizers]
        if "copy" in habits:
            self.record(sum(p.detach().double().square().sum().item() for p in copy.deepcopy(net).parameters()))

    def step(self, habits):
        self.clear(habits)
        frozen = []
        for net in self.nets:
            for h in habits:
                if h == "thaw":
                    net.requires_grad_(True)
                if found := re.fullmatch(r"freeze(\d+)", h):
                    frozen += [p for p in net.blocks[int(found[1])].parameters() if p.requires_grad]
        kept = {id(p) for net in self.nets for p in net.head.parameters()}
        frozen = [p for p in frozen if id(p) not in kept]
        for p in frozen:
            p.requires_grad_(False)

        def closure():
            if "closure" in habits:
                for o in self.optimizers:
                    o.zero_grad()
            return sum(self.train_once(number, habits).detach() for number in range(len(self.nets)))

        for number in range(len(self.nets)):
            self.before(number, habits)
        if "closure" not in habits:
            closure()
            self.clip(habits)
        self.update(habits, closure)
        self.meddle(habits)
        for p in frozen:
            p.requires_grad_(True)

    def results(self):
        """All values by kind and name, as plain tensors."""
        self.record(self.total)
        found = {"losses": {str(i): torch.tensor(v, dtype=torch.float64) for i, v in enumerate(self.losses)}}
        names = {}
        for number, net in enumerate(self.nets + ([self.ema] if self.ema is not None else [])):
            for name, p in net.named_parameters():
                name = f"{number}.{name}"
                names[p] = name
                self.put(found, "parameters", name, p.detach())
                self.put(found, "gradients", name, p.grad)
                if p.grad is not None and it.has_layout(p) and it.layout_of(p) != it.layout_of(p.grad):
                    raise Different(f"{name} is {it.describe(p)}, its gradient {it.describe(p.grad)}")
            for name, b in net.named_buffers():
                self.put(found, "buffers", f"{number}.{name}", b)
        for o in self.optimizers:
            for p, state in o.state.items():
                for key, value in state.items():
                    self.put(found, f"state {key}", names[p], torch.as_tensor(value) if value is not None else None)
        return found

    def put(self, found, kind, name, tensor):
        if tensor is not None:
            tensor = tensor.detach()
            tensor = (it.full(tensor) if it.has_layout(tensor) else tensor).clone()
        found.setdefault(kind, {})[name] = tensor


class Different(AssertionError):
    """The sides differ, in words."""


def train(run, side, exact=False, fault=None):
    """What a side has after the run. `fault(training, habits)` is called after each step."""
    training = Training(run, side, exact)
    for habits in run.steps:
        training.step(habits)
        if fault is not None:
            fault(training, habits)
    return training.results()
