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


if __name__ == "__main__":
    run(globals())
