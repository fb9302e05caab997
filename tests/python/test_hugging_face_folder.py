"""Folders of Hugging Face: what transformers writes is read into any layout, and what we export is read by transformers."""

import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import intarsia as it
import torch
from _harness import on_ranks, refuses, run

if importlib.util.find_spec("transformers") is None:
    print("transformers is not installed")
    sys.exit(0)
import safetensors.torch  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

BUILT = pathlib.Path(it._C.__file__).parents[2] / "intarsia"
PROGRAM = str(BUILT) if BUILT.exists() else shutil.which("intarsia")


def llama(seed, tied=False, dtype=torch.float32):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=65, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, tie_word_embeddings=tied
    )
    return LlamaForCausalLM(config).to(dtype).eval()


def ready(name):
    it.init("[x=2]")
    folder = pathlib.Path(tempfile.gettempdir()) / f"intarsia-hf-{name}-{os.environ['MASTER_PORT']}-{os.getppid()}"
    return folder, it.world().rank()


def all_come():
    it.full(it.distribute(torch.ones(2), "S(0)"))


def laid_out(model, kind):
    if kind == "sharded":
        it.fully_shard(model, shard="x")
    elif kind == "columns":
        it.parallelize(model, it.mesh(), {"*_proj.weight": "S(1)", "*embed_tokens.weight": "S(0)"})
    return model


def logits(model):
    x = torch.arange(12).reshape(2, 6)
    distributed = any(it.has_layout(p) for p in model.parameters())
    with torch.no_grad():
        out = model(input_ids=it.distribute(x, "R") if distributed else x).logits
    return it.full(out) if it.has_layout(out) else out


@on_ranks(2)
def test_what_transformers_wrote_is_read_into_any_layout():
    folder, rank = ready("read")
    for tied in (False, True):
        theirs = llama(1, tied)
        path = folder / f"tied-{tied}"
        if rank == 0:
            theirs.save_pretrained(path, max_shard_size="20KB")
            assert tied or len(list(path.glob("*.safetensors"))) > 1
        all_come()
        for kind in ("plain", "sharded", "columns"):
            ours = laid_out(llama(2, tied), kind)
            it.load_hugging_face(path, ours)
            torch.testing.assert_close(logits(ours), logits(theirs))
    all_come()
    if rank == 0:
        shutil.rmtree(folder)


@on_ranks(2)
def test_dtypes_are_converted_when_asked_and_quantised_numbers_are_refused():
    folder, rank = ready("dtype")
    if rank == 0:
        llama(1, dtype=torch.bfloat16).save_pretrained(folder / "brain")
        (folder / "eight").mkdir()
        eight = {name: t.to(torch.float8_e4m3fn) for name, t in llama(1).state_dict().items()}
        safetensors.torch.save_file(eight, folder / "eight/model.safetensors")
    all_come()
    ours = laid_out(llama(2), "sharded")
    refuses(ValueError, "is bf16[65,32] there and f32[65,32] here", lambda: it.load_hugging_face(folder / "brain", ours))
    it.load_hugging_face(folder / "brain", ours, convert=True)
    torch.testing.assert_close(logits(ours), logits(llama(1, dtype=torch.bfloat16).float()))
    refuses(ValueError, "is f8e4m3[65,32] there", lambda: it.load_hugging_face(folder / "eight", ours, convert=True))
    refuses(it.FileError, "no-such", lambda: it.load_hugging_face(folder / "no-such", ours))
    all_come()
    if rank == 0:
        shutil.rmtree(folder)


@on_ranks(2)
def test_what_we_export_is_read_by_transformers():
    folder, rank = ready("export")
    ours = laid_out(llama(3), "columns")
    it.save_checkpoint(folder / "run", 5, {"model": ours})
    expected = logits(ours)
    if rank == 0:
        # Every file of the checkpoint itself is one that others open, too.
        parts = {}
        for file in (folder / "run/step-00000005").glob("*.safetensors"):
            parts.update(safetensors.torch.load_file(file))
        name = "model.model.layers.0.self_attn.q_proj.weight"
        halves = [parts[f"{name} [0,32)x[{a},{b})"] for a, b in ((0, 16), (16, 32))]
        torch.testing.assert_close(torch.cat(halves, 1), llama(3).model.layers[0].self_attn.q_proj.weight.detach(), rtol=0, atol=0)
        for words in ([], ["--file-bytes", "20KiB"]) if PROGRAM else ():
            out = folder / f"hf-{len(words)}"
            subprocess.run([PROGRAM, "ckpt", "export", folder / "run", out, "--prefix", "model.", *words], check=True, timeout=60)
            llama(0).config.save_pretrained(out)
            theirs, info = LlamaForCausalLM.from_pretrained(out, output_loading_info=True)
            assert not info["missing_keys"] and not info["unexpected_keys"], info
            torch.testing.assert_close(logits(theirs.eval()), expected)
            files = {path.name for path in out.glob("*.safetensors")}
            if words:
                index = json.loads((out / "model.safetensors.index.json").read_text())
                assert files == set(index["weight_map"].values()) and len(files) > 1
    all_come()
    if rank == 0:
        shutil.rmtree(folder)


@on_ranks(2)
def test_transformers_loads_what_ranks_have_written_together():
    folder, rank = ready("together")
    for kind in ("plain", "sharded", "columns"):
        model = llama(3)
        want = logits(model)
        laid_out(model, kind)
        for file_bytes in (5_000_000_000, 20_000):
            it.save_checkpoint(folder, 1, model.state_dict(), form="hf", hf_file_bytes=file_bytes, replace=True)
            step = folder / "step-00000001"
            if rank == 0:
                model.config.save_pretrained(step)
            all_come()
            theirs = LlamaForCausalLM.from_pretrained(step).eval()
            assert torch.equal(logits(theirs), want), (kind, file_bytes)
            again = laid_out(llama(4), "columns")
            it.load_hugging_face(step, again)
            assert torch.allclose(logits(again), want, atol=1e-5), kind
            again = laid_out(llama(5), "sharded")
            it.load_checkpoint(folder, again.state_dict())
            assert torch.allclose(logits(again), want, atol=1e-5), kind
            all_come()
            if rank == 0:
                (step / "config.json").unlink()
                verified = subprocess.run([PROGRAM, "ckpt", "verify", step], capture_output=True, text=True, timeout=60)
                assert verified.returncode == 0, verified.stdout + verified.stderr
            all_come()
    all_come()
    if rank == 0:
        shutil.rmtree(folder)
    refuses(ValueError, "form is 'safetensors'; it is 'native' or 'hf'", lambda: it.save_checkpoint("x", 1, {}, form="safetensors"))


RULES = [
    {"from": ["layers.*.q.weight", "layers.*.k.weight", "layers.*.v.weight"], "to": "blocks.*.qkv.weight", "sizes": [4, 1, 1]},
    {"from": "layers.*.experts.#.weight", "to": "blocks.*.experts", "stack": 0},
    {"from": "layers.*.gate_up", "to": ["blocks.*.gate", "blocks.*.up"], "dim": 1},
    {"from": "layers.*.down", "to": "blocks.*.down", "order": [1, 0]},
]


class Fused(torch.nn.Module):
    """What RULES make of other_model's tensors."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(6)
        self.blocks = torch.nn.ModuleList()
        for _ in range(2):
            block = torch.nn.Module()
            block.qkv = torch.nn.Linear(6, 24, bias=False)
            for name, shape in (("experts", (3, 4, 6)), ("gate", (6, 5)), ("up", (6, 5)), ("down", (7, 6))):
                setattr(block, name, torch.nn.Parameter(torch.randn(shape)))
            self.blocks.append(block)


def other_model():
    torch.manual_seed(5)
    shapes = {"q.weight": (16, 6), "k.weight": (4, 6), "v.weight": (4, 6), "gate_up": (6, 10), "down": (6, 7)}
    shapes |= {f"experts.{i}.weight": (4, 6) for i in range(3)}
    out = {f"layers.{n}.{name}": torch.randn(shape) for n in range(2) for name, shape in shapes.items()}
    return out | {"norm.weight": torch.randn(6), "norm.bias": torch.randn(6)}


@on_ranks(2)
def test_names_and_shapes_are_mapped_by_rules_and_back_on_export():
    folder, rank = ready("names")
    theirs = other_model()
    if rank == 0:
        folder.mkdir()
        safetensors.torch.save_file(theirs, folder / "model.safetensors")
        (folder / "rules.json").write_text(json.dumps(RULES))
    all_come()
    for layout in (None, "S(0)", "S(1)"):
        model = Fused()
        if layout:
            rows = {"*.qkv.weight": layout, "*.gate": layout, "*.up": layout, "*.down": layout, "*.experts": layout}
            it.parallelize(model, it.mesh(), rows)
        it.load_hugging_face(folder, model, names=RULES)
        ours = {name: it.full(t) if it.has_layout(t) else t for name, t in model.state_dict().items()}
        for n in range(2):
            qkv = torch.cat([theirs[f"layers.{n}.{name}.weight"] for name in "qkv"])
            assert torch.equal(ours[f"blocks.{n}.qkv.weight"], qkv), layout
            assert torch.equal(ours[f"blocks.{n}.up"], theirs[f"layers.{n}.gate_up"][:, 5:]), layout
            assert torch.equal(ours[f"blocks.{n}.down"], theirs[f"layers.{n}.down"].T), layout
            assert torch.equal(ours[f"blocks.{n}.experts"][2], theirs[f"layers.{n}.experts.2.weight"]), layout
        assert torch.equal(ours["norm.bias"], theirs["norm.bias"])
        it.save_checkpoint(folder / "run", 1, {"model": model}, replace=True)
        if rank == 0 and PROGRAM:
            words = ["--prefix", "model.", "--map", folder / "rules.json"]
            subprocess.run([PROGRAM, "ckpt", "export", folder / "run", folder / f"out-{layout}", *words], check=True, timeout=60)
            back = safetensors.torch.load_file(folder / f"out-{layout}/model.safetensors")
            assert back.keys() == theirs.keys() and all(torch.equal(back[name], theirs[name]) for name in theirs), layout
        all_come()
    # A checkpoint of ours by rules, and by patterns.
    plain = {name: torch.zeros_like(t) for name, t in theirs.items()}
    it.save_checkpoint(folder / "theirs", 1, theirs)
    model = Fused()
    it.load_checkpoint(folder / "theirs", dict(model.state_dict()), names=RULES)
    assert torch.equal(model.blocks[1].gate, theirs["layers.1.gate_up"][:, :5])
    it.load_checkpoint(folder / "theirs", plain, only="layers.0.*")
    assert all(t.any() == name.startswith("layers.0.") for name, t in plain.items())
    refuses(ValueError, "no tensor's name fits nothing.*", lambda: it.load_checkpoint(folder / "theirs", plain, only=["nothing.*"]))
    refuses(ValueError, "is for modules and tensors", lambda: it.load_checkpoint(folder / "theirs", {"n": 3}, only="n"))
    # Ranks that load by other rules would hold other numbers.
    other = RULES if rank == 0 else [{**RULES[0], "from": RULES[0]["from"][::-1], "sizes": [1, 1, 4]}, *RULES[1:]]
    refuses(ValueError, "rank 1 loads by other `names`", lambda: it.load_hugging_face(folder, model, names=other))
    patterns = "layers.0.*" if rank == 0 else "nothing.*"
    refuses(ValueError, "rank 1 loads by other", lambda: it.load_checkpoint(folder / "theirs", plain, only=patterns))
    wrong = [{"from": "nothing.*", "to": "a.*"}]
    refuses(ValueError, "no tensor is called like 'nothing.*'", lambda: it.load_hugging_face(folder, model, names=wrong))
    refuses(it.FileError, "unknown 'cat'", lambda: it.load_hugging_face(folder, model, names=[{"from": "a", "to": "b", "cat": 1}]))
    all_come()
    if rank == 0:
        shutil.rmtree(folder)


if __name__ == "__main__":
    run(globals())
