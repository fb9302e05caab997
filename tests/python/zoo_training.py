"""Trains the models of zoo.py in lockstep on [dp=2,tp=2] and beside it on one rank with plain tensors, and compares.

The batch is cut over dp, weights over tp. Each model also has uneven sizes: a batch of 5, odd widths and heads.

    zoo_training.py [--quick]      prints differences and bills; --quick: only the first case of each model
"""

import dataclasses
import sys
import warnings
from collections.abc import Callable

import intarsia as it
import torch
import zoo
from torch import nn
from torch.nn import functional as F

MESH = "[dp=2,tp=2]"
BATCH = "S(0),R"
STEPS = 3
IGNORED = -100

# In parts of a tensor's largest element, in float64. To first order a sum of n terms in another order differs by up to
# n * 1.1e-16 of their sizes. The longest here have 1,024 terms (batch and image), about 80 follow each other forward
# and backward in the ResNet, three times: 3e-11. Where a gradient is 0 but for rounding, as that of the keys' bias in
# attention, AdamW makes a step of lr / eps = 1e3 times the rounding of about 1e-17, beside elements of size lr: 1e-11.
TOLERANCE = 1e-9
# In float32 the truth is float64 on one rank. Other orders of sums round otherwise, not worse: a distributed run may be
# at most this many times as far from the truth as a plain one in float32.
ROUNDING = 4


@dataclasses.dataclass
class Case:
    model: str  # which of the five
    name: str
    make: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], tuple[torch.Tensor, torch.Tensor]]
    loss: Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]
    layouts: dict[str, str]
    optimizer: Callable[..., torch.optim.Optimizer]
    dtype: torch.dtype = torch.float64


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3, eps=1e-6)


def images(batch, size, classes):
    def make(generator):
        x = torch.randn(batch, 3, size, size, generator=generator)
        return x, torch.randint(0, classes, (batch,), generator=generator)

    return make


def masks(batch, size, classes):
    def make(generator):
        x = torch.randn(batch, 3, size, size, generator=generator)
        return x, torch.randint(0, classes, (batch, size, size), generator=generator)

    return make


def texts(batch, time, vocabulary):
    """Tokens and the ones that follow; a few are padding."""

    def make(generator):
        tokens = torch.randint(0, vocabulary, (batch, time + 1), generator=generator)
        following = tokens[:, 1:].clone()
        following[0, time // 2 :] = IGNORED
        return tokens[:, :-1].contiguous(), following

    return make


def classified(model, x, y):
    return F.cross_entropy(model(x), y)


def classified_smoothly(model, x, y):
    return F.cross_entropy(model(x), y, label_smoothing=0.1)


def predicted(model, x, y):
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=IGNORED)


def predicted_in_balance(model, x, y):
    logits, balance = model(x)
    return F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=IGNORED) + 0.01 * balance


# Convolutions in pairs, as linear layers in an MLP: the first makes channels, the second adds them up.
RESNET = {
    "stages.*.conv1.weight": "R,S(0)",
    "stages.*.bn1.weight": "R,S(0)",
    "stages.*.bn1.bias": "R,S(0)",
    "stages.*.bn1.running_*": "R,S(0)",
    "stages.*.conv2.weight": "R,S(1)",
}
UNET = {
    "[dmj]*.0.*": "R,S(0)",
    "[dmj]*.1.*": "R,S(0)",
    "[dmj]*.3.weight": "R,S(1)",
    "up2.weight": "R,S(1)",
    "up2.bias": "R,S(0)",
}
VOCABULARY = {"embedding.weight": "R,S(0)", "head.*": "R,S(0)"}
# A matrix of all gates, or of queries, keys and values, is cut within each: SS(0,k).
LSTM = {**VOCABULARY, "rnn.*": "R,SS(0,4)"}
GRU = {**VOCABULARY, "rnn.*": "R,SS(0,3)"}
CELL = {**VOCABULARY, "cell.*": "R,SS(0,4)"}
VIT = {
    "*.in_proj_*": "R,SS(0,3)",
    "*.out_proj.weight": "R,S(1)",
    "*.mlp.0.*": "R,S(0)",
    "*.mlp.2.weight": "R,S(1)",
}
ATTENTION = {"*.w[qkv].weight": "R,S(0)", "*.wo.weight": "R,S(1)"}
EXPERTS = {**VOCABULARY, **ATTENTION, "*.moe.gate": "R,S(0)", "*.moe.up": "R,S(0)", "*.moe.down": "R,S(0)"}
INSIDE_EXPERTS = {**VOCABULARY, **ATTENTION, "*.moe.gate": "R,S(2)", "*.moe.up": "R,S(2)", "*.moe.down": "R,S(1)"}

LLAMA = dict(vocabulary=32, width=16, heads=4, kv_heads=2, head_width=4, hidden=24, experts=4, top=2)
# 6 heads on tp=2, that share 3 of keys and values: a rank's heads need keys that it does not have.
ODD_LLAMA = dict(vocabulary=37, width=15, heads=6, kv_heads=3, head_width=2, hidden=21, experts=5, top=3)
# ATen's grouped_mm wants rows of 16 bytes, so its odd sizes are in batch, vocabulary and experts. 12 over tp=2 is 6.
ODD_GROUPED = dict(vocabulary=37, width=12, heads=6, kv_heads=3, head_width=2, hidden=12, experts=5, top=3)


def llama(name, sizes, layouts, batch, time, dtype=torch.float64):
    data = texts(batch, time, sizes["vocabulary"])
    return Case("MoE Llama", name, lambda: zoo.MoELlama(**sizes), data, predicted_in_balance, layouts, adamw, dtype)


def language(name, make, vocabulary, layouts, batch, time):
    return Case("LSTM", name, make, texts(batch, time, vocabulary), predicted, layouts, adamw)


CASES = [
    Case("ResNet", "even", lambda: zoo.ResNet([8, 12, 16, 24], 10), images(4, 16, 10), classified, RESNET, sgd),
    Case("ResNet", "uneven", lambda: zoo.ResNet([5, 7, 9, 11], 7), images(5, 12, 7), classified, RESNET, sgd),
    Case("U-Net", "even", lambda: zoo.UNet(8, 4, 3), masks(4, 16, 3), classified, UNET, adamw),
    Case("U-Net", "uneven", lambda: zoo.UNet(9, 3, 5), masks(5, 12, 5), classified, UNET, adamw),
    language("even", lambda: zoo.RecurrentLM(nn.LSTM, 32, 16, False), 32, LSTM, 4, 6),
    language("uneven, tied", lambda: zoo.RecurrentLM(nn.LSTM, 37, 13, True), 37, LSTM, 5, 5),
    language("GRU, uneven", lambda: zoo.RecurrentLM(nn.GRU, 37, 13, False), 37, GRU, 5, 5),
    language("cell, uneven", lambda: zoo.CellLM(37, 13), 37, CELL, 5, 5),
    Case("ViT", "even", lambda: zoo.ViT(12, 4, 16, 4, 32, 10), images(4, 12, 10), classified_smoothly, VIT, adamw),
    Case("ViT", "uneven", lambda: zoo.ViT(12, 4, 15, 3, 21, 7), images(5, 12, 7), classified_smoothly, VIT, adamw),
    llama("even", LLAMA, EXPERTS, 4, 8),
    llama("uneven", ODD_LLAMA, EXPERTS, 5, 7),
    llama("uneven, cut inside experts", ODD_LLAMA, INSIDE_EXPERTS, 5, 7),
    llama("grouped_mm", LLAMA, EXPERTS, 4, 8, torch.float32),
    llama("grouped_mm, uneven", ODD_GROUPED, EXPERTS, 5, 7, torch.float32),
    llama("grouped_mm, uneven, cut inside experts", ODD_GROUPED, INSIDE_EXPERTS, 5, 7, torch.float32),
]


def whole(tensor):
    """A plain copy. `full` may share memory, which the next step writes."""
    return (it.full(tensor) if it.has_layout(tensor) else tensor).clone()


def train(case, dtype, layouts=None):
    """The values of each step by kind and name, and the bill of the last step. With layouts in lockstep, without on one
    rank."""
    torch.manual_seed(0)
    net = case.make().to(dtype)
    if layouts is not None:
        it.parallelize(net, it.mesh(), layouts)
    optimizer = case.optimizer(net.parameters())
    generator = torch.Generator().manual_seed(1)
    values = {kind: {} for kind in ("loss", "gradients", "parameters", "buffers")}
    bill = None
    for step in range(STEPS):
        x, y = case.batch(generator)
        x = x.to(dtype) if x.is_floating_point() else x
        if layouts is not None:
            x, y = it.distribute(x, BATCH), it.distribute(y, BATCH)
            it.clear_bill()
        optimizer.zero_grad()
        loss = case.loss(net, x, y)
        loss.backward()
        optimizer.step()
        if layouts is not None:
            bill = it.bill()
        values["loss"][f"step {step}"] = whole(loss.detach())
        for name, p in net.named_parameters():
            if layouts is not None:
                assert it.layout_of(p.grad) == it.layout_of(p), f"{name}: {it.describe(p.grad)}"
                it.assert_replicas(p.detach(), name=name)
            values["gradients"][f"{name}, step {step}"] = whole(p.grad)
            values["parameters"][f"{name}, step {step}"] = whole(p.detach())
        for name, b in net.named_buffers():
            values["buffers"][f"{name}, step {step}"] = whole(b)
    return values, bill


def difference(got, want):
    """The largest one, in parts of the largest element."""
    assert got.shape == want.shape, (got.shape, want.shape)
    apart = (got.double() - want.double()).abs().max().item()
    largest = want.double().abs().max().item()
    return 0.0 if apart == 0 else apart / largest if largest > 0 and apart == apart else float("inf")


def differences(got, want):
    """By kind, the largest difference and where it is."""
    found = {}
    for kind, tensors in want.items():
        assert tensors.keys() == got[kind].keys()
        apart = [(difference(got[kind][name], t), name) for name, t in tensors.items()]
        found[kind] = max(apart, default=(0.0, "none there"))
    return found


@dataclasses.dataclass
class Outcome:
    case: Case
    alone: list[float]  # the losses
    ours: list[float]
    apart: dict[str, tuple[float, str]]  # by kind
    tolerance: float
    bill: object  # of the last step

    def worst(self):
        return max(d for d, _ in self.apart.values())

    def equal(self):
        return self.worst() <= self.tolerance

    def gathers(self):
        """Entries of the bill for tensors that an op, not the program, wanted whole."""
        return [e for e in self.bill.entries if e.transition == "S->R" and e.implicit]

    def without_rule(self):
        """Ops that ran on whole tensors."""
        return sorted({e.op for e in self.bill.entries if e.fallback})


def compare(case):
    """Trains a case on one rank and on MESH."""
    alone, _ = train(case, torch.float64)
    tolerance = TOLERANCE
    if case.dtype != torch.float64:
        rounded, _ = train(case, case.dtype)
        tolerance = ROUNDING * max(d for d, _ in differences(rounded, alone).values())
    with it.lockstep(MESH):
        ours, bill = train(case, case.dtype, case.layouts)
    losses = [[t.item() for t in run["loss"].values()] for run in (alone, ours)]
    return Outcome(case, *losses, differences(ours, alone), tolerance, bill)


def summary(outcome):
    """What a reader wants to know of a case, and its bill."""
    lines = [f"== {outcome.case.model}, {outcome.case.name}"]
    lines.append(f"losses on one rank {outcome.alone}")
    lines.append(f"losses on {MESH} {outcome.ours}")
    for kind, (apart, where) in outcome.apart.items():
        lines.append(f"{kind}: largest difference {apart:.3g} ({where})")
    verdict = "equal" if outcome.equal() else "DIFFERENT"
    lines.append(f"{verdict}: {outcome.worst():.3g}, at most {outcome.tolerance:.3g}")
    gathers = outcome.gathers()
    count, size = sum(e.count for e in gathers), sum(e.bytes for e in gathers)
    lines.append(f"implicit gathers (S->R) in a step: {count}, {size} of {outcome.bill.bytes()} bytes")
    lines.append(f"ops without a rule: {', '.join(outcome.without_rule()) or 'none'}")
    return "\n".join(lines) + f"\nbill of the last step, all ranks:\n{outcome.bill}"


def main(arguments):
    warnings.simplefilter("ignore")
    models = list(dict.fromkeys(case.model for case in CASES))
    first = [next(case for case in CASES if case.model == model) for model in models]
    wrong, worst, rounding = set(), 0.0, 0.0
    for case in first if "--quick" in arguments else CASES:
        try:
            outcome = compare(case)
        except Exception as error:  # noqa: BLE001  the other cases are of interest too
            reason = str(error).splitlines()[:1]
            print(f"== {case.model}, {case.name}\nFAILED: {type(error).__name__}: {''.join(reason)}\n", flush=True)
            wrong.add(case.model)
            continue
        print(summary(outcome), flush=True)
        if not outcome.equal():
            wrong.add(case.model)
        if case.dtype == torch.float64:
            worst = max(worst, outcome.worst())
        else:
            rounding = max(rounding, outcome.worst() / outcome.tolerance)
    if rounding > 0:
        print(f"in float32, where grouped_mm runs: {rounding:.3g} of what rounding allows")
    print(f"{len(models) - len(wrong)} of {len(models)} models equal to one rank, worst {worst:.3g}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
