"""`intarsia ckpt`, run as people run it, on checkpoints that a process of four ranks in lockstep has saved."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

PROGRAM = sys.argv[1]
MAKER = """
import sys, torch, intarsia as it
root = sys.argv[1]
with it.lockstep("[a=2,b=2]"):
    w = torch.arange(48.0).reshape(8, 6)
    def state(layout, change=0.0):
        return {"model.w": it.distribute(w + change, layout), "model.b": it.distribute(torch.arange(5), "R,R"), "lr": 0.1}
    it.save_checkpoint(root + "/run", 10, state("S(0),S(1)"))
    it.save_checkpoint(root + "/run", 20, state("R,S(0)"))
    changed = state("R,S(0)")
    changed["model.w"] = it.distribute(torch.where(w == 7, w + 0.5, w), "S(1),R")
    changed["lr"] = 0.2
    it.save_checkpoint(root + "/other", 10, changed)
"""


def ckpt(*words, code=0):
    done = subprocess.run([PROGRAM, "ckpt", *map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


def has(text, *parts):
    for part in parts:
        assert part in text, f"{part!r} is not in:\n{text}"


with tempfile.TemporaryDirectory() as root:
    root = pathlib.Path(root)
    subprocess.run([sys.executable, "-c", MAKER, str(root)], check=True, timeout=120)
    run, step = root / "run", root / "run/step-00000010"

    has(ckpt("ls", run), "step 10", "step 20", "232 bytes", "2 tensors by 4 ranks")
    assert [row["step"] for row in json.loads(ckpt("ls", run, "--json"))] == [10, 20]

    has(ckpt("show", run), "step 20 of 4 ranks", "model.w", "f32[8,6]", "[a=2,b=2] R,S(0)", "lr", "0.1", "00000-of-00004.safetensors")
    has(ckpt("show", step, "--writers"), "step 10", "rank 3", "[4,8)x[3,6)")
    shown = json.loads(ckpt("show", run, "--step", 10, "--match", "*.b", "--json"))
    assert [tensor["name"] for tensor in shown["tensors"]] == ["model.b"], shown

    has(ckpt("verify", run), "step-00000020: all bytes are as they were written")
    has(ckpt("verify", run, "--all"), "step-00000010: all bytes", "step-00000020: all bytes")
    has(ckpt("diff", step, run), "equal")
    has(ckpt("diff", run, root / "other", code=1), "1 of 48 elements differ, at most by 0.5", "0.1 and 0.2")
    assert json.loads(ckpt("diff", run, root / "other", "--json", code=1))[0] == {
        "name": "model.w", "elements": 1, "of": 48, "greatest": 0.5,
    }  # fmt: skip

    ckpt("export", run, root / "hf", "--prefix", "model.", "--dtype", "bf16", "--file-bytes", "64")
    has(ckpt("show", root / "hf"), "bf16[8,6]", "i64[5]", "model-00001-of-00002.safetensors")
    has(ckpt("export", run, root / "hf", code=1), "is there already")
    has(ckpt("export", run, root / "no", "--prefix", "net.", code=1), "no tensor's name begins with 'net.'")
    has(ckpt("export", run, root / "no", "--dtype", "f31", code=1), "'f31' is no element type")
    ckpt("export", run, root / "all")
    ckpt("reshard", run, root / "three", "--files", "3")
    ckpt("verify", root / "three")
    ckpt("diff", run, root / "three")
    has(ckpt("reshard", run, root / "three", code=1), "is there already")
    has(ckpt("diff", run, root / "all", code=1), "lr")  # values that are no tensors stay behind

    data = step / "00002-of-00004.safetensors"
    data.write_bytes(data.read_bytes()[:-1] + b"x")
    has(ckpt("verify", run, "--step", 10, code=1), "00002-of-00004.safetensors: damaged")
    has(ckpt("diff", step, run, code=1), "damaged")
    (step / "manifest.json").write_text("{}")
    has(ckpt("ls", run), "step 10  damaged", "manifest.json")
    has(ckpt("show", run, "--step", 11, code=1), "no step 11; there are 10, 20")
    has(ckpt("show", root / "none", code=1), "no such folder")
    shutil.rmtree(run)
    has(ckpt("show", root, code=1), "no steps, no manifest, and no folder of Hugging Face")
    ckpt("verify", run, "--step", 1, "--all", code=2)
    ckpt(code=2)

page = pathlib.Path(sys.argv[2]).read_text()
for words in ((), ("ls",), ("show",), ("verify",), ("diff",), ("export",), ("reshard",), ("import",)):
    command = " ".join(("intarsia", "ckpt", *words, "--help"))
    shown = re.search(rf"<!-- the output of: {command} -->\n```text\n(.*?)```", page, re.S)
    assert shown and shown[1].rstrip() == ckpt(*words, "--help").rstrip(), f"{command}: the page shows something else"
print("passed")
