"""Checkpoints from Python: modules, optimizers, schedulers, generators, values; on processes and in lockstep."""

import copy
import os
import pathlib
import shutil
import tempfile

import intarsia as it
import torch
import torch.distributed as dist
from _harness import on_ranks, refuses, run
from torch import nn


def ready():
    """The mesh of two ranks, and a folder that both know."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    mesh = it.init("[x=2]")
    folder = pathlib.Path(tempfile.gettempdir()) / f"intarsia-checkpoint-{os.environ['MASTER_PORT']}-{os.getppid()}"
    return mesh, str(folder)


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5))


LAYOUTS = {
    "rows": {"0.weight": "S(0)", "0.bias": "S(0)", "2.weight": "S(1)"},
    "columns": {"0.weight": "S(1)", "2.weight": "S(0)", "2.bias": "S(0)"},
    "replicated": {},
}


def training(kind, mesh):
    model = net()
    if kind == "sharded":
        it.fully_shard(model, mesh=mesh, shard="x")
    elif kind != "plain":
        model = it.parallelize(model, mesh, LAYOUTS[kind])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, betas=(0.8, 0.9))
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    return model, optimizer, scheduler


def steps(parts, mesh, count, generator):
    model, optimizer, scheduler = parts
    losses = []
    for _ in range(count):
        x = torch.randn(8, 6, generator=generator)
        if mesh is not None:
            x = it.distribute(x, "R", mesh=mesh)
        loss = model(x).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append((it.full(loss) if it.has_layout(loss) else loss).item())
        scheduler.step(losses[-1])
    return losses


def state_of(parts, generator):
    model, optimizer, scheduler = parts
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "generator": generator}


@on_ranks(2)
def test_training_goes_on_as_if_nothing_had_happened():
    mesh, folder = ready()
    for number, kind in enumerate(["rows", "columns", "replicated", "sharded"]):
        generator = torch.Generator().manual_seed(3)
        parts = training(kind, mesh)
        steps(parts, mesh, 3, generator)
        it.save_checkpoint(folder, number, {**state_of(parts, generator), "sample": 24, "pair": (1, float("inf"))})
        expected = steps(parts, mesh, 3, generator)
        for other in LAYOUTS:
            again, fresh = training(other, mesh), torch.Generator()
            loaded = it.load_checkpoint(folder, state_of(again, fresh), step=number)
            assert loaded.step == number and loaded.values["sample"] == 24
            assert loaded.values["pair"] == (1, float("inf")) and "optimizer" not in loaded.values
            got = steps(again, mesh, 3, fresh)
            if other == kind:
                assert got == expected, (kind, got, expected)
            torch.testing.assert_close(torch.tensor(got), torch.tensor(expected))
    assert it.checkpoint_steps(folder) == [0, 1, 2, 3]


@on_ranks(2)
def test_files_are_open_to_others():
    _, folder = ready()
    values = {name: tuple(t.shape) for name, t in it.read_checkpoint(folder, 0).tensors.items()}
    assert values["model.0.weight"] == (7, 6) and values["optimizer.state.model.0.weight.exp_avg"] == (7, 6)
    from safetensors import safe_open

    names = []
    for rank in range(2):
        with safe_open(f"{folder}/step-00000000/{rank:05d}-of-00002.safetensors", "pt") as file:
            for name in file.keys():
                names.append(name)
                if name.startswith("model.0.weight "):
                    assert file.get_tensor(name).shape == (4 - rank, 6)
    assert sum(name.startswith("model.0.weight") for name in names) == 2


def test_lockstep_and_a_plain_process_read_each_other():
    with tempfile.TemporaryDirectory() as folder:
        generator = torch.Generator().manual_seed(3)
        with it.lockstep("[x=3]"):
            mesh = it.mesh()
            parts = training("rows", mesh)
            steps(parts, mesh, 2, generator)
            it.save_checkpoint(folder, 0, state_of(parts, generator))
            expected = steps(parts, mesh, 2, generator)
        plain, fresh = training("plain", None), torch.Generator()
        it.load_checkpoint(folder, state_of(plain, fresh))
        torch.testing.assert_close(torch.tensor(steps(plain, None, 2, fresh)), torch.tensor(expected))


def test_what_does_not_fit_is_named():
    with tempfile.TemporaryDirectory() as folder:
        parts = training("plain", None)
        it.save_checkpoint(folder, 7, {"model": parts[0], "optimizer": parts[1], "n": 1})
        other = nn.Sequential(nn.Linear(6, 7), nn.Linear(7, 4))
        before = copy.deepcopy(other.state_dict())
        refuses(ValueError, "it lacks model.1.weight, model.1.bias", lambda: it.load_checkpoint(folder, {"model": other}))
        assert all(torch.equal(value, other.state_dict()[name]) for name, value in before.items())
        refuses(ValueError, "has nothing under 'nothing'", lambda: it.load_checkpoint(folder, {"nothing": 1}))
        fewer = torch.optim.AdamW(list(parts[0].parameters())[:3])
        refuses(
            ValueError,
            "'optimizer' has groups of 4 parameters there and of 3 here",
            lambda: it.load_checkpoint(folder, {"model": parts[0], "optimizer": fewer}),
        )
        refuses(it.FileError, "no step 8; there are 7", lambda: it.load_checkpoint(folder, {"model": other}, step=8))
        refuses(ValueError, "is there already", lambda: it.save_checkpoint(folder, 7, {"n": 2}))
        it.save_checkpoint(folder, 7, {"n": 2}, replace=True)
        assert it.load_checkpoint(folder, {"n": None}).values == {"n": 2}


def test_values_of_python_come_back_as_they_were():
    values = {
        "list": [1, 2.5, "x", None, True],
        "nested": {"a": {"b": (1, (2,))}},
        "numbers": {1: "one", (2, 3): float("nan")},
        "big": [2**62, -(2**63), 2**63, 2**70],
        "odd": {"__tensor__": 1},
    }
    with tempfile.TemporaryDirectory() as folder:
        it.save_checkpoint(folder, 0, values)
        again = it.load_checkpoint(folder, values).values  # in the order of their names
        assert str({key: again[key] for key in values}) == str(values), again
        refuses(ValueError, "'bad.x' is a set, which no checkpoint holds", lambda: it.save_checkpoint(folder, 1, {"bad": {"x": {1}}}))
        assert it.checkpoint_steps(folder) == [0]


def test_what_is_left_out_is_neither_saved_nor_loaded():
    with tempfile.TemporaryDirectory() as folder:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
        model(torch.ones(1, 6)).sum().backward()
        optimizer.step()
        state = {"model": model, "optimizer": optimizer}
        it.save_checkpoint(folder, 0, state)
        it.save_checkpoint(folder, 1, state, without=["model.*.bias"])
        assert "model.2.bias" not in it.read_checkpoint(folder).tensors
        for step in (0, 1):  # there or not, in the step
            saved = copy.deepcopy(model.state_dict())
            with torch.no_grad():
                for p in model.parameters():
                    p.fill_(3)
            it.load_checkpoint(folder, state, step=step, without="*.bias")
            assert torch.equal(model[0].weight, saved["0.weight"]) and (model[0].bias == 3).all()
        refuses(ValueError, "it lacks model.0.bias", lambda: it.load_checkpoint(folder, state))
        refuses(
            ValueError,
            "'optimizer.state.model.0.bias.momentum_buffer' cannot be left out",
            lambda: it.load_checkpoint(folder, state, step=0, without="opt*"),
        )
        with it.CheckpointManager(folder, without=["model.0.*"]) as checkpoints:
            checkpoints.save(2, state)
            checkpoints.wait()
            assert "model.0.weight" not in it.read_checkpoint(folder).tensors
            assert checkpoints.resume(state).step == 2


def test_the_hf_form_in_another_dtype():
    with tempfile.TemporaryDirectory() as folder:
        model = net()
        model.register_buffer("count", torch.tensor(7))
        it.save_checkpoint(folder, 0, model.state_dict(), form="hf", hf_dtype=torch.bfloat16)
        with it.CheckpointManager(folder, form="hf", hf_dtype=torch.float16) as checkpoints:
            checkpoints.save(1, model.state_dict())
        for step, dtype in ((0, torch.bfloat16), (1, torch.float16)):
            into = {name: torch.zeros_like(value, dtype=dtype if value.is_floating_point() else None) for name, value in model.state_dict().items()}
            it.load_checkpoint(folder, into, step=step)
            assert all(torch.equal(into[name], value.to(into[name].dtype)) for name, value in model.state_dict().items())
        refuses(ValueError, "hf_dtype is for the hf form", lambda: it.save_checkpoint(folder, 2, {"t": torch.ones(1)}, hf_dtype=torch.float16))
        refuses(
            ValueError,
            "hf_dtype is Int; give float64",
            lambda: it.save_checkpoint(folder, 2, {"t": torch.ones(1)}, form="hf", hf_dtype=torch.int32),
        )


def test_muon_with_its_dtype():
    with tempfile.TemporaryDirectory() as folder:
        model = nn.Linear(4, 4, bias=False)
        optimizer = it.Muon(model.parameters(), ns_dtype=torch.float32)
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        it.save_checkpoint(folder, 0, {"model": model, "optimizer": optimizer})
        again = it.Muon(model.parameters())
        it.load_checkpoint(folder, {"model": model, "optimizer": again})
        assert again.param_groups[0]["ns_dtype"] is torch.float32
        assert again.param_groups[0]["ns_coefficients"] == optimizer.param_groups[0]["ns_coefficients"]
        (p,) = model.parameters()
        assert torch.equal(again.state[p]["momentum_buffer"], optimizer.state[p]["momentum_buffer"])


def test_tensors_are_loaded_in_place():
    with tempfile.TemporaryDirectory() as folder:
        t = torch.arange(6.0).reshape(2, 3)
        it.save_checkpoint(folder, 0, {"t": t, "inside": {"u": t.to(torch.bfloat16), "n": 1}})
        into = torch.zeros(3, 2).t()
        version = into._version
        loaded = it.load_checkpoint(folder, {"t": into, "inside": {"u": torch.zeros(2, 3, dtype=torch.bfloat16)}})
        assert torch.equal(into, t) and into._version > version
        assert loaded.values["inside"]["n"] == 1


@on_ranks(2)
def test_a_run_of_fsdp2_goes_on_as_one_of_ours_and_back():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh, folder = ready()

    def theirs():
        model = net()
        for part in (model[0], model[2], model):
            fully_shard(part, mesh=init_device_mesh("cpu", (2,)))
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    def train(model, optimizer, x):
        loss = model(x).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return (it.full(loss) if it.has_layout(loss) else loss).item()

    x = torch.linspace(-1, 1, 24).reshape(4, 6)
    model, optimizer = theirs()
    train(model, optimizer, x)
    it.save_checkpoint(folder, 10, {"model": model, "optimizer": optimizer})
    expected = [train(model, optimizer, x) for _ in range(2)]
    for make in (theirs, lambda: training("sharded", mesh)[:2]):
        again, fresh = make()
        it.load_checkpoint(folder, {"model": again, "optimizer": fresh}, step=10)
        given = x if make is theirs else it.distribute(x, "R", mesh=mesh)
        got = [train(again, fresh, given) for _ in range(2)]
        torch.testing.assert_close(torch.tensor(got), torch.tensor(expected))
    it.save_checkpoint(folder, 11, {"model": again, "optimizer": fresh})
    model, optimizer = theirs()
    it.load_checkpoint(folder, {"model": model, "optimizer": optimizer})
    after = [train(again, fresh, given), train(model, optimizer, x)]
    torch.testing.assert_close(after[0], after[1])


@on_ranks(2)
def test_a_rank_that_differs_is_named():
    _, folder = ready()
    rank = it.world().rank()
    refuses(
        ValueError,
        "ranks 0 and 1 hold different values of tensors that should be equal: 't'",
        lambda: it.save_checkpoint(folder, 20, {"t": torch.ones(3) + rank}),
    )
    refuses(ValueError, "rank 1 saves other values than rank 0", lambda: it.save_checkpoint(folder, 20, {"n": rank}))
    refuses(ValueError, "rank 1 saves another step than rank 0", lambda: it.save_checkpoint(folder, 20 + rank, {"n": 0}))
    assert 20 not in it.checkpoint_steps(folder)
    it.save_checkpoint(folder, 21, {"n": 0})
    refuses(
        ValueError,
        "rank 1: ValueError: [load_checkpoint] step 21 has nothing under 'm'" if rank == 0 else "[load_checkpoint] step 21 has nothing under 'm'",
        lambda: it.load_checkpoint(folder, {"n" if rank == 0 else "m": None}),
    )

    class Broken(nn.Linear):
        def state_dict(self, **_):
            raise RuntimeError("the model is broken")

    it.save_checkpoint(folder, 22, {"model": nn.Linear(2, 2).requires_grad_(False)}, check_replicas=False)
    refuses(
        RuntimeError if rank else ValueError,
        "the model is broken",
        lambda: it.load_checkpoint(folder, {"model": (Broken if rank else nn.Linear)(2, 2)}),
    )
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder)


@on_ranks(3)
def test_saving_on_one_rank_alone_is_told():
    it.init("[x=3]")
    x = it.distribute(torch.ones(6), "S(0)")
    words = "ranks disagree about call #"
    with tempfile.TemporaryDirectory() as folder:
        if it.world().rank() == 0:  # as one saves with DDP
            refuses(it.WorldError, words, lambda: it.save_checkpoint(folder, 0, {"x": x}))
        else:
            refuses(torch.distributed.DistError, words, lambda: it.full(x * 2))


if __name__ == "__main__":
    run(globals())
