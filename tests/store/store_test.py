"""Checkpoints in an object store, from Python on two processes and with the program; boto3 and safetensors read what is there."""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import intarsia as it
import torch
import weed

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "python"))
from _harness import AS_RANK, on_ranks, refuses, run  # noqa: E402

FOLDER = f"s3://{weed.BUCKET}/run"
BUILT = pathlib.Path(it._C.__file__).parents[2]
PROGRAM = BUILT / "intarsia"


def model(seed, kind):
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.Tanh(), torch.nn.Linear(96, 32))
    if kind == "sharded":
        it.fully_shard(net, shard="x")
    elif kind == "columns":
        it.parallelize(net, it.mesh(), {"*.weight": "S(1)"})
    return net


def full(net):
    return [it.full(p.detach()) if it.has_layout(p) else p.detach() for p in net.parameters()]


@on_ranks(2)
def test_any_layout_is_saved_and_loaded_in_any_other():
    it.init("[x=2]")
    folder = f"{FOLDER}/layouts"
    for number, kind in enumerate(("plain", "sharded", "columns")):
        saved = model(1, kind)
        it.save_checkpoint(folder, number, {"model": saved, "sample": number})
        for other in ("plain", "sharded", "columns"):
            loaded = model(2, other)
            found = it.load_checkpoint(folder, {"model": loaded, "sample": 0}, step=number)
            assert found.values["sample"] == number
            assert all(torch.equal(a, b) for a, b in zip(full(saved), full(loaded))), (kind, other)
    assert it.checkpoint_steps(folder) == [0, 1, 2]
    refuses(ValueError, "is there already", lambda: it.save_checkpoint(folder, 1, {"model": saved}))
    refuses(NotImplementedError, "as the hf form does", lambda: it.save_checkpoint(folder, 7, {"w": torch.ones(3)}, form="hf"))
    refuses(it.FileError, "NoSuchBucket", lambda: it.save_checkpoint("s3://no-such-bucket/a", 1, {"model": saved}))
    assert it.checkpoint_steps(folder) == [0, 1, 2]


@on_ranks(2)
def test_a_manager_saves_behind_training_and_keeps_the_newest():
    it.init("[x=2]")
    folder = f"{FOLDER}/manager"
    net = model(1, "sharded")
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    state = {"model": net, "optimizer": optimizer}
    with it.CheckpointManager(folder, every=1, keep=2, mode="overlapped") as checkpoints:
        assert checkpoints.resume(state) is None
        for step in range(1, 6):
            net(it.distribute(torch.ones(4, 64), "R")).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            checkpoints.after_step(step, state)
    it.full(it.distribute(torch.ones(2), "S(0)"))
    assert checkpoints.steps()[-2:] == [4, 5], checkpoints.steps()
    again = model(3, "columns")
    assert checkpoints.resume({"model": again}, strict=False).step == 5
    assert all(torch.equal(a, b) for a, b in zip(full(net), full(again)))


@on_ranks(2)
def test_a_disk_first_and_the_store_later():
    it.init("[x=2]")
    folder = f"{FOLDER}/later"
    net = model(1, "sharded")
    local = pathlib.Path(tempfile.gettempdir()) / f"intarsia-tier-{os.environ['MASTER_PORT']}"
    with it.CheckpointManager(local, every=1, also=folder) as checkpoints:
        for step in (1, 2):
            checkpoints.after_step(step, {"model": net})
    assert it.checkpoint_steps(local) == it.checkpoint_steps(folder) == [1, 2]
    it.full(it.distribute(torch.ones(2), "S(0)"))
    if it.world().rank() == 0:
        shutil.rmtree(local)  # a new machine
    it.full(it.distribute(torch.ones(2), "S(0)"))
    again = model(3, "columns")
    with it.CheckpointManager(local, also=folder) as checkpoints:
        assert checkpoints.resume({"model": again}).step == 2
    assert all(torch.equal(a, b) for a, b in zip(full(net), full(again)))


def ckpt(*words):
    return subprocess.run([PROGRAM, "ckpt", *map(str, words)], capture_output=True, text=True, timeout=120)


def test_others_read_what_is_there():
    import safetensors.torch

    folder = f"{FOLDER}/alone"
    state = {"model": model(1, "plain"), "sample": 5}
    with it.lockstep("[x=2]"):
        it.save_checkpoint(folder, 7, state)
    store = weed.client(os.environ["AWS_ENDPOINT_URL"])
    keys = [each["Key"] for each in store.list_objects_v2(Bucket=weed.BUCKET, Prefix="run/alone/")["Contents"]]
    parts = {}
    with tempfile.TemporaryDirectory() as local:
        for key in keys:
            path = pathlib.Path(local, pathlib.PurePath(key).relative_to("run/alone"))
            path.parent.mkdir(parents=True, exist_ok=True)
            store.download_file(weed.BUCKET, key, str(path))
            if path.suffix == ".safetensors":
                parts.update(safetensors.torch.load_file(path))
        assert torch.equal(parts["model.0.weight"], state["model"][0].weight)
        # What was copied is a checkpoint, too.
        with it.lockstep("[x=2]"):
            again = model(2, "plain")
            assert it.load_checkpoint(local, {"model": again, "sample": 0}).values["sample"] == 5
        assert all(torch.equal(a, b) for a, b in zip(full(state["model"]), full(again)))
        same = ckpt("diff", folder, local)
        assert same.returncode == 0, same.stdout + same.stderr
    assert ckpt("verify", folder).returncode == 0
    assert "step 7" in ckpt("ls", folder).stdout
    with tempfile.TemporaryDirectory() as local:
        for target in (f"{local}/hf", f"s3://{weed.BUCKET}/hf"):
            done = ckpt("export", folder, target, "--prefix", "model.")
            assert done.returncode == 0, done.stderr
            assert ckpt("show", target).returncode == 0
        there = safetensors.torch.load_file(f"{local}/hf/model.safetensors")
        assert torch.equal(there["0.weight"], state["model"][0].weight)
    # One byte of an object changes.
    key = next(key for key in keys if key.endswith("00000-of-00002.safetensors"))
    data = bytearray(store.get_object(Bucket=weed.BUCKET, Key=key)["Body"].read())
    data[-1] ^= 1
    store.put_object(Bucket=weed.BUCKET, Key=key, Body=bytes(data))
    wrong = ckpt("verify", folder)
    assert wrong.returncode == 1 and f"{key}: damaged between the bytes" in wrong.stdout, wrong.stdout


def test_the_unit_tests_of_the_store():
    done = subprocess.run(
        [BUILT / "tests/checkpoint_core_tests", "--gtest_filter=StoreFilesTest.*"],
        env={**os.environ, "INTARSIA_TEST_BUCKET": weed.BUCKET},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0 and "SKIPPED" not in done.stdout, done.stdout


def test_without_credentials_nothing_is_tried():
    keep = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("AWS_")}
    try:
        done = subprocess.run(
            [PROGRAM, "ckpt", "ls", FOLDER], env={**os.environ, "HOME": "/nowhere"}, capture_output=True, text=True, timeout=60
        )
        assert done.returncode != 0 and "AWS_ACCESS_KEY_ID" in done.stderr, done.stderr
    finally:
        os.environ.update(keep)


if __name__ == "__main__":
    if weed.program() is None or any(importlib.util.find_spec(name) is None for name in ("boto3", "safetensors")):
        print("SeaweedFS, boto3 or safetensors is not installed")
        sys.exit(0)
    if AS_RANK in sys.argv:
        run(globals())
    else:
        with weed.running() as endpoint:
            os.environ.update(weed.variables(endpoint))
            run(globals())
