"""`intarsia ckpt import` on what torch.distributed.checkpoint writes: FSDP2 on 2 processes, as torchtitan saves it, and pickles that
want to execute something.

    dcp_import_test.py PATH_OF_INTARSIA            on this process, and launches the ranks
"""

import io
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import zipfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
import launch  # noqa: E402

PROGRAM = sys.argv[1]


def made():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5)).to(torch.bfloat16)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)


def state_of(model, optimizer):
    """Names at the top, optimizer states by parameter's name: torchtitan's form."""
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    return {
        **model.state_dict(),
        "optimizer": get_optimizer_state_dict(model, optimizer, options=options),
        "train_state": {"step": torch.tensor(12), "ntokens_seen": 4096, "log": [1.5, None, ("a", True)]},
        "lr_scheduler": {"last_epoch": 3, "inf": float("inf"), "odd": {1: "x"}},
    }


def trained(model, optimizer):
    for step in range(2):
        model(torch.full((4, 6), 0.5 + step, dtype=torch.bfloat16)).float().square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def save_on_ranks(folder):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    model, _ = made()
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)
    trained(model, optimizer)
    state = state_of(model, optimizer)
    dcp.save(state, checkpoint_id=folder)

    # What PyTorch itself and what we make of it are the same, into other layouts.
    import intarsia as it

    it.init("[x=2]")
    out = folder + "-imported"
    if dist.get_rank() == 0:
        ckpt("import", folder, out, "--step", "12")
        assert "all bytes are as they were written" in ckpt("verify", out)
    dist.barrier()
    names = [name for name in it.read_checkpoint(out).tensors if not name.startswith("train_state")]
    tensors = {**model.state_dict(), **{f"optimizer.{k}": v for k, v in state["optimizer"].items() if isinstance(v, torch.Tensor)}}
    assert set(names) == set(tensors), set(names) ^ set(tensors)
    for name, theirs in tensors.items():
        full = theirs.full_tensor() if hasattr(theirs, "full_tensor") else theirs
        ours = it.distribute(torch.zeros_like(full), "S(1)" if full.dim() > 1 else "R")
        it.load_checkpoint(out, {name: ours}, strict=False)
        assert torch.equal(it.full(ours), full), name
    values = it.load_checkpoint(out, {}, strict=False).values
    assert values["train_state.ntokens_seen"] == 4096 and values["train_state.log"] == [1.5, None, ("a", True)], values
    assert values["lr_scheduler.inf"] == float("inf") and values["optimizer.param_groups.0.weight.lr"] == 0.1


def ckpt(*words, code=0):
    done = subprocess.run([PROGRAM, "ckpt", *map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


class Evil:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


def hostile(root):
    """A folder in which one pickle after the other wants to execute something."""
    mark = root / "executed"
    dcp.save({"w": torch.ones(3), "n": {"k": 1}}, checkpoint_id=root / "good", no_dist=True)
    ckpt("import", root / "good", root / "out", "--step", 0)
    metadata = (root / "good/.metadata").read_bytes()
    (root / "good/.metadata").write_bytes(pickle.dumps(Evil(mark)))
    assert "system, which no checkpoint needs" in ckpt("import", root / "good", root / "out", "--step", 1, code=1)

    parsed = pickle.loads(metadata)
    data = bytearray((root / "good/__0_0.distcp").read_bytes())
    for index, info in list(parsed.storage_data.items()):
        changed = bytearray(data)
        saved = io.BytesIO()
        with zipfile.ZipFile(saved, "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps(Evil(mark), protocol=2))
        blob = saved.getvalue()
        changed += blob
        entries = dict(parsed.storage_data)
        entries[index] = type(info)(info.relative_path, len(data), len(blob))
        (root / "good/__0_0.distcp").write_bytes(changed)
        (root / "good/.metadata").write_bytes(pickle.dumps(dict_with(parsed, entries)))
        said = ckpt("import", root / "good", root / "out", "--step", 2, code=1)
        assert "system, which no checkpoint needs" in said, said
    assert not mark.exists()
    assert [path.name for path in (root / "out").iterdir()] == ["step-00000000"]
    ckpt("import", root / "none", root / "out", code=1)


def dict_with(metadata, storage_data):
    import copy

    out = copy.copy(metadata)
    out.storage_data = storage_data
    return out


if len(sys.argv) > 2:
    save_on_ranks(sys.argv[2])
else:
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        done = launch.run("plain", 2, [sys.executable, __file__, PROGRAM, str(root / "dcp")], env={"OMP_NUM_THREADS": "1"}, timeout=200)
        assert done.returncode == 0, done.stdout + done.stderr[-4000:]
        hostile(root)
    print("passed")
