"""Full state dicts: saved in one layout, loaded in any other, and trained on as if nothing had been."""

import copy
import io
import os
import pathlib
import tempfile

import torch
from _harness import on_ranks, refuses, run
from torch import nn

import intarsia


class Net(nn.Module):
    """A tied weight, buffers of three kinds, and lengths that 2 and 3 do not divide."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(5, 5, bias=False), nn.BatchNorm1d(5)) for _ in range(2)
        )
        self.head = nn.Linear(5, 7)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("mask", torch.ones(5), persistent=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(x).tanh()
        return self.head(x * self.scale * self.mask)

    def get_extra_state(self):
        return {"version": 3}

    def set_extra_state(self, state):
        assert state == {"version": 3}


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.02, eps=1e-3, amsgrad=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.02),
}


def made(seed=0):
    torch.manual_seed(seed)
    return Net().double()


def steps(module, optimizer, begin, end, lay_out=lambda t: t):
    for step in range(begin, end):
        tokens = torch.randint(0, 7, (12,), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        module(lay_out(tokens)).cos().mean().backward()
        optimizer.step()


def by_blocks(module):
    intarsia.fully_shard(module, shard="dp")


PLACES = {
    "[dp=2]": by_blocks,
    "[dp=3]": by_blocks,
    "[dp=2,tp=2]": lambda m: intarsia.fully_shard(m, layouts={"blocks.*.0.*": "R,S(0)", "embed.weight": "R,S(1)"}),
    "[tp=2]": lambda m: intarsia.parallelize(m, intarsia.mesh(), {"blocks.*.0.*": "S(0)", "head.bias": "S(0)"}),
    "plain": None,
}


def run_in(place, name, begin, end, before=None):
    """A part of a run in some place: what it ends with."""
    module = made(0 if before is None else 5)
    optimizer = OPTIMIZERS[name]
    if PLACES[place] is None:
        return run_here(module, optimizer(module.parameters()), begin, end, before)
    with intarsia.lockstep(place):
        PLACES[place](module)
        batch = ",".join("S(0)" if axis == "dp" else "R" for axis in intarsia.mesh().names())
        return run_here(
            module, optimizer(module.parameters()), begin, end, before, lambda t: intarsia.distribute(t, batch)
        )


def run_here(module, optimizer, begin, end, before, lay_out=lambda t: t):
    if before is not None:
        intarsia.load_full_state_dict(module, before[0])
        intarsia.load_full_optimizer_state_dict(optimizer, before[1], module)
        intarsia.check_optimizer(optimizer, module)
    steps(module, optimizer, begin, end, lay_out)
    return intarsia.full_state_dict(module), intarsia.full_optimizer_state_dict(optimizer, module)


def close(got, want):
    """Equal structures, with tensors that are plain and close."""
    if isinstance(want, torch.Tensor):
        assert not intarsia.has_layout(got) and got.dtype == want.dtype
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-11)
    elif isinstance(want, dict):
        assert set(got) == set(want)
        for key in want:
            close(got[key], want[key])
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want)
        for a, b in zip(got, want):
            close(a, b)
    else:
        assert got == want, (got, want)


def test_goes_on_in_any_other_layout():
    for name in OPTIMIZERS:
        half, whole = run_in("plain", name, 0, 2), run_in("plain", name, 0, 4)
        halves = {place: run_in(place, name, 0, 2) for place in PLACES}
        for place, saved in halves.items():
            close(saved, half)
            for other in PLACES if place in ("[dp=2]", "plain") else ("[dp=3]", "plain"):
                close(run_in(other, name, 2, 4, saved), whole)


def test_dicts_are_torchs_own():
    """A plain model and optimizer load them without us, after a way through a file."""
    module = made()
    optimizer = OPTIMIZERS["adamw"](module.parameters())
    with intarsia.lockstep("[dp=2]"):
        intarsia.fully_shard(module)
        steps(module, optimizer, 0, 2, lambda t: intarsia.distribute(t, "S(0)"))
        saved = intarsia.full_state_dict(module), intarsia.full_optimizer_state_dict(optimizer)
        before = copy.deepcopy(saved)
        assert saved[0]["head.weight"] is saved[0]["embed.weight"]
        assert type(saved[0]) is type(module.state_dict()) and saved[0]._metadata
        steps(module, optimizer, 2, 3, lambda t: intarsia.distribute(t, "S(0)"))
        close(saved, before)  # the run goes on without them
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    model_state, optimizer_state = torch.load(file)
    plain = made(3)
    plain.load_state_dict(model_state)
    theirs = OPTIMIZERS["adamw"](plain.parameters())
    theirs.load_state_dict(optimizer_state)
    steps(plain, theirs, 2, 4)
    close((plain.state_dict(), theirs.state_dict()), run_in("plain", "adamw", 0, 4)[:1] + (theirs.state_dict(),))
    # And the other way round.
    with intarsia.lockstep("[dp=2]"):
        other = made(4)
        intarsia.fully_shard(other)
        intarsia.load_full_state_dict(other, plain.state_dict())
        mine = OPTIMIZERS["adamw"](other.parameters())
        intarsia.load_full_optimizer_state_dict(mine, theirs.state_dict())
        assert mine.state[other.scale]["step"].item() == 4
        close(intarsia.full_state_dict(other), plain.state_dict())


def test_what_does_not_fit_is_named_before_anything_is_changed():
    module = made()
    with intarsia.lockstep("[dp=2]"):
        intarsia.fully_shard(module)
        optimizer = OPTIMIZERS["adamw"](module.parameters())
        steps(module, optimizer, 0, 1, lambda t: intarsia.distribute(t, "S(0)"))
        before = intarsia.full_state_dict(module)
        state = dict(made(9).state_dict())
        del state["scale"], state["blocks.0.1.running_var"]
        state |= {"more": torch.ones(1), "head.bias": torch.ones(3), "blocks.1.1.bias": module.blocks[1][1].bias.detach()}
        for text in (
            "[load_full_state_dict] the dict does not fit: it lacks scale, blocks.0.1.running_var; nothing is called more; ",
            "'head.bias' has sizes (3,), where (7,) are due",
            "'blocks.1.1.bias' is f64[5@dp] on [dp=2], where a plain one is due",
            "nothing was changed",
        ):
            refuses(ValueError, text, lambda: intarsia.load_full_state_dict(module, state))
        close(intarsia.full_state_dict(module), before)
        intarsia.load_full_state_dict(module, {"scale": torch.tensor(9), "more": 1}, strict=False)
        assert module.scale.item() == 9

        full = intarsia.full_optimizer_state_dict(optimizer, module)
        wrong = copy.deepcopy(full)
        wrong["state"][1]["exp_avg"] = torch.ones(3, 5)
        wrong["state"][2]["exp_avg"] = optimizer.state[module.blocks[0][0].weight]["exp_avg"]
        load = intarsia.load_full_optimizer_state_dict
        for text in (
            "'exp_avg' of parameter 1 has sizes (3, 5), where (7, 5) are due",
            "'exp_avg' of parameter 2 is f64[5@dp, 5] on [dp=2], where a plain one is due",
        ):
            refuses(ValueError, text, lambda: load(optimizer, wrong))
        names = copy.deepcopy(full)
        names["param_groups"][0]["param_names"][2] = "other"
        refuses(ValueError, "parameter 2 of group 0 is 'other', where 'blocks.0.0.weight' is due", lambda: load(optimizer, names, module))
        fewer = copy.deepcopy(full)
        fewer["param_groups"][0]["params"].pop()
        refuses(ValueError, "group 0 has 8 parameters, where 9 are due", lambda: load(optimizer, fewer))
        refuses(ValueError, "it has 2 groups", lambda: load(optimizer, {**full, "param_groups": full["param_groups"] * 2}))
        refuses(
            ValueError,
            "parameter 0 of group 0, f64[] on [dp=2], is none of the module's",
            lambda: intarsia.full_optimizer_state_dict(optimizer, made()),
        )
        close(intarsia.full_optimizer_state_dict(optimizer, module), full)


def files_in(folder):
    return {path: path.read_bytes() for path in pathlib.Path(folder).rglob("*") if path.is_file()}


def test_what_cannot_be_saved_says_the_line_to_write():
    with intarsia.lockstep("[dp=2]"), tempfile.TemporaryDirectory() as folder:
        module = nn.Linear(4, 4)
        for _, save in savers(module.state_dict(), folder):
            save()
        before = files_in(folder)
        intarsia.fully_shard(module)
        text = "[storage] f32[4@dp, 4] on [dp=2] is stored in pieces and has no memory of its own"
        refuses(NotImplementedError, text, lambda: module.weight.untyped_storage())
        others = [
            ("dlpack", lambda: torch.from_dlpack(module.weight.detach())),
            ("numpy", lambda: module.weight.detach().numpy()),
        ]
        for name, save in [*savers(module.state_dict(), folder), *others]:
            try:
                save()
            except BaseException as error:  # torch.distributed.checkpoint has one that is no Exception
                assert "full_state_dict(module)" in str(error) or "intarsia.full(tensor)" in str(error), f"{name}: {error}"
            else:
                raise AssertionError(f"{name} gave no error")
            assert files_in(folder) == before, name
        for _, save in savers(intarsia.full_state_dict(module), folder):
            save()


def savers(state, folder):
    import torch.distributed.checkpoint as dcp

    yield "checkpoint", lambda: dcp.save(state, checkpoint_id=os.path.join(folder, "dcp"))
    try:
        import safetensors.torch as safe
    except ImportError:
        return
    yield "safetensors", lambda: safe.save_file(dict(state), os.path.join(folder, "a.safetensors"))


@on_ranks(2)
def test_two_processes():
    intarsia.init({"dp": 2})
    rank = intarsia.world().rank()
    for name in OPTIMIZERS:
        half, whole = run_in("plain", name, 0, 2), run_in("plain", name, 0, 4)

        def cut(tokens):
            return intarsia.distribute(tokens, "S(0)")

        module = made()
        intarsia.fully_shard(module)
        optimizer = OPTIMIZERS[name](module.parameters())
        saved = run_here(module, optimizer, 0, 2, None, cut)
        close(saved, half)
        other = made(8)
        intarsia.parallelize(other, intarsia.mesh(), {"embed.weight": "S(1)"})
        close(run_here(other, OPTIMIZERS[name](other.parameters()), 2, 4, saved, cut), whole)
        on_first = intarsia.full_state_dict(other, cpu=True, only_on_rank_0=True)
        state = intarsia.full_optimizer_state_dict(optimizer, module, only_on_rank_0=True)
        assert (len(on_first) > 0, len(state) > 0) == (rank == 0, rank == 0)


@on_ranks(3)
def test_three_processes():
    intarsia.init({"dp": 3})
    saved = run_in("[dp=2]", "adamw", 0, 2)
    module = made(8)
    intarsia.fully_shard(module, mesh="[dp=3]", world=intarsia.world())
    whole = run_in("plain", "adamw", 0, 4)
    optimizer = OPTIMIZERS["adamw"](module.parameters())
    close(run_here(module, optimizer, 2, 4, saved, lambda t: intarsia.distribute(t, "[dp=3] S(0)")), whole)


if __name__ == "__main__":
    run(globals())
