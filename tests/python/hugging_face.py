"""Models of Hugging Face's transformers, as they are, trained in lockstep or on processes and beside it on one device.

    python hugging_face.py [--quick] [--models llama,t5] [--ways dp,tp]        # in lockstep
    python launch.py -n 2 -- python hugging_face.py --processes ...            # on 2 processes

Each is made from its configuration, small and seeded. The loop is that of a trainer: losses are collected in a plain
tensor, gradients are scaled, unscaled and clipped. Every loss and parameter is compared; then an evaluation under
inference mode, and what the model generates.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fnmatch
import sys

import intarsia as it
import torch
import transformers as hf
from torch import nn

hf.logging.set_verbosity_error()

WORDS = 64
STEPS = 3
TOLERANCE = 2e-5  # of the largest element; float32
COMMON = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
SHARED_HEADS = COMMON | {"num_key_value_heads": 2}
EXPERTS = {"num_experts_per_tok": 2, "output_router_logits": True}
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def generator():
    return torch.Generator().manual_seed(5)


def words(rows, columns):
    return torch.randint(3, WORDS, (rows, columns), generator=generator())


def text(masked=False):
    ids = words(8, 12)
    batch = {"input_ids": ids, "labels": ids.clone()}
    if masked:
        mask = torch.ones(8, 12, dtype=torch.long)
        mask[::2, -3:] = 0
        batch["attention_mask"] = mask
        batch["labels"][mask == 0] = -100
    return batch


def images(size):
    return {"pixel_values": torch.randn(8, 3, size, size, generator=generator())}


def classes():
    return {"labels": torch.arange(8) % 5}


def llama(**options):
    return hf.LlamaForCausalLM(hf.LlamaConfig(**SHARED_HEADS, **ENDS, **options))


def clip():
    tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    of_text = tower | {"vocab_size": WORDS, "max_position_embeddings": 64, "eos_token_id": 2}
    of_images = tower | {"image_size": 16, "patch_size": 8}
    return hf.CLIPModel(hf.CLIPConfig(text_config=of_text, vision_config=of_images, projection_dim=16))


def whisper():
    options = {f"{part}_{what}": n for part in ("encoder", "decoder") for what, n in
               (("layers", 1), ("attention_heads", 4), ("ffn_dim", 64))}  # fmt: skip
    config = hf.WhisperConfig(
        vocab_size=WORDS, num_mel_bins=8, d_model=32, max_source_positions=16, max_target_positions=32, dropout=0.0,
        decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None, **options, **ENDS,
    )  # fmt: skip
    return hf.WhisperForConditionalGeneration(config)


def of_vit():
    return hf.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=16, patch_size=4,
        num_labels=5, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
    )  # fmt: skip


@dataclasses.dataclass
class Model:
    make: callable
    batch: callable
    llama_plan: bool = False  # whether that plan's names fit
    generates: bool = False


MODELS = {
    "llama": Model(llama, text, True, True),
    "llama, masked": Model(llama, lambda: text(True), True, True),
    "llama, eager": Model(lambda: llama(attn_implementation="eager"), lambda: text(True), True, True),
    "llama, tied": Model(lambda: llama(tie_word_embeddings=True), text),
    "gpt2": Model(
        lambda: hf.GPT2LMHeadModel(
            hf.GPT2Config(vocab_size=WORDS, n_embd=32, n_layer=2, n_head=4, n_positions=64, resid_pdrop=0, embd_pdrop=0,
                          attn_pdrop=0, **ENDS)  # fmt: skip
        ),
        text,
        generates=True,
    ),
    "bert": Model(
        lambda: hf.BertForMaskedLM(hf.BertConfig(**COMMON, hidden_dropout_prob=0, attention_probs_dropout_prob=0)),
        lambda: text(True),
    ),
    "mixtral": Model(
        lambda: hf.MixtralForCausalLM(hf.MixtralConfig(**SHARED_HEADS, **ENDS, **EXPERTS, num_local_experts=4)), text
    ),
    "qwen3 moe": Model(
        lambda: hf.Qwen3MoeForCausalLM(
            hf.Qwen3MoeConfig(**SHARED_HEADS, **ENDS, **EXPERTS, head_dim=8, num_experts=4, moe_intermediate_size=32)
        ),
        text,
    ),
    "qwen3": Model(
        lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**SHARED_HEADS, **ENDS, head_dim=8)), text, True, True
    ),
    "gemma2": Model(
        lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**SHARED_HEADS, **ENDS, head_dim=8, sliding_window=8)), text
    ),
    "vit": Model(lambda: hf.ViTForImageClassification(of_vit()), lambda: images(16) | classes()),
    "t5": Model(
        lambda: hf.T5ForConditionalGeneration(
            hf.T5Config(vocab_size=WORDS, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0,
                        decoder_start_token_id=0, pad_token_id=0, eos_token_id=2)  # fmt: skip
        ),
        lambda: {"input_ids": words(8, 12), "labels": words(8, 7)},
        generates=True,
    ),
    "resnet": Model(
        lambda: hf.ResNetForImageClassification(
            hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=5)
        ),
        lambda: images(32) | classes(),
    ),
    "mamba": Model(
        lambda: hf.MambaForCausalLM(hf.MambaConfig(vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, state_size=4, **ENDS)),
        text,
    ),
    "clip": Model(clip, lambda: images(16) | {"input_ids": words(8, 12), "return_loss": True}),
    "whisper": Model(
        whisper, lambda: {"input_features": torch.randn(8, 8, 32, generator=generator()), "labels": words(8, 6)}
    ),
}
QUICK = ("llama, masked", "t5", "resnet")

# Names of modules, as the models have them, and how tensor parallelism cuts these.
CUT_COLUMNS = ("*.q_proj", "*.k_proj", "*.v_proj", "*.gate_proj", "*.up_proj", "*.query", "*.key", "*.value",
               "*.intermediate.dense", "*.q", "*.k", "*.v", "*.wi", "*.fc1", "lm_head", "proj_out")  # fmt: skip
CUT_ROWS = ("*.o_proj", "*.out_proj", "*.down_proj", "*.attention.output.dense", "*.output.dense", "*.o", "*.wo", "*.fc2")
CUT_WORDS = ("*.embed_tokens", "*.word_embeddings", "shared", "*.wte")


def tensor_parallel_plan(model):
    """What of the model's modules can be cut, by name; nothing where none can."""
    names = [name for name, _ in model.named_modules()]
    entries = []
    for patterns, style in ((CUT_COLUMNS, it.column()), (CUT_ROWS, it.row()), (CUT_WORDS, it.vocabulary())):
        entries += [(pattern, style) for pattern in patterns if fnmatch.filter(names, pattern)]
    return it.TensorParallelPlan(entries, axis="tp") if entries else None


@dataclasses.dataclass
class Way:
    mesh: str
    batch: str | None  # its layout; None: plain
    wrap: callable  # may return a batch of its own


def replicated(model, mesh):
    it.replicate(model, mesh=mesh)


WAYS = {
    "R": Way("[dp=2]", None, lambda model, mesh: it.parallelize(model, mesh, {})),
    "dp": Way("[dp=2]", "S(0)", lambda model, mesh: it.parallelize(model, mesh, {})),
    "fully_shard": Way("[dp=2]", "S(0)", lambda model, mesh: it.fully_shard(model, mesh=mesh)),
    "tp": Way("[tp=2]", None, lambda model, mesh: it.parallelize(model, mesh, tensor_parallel_plan(model))),
    "llama_plan": Way("[tp=2]", None, lambda model, mesh: it.parallelize(model, mesh, it.llama_plan())),
    "sequence": Way(
        "[tp=2]", None, lambda model, mesh: it.parallelize(model, mesh, it.llama_plan(sequence_parallel=True))
    ),
    "fully_shard, tp": Way(
        "[dp=2,tp=2]", "S(0),R", lambda model, mesh: it.fully_shard(model, mesh=mesh, layouts=tensor_parallel_plan(model))
    ),
    "replicate": Way("[dp=2]", None, replicated),
}
OF_LLAMA = ("llama_plan", "sequence")
ONLY_ON_PROCESSES = ("replicate",)
OTHER_MEANS = {"llama, masked", "llama, eager", "bert", "clip", "mixtral", "qwen3 moe", "resnet"}
"""Models whose loss is not the mean of those of two half batches: their gradients under `replicate` are other ones."""


def made(name, checkpointing=False):
    torch.manual_seed(0)
    model = MODELS[name].make().train()
    if checkpointing and model.supports_gradient_checkpointing:
        model.gradient_checkpointing_enable()
    return model, MODELS[name].batch()


def train(model, batch):
    """The loop of a trainer. The losses, and their sum in a plain tensor."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    total, losses = torch.zeros(()), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(**batch).loss
        scaler.scale(loss).backward()
        total += loss.detach()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return [*losses, total.item()]


def evaluated(model, batch):
    model.eval()
    with torch.inference_mode():
        return model(**batch).loss.item()


def generated(model, batch):
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask") if key in batch}
    return model.generate(**inputs, max_new_tokens=4, do_sample=False)


def whole(tensor):
    return it.full(tensor.detach()) if it.has_layout(tensor) else tensor.detach()


def apart(one, other):
    """How far two tensors are, of the largest element."""
    largest = max(other.abs().max().item(), 1e-3) if other.numel() else 1.0
    return (one - other).abs().max().item() / largest if other.numel() else 0.0


def placed(batch, way, mesh):
    if way == "replicate":
        rank, ranks = it.world().rank(), mesh.size()
        return {key: v.chunk(ranks)[rank] if isinstance(v, torch.Tensor) else v for key, v in batch.items()}
    layout = WAYS[way].batch
    if layout is None:
        return batch
    return {key: it.distribute(v, layout) if isinstance(v, torch.Tensor) else v for key, v in batch.items()}


def compare(name, way, mesh, checkpointing=False):
    """How far losses and parameters are from one device, and the ops that ran on whole tensors."""
    model, batch = made(name)
    want_losses = train(model, batch)
    want = {key: p.detach().clone() for key, p in model.named_parameters()}
    want_loss = evaluated(model, batch)
    want_text = generated(model, batch) if MODELS[name].generates else None
    model, batch = made(name, checkpointing)
    WAYS[way].wrap(model, mesh)
    batch = placed(batch, way, mesh)
    it.clear_bill()
    losses = train(model, batch)
    without_rule = sorted({line.split("  ")[-1] for line in str(it.bill()).splitlines() if "no rule" in line})
    far = max(apart(whole(p), want[key]) for key, p in model.named_parameters())
    if way != "replicate":  # there each rank has the losses of its half
        losses.append(evaluated(model, batch))
        far = max(far, *(abs(a - b) / abs(b) for a, b in zip(losses, [*want_losses, want_loss], strict=True)))
        if want_text is not None and not torch.equal(whole(generated(model, batch)), want_text):
            far = float("inf")
    return far, without_rule


def fits(name, way, processes):
    if way in OF_LLAMA and not MODELS[name].llama_plan:
        return False
    if way in ONLY_ON_PROCESSES and (not processes or name in OTHER_MEANS):
        return False
    if way in ("tp", "fully_shard, tp") and tensor_parallel_plan(made(name)[0]) is None:
        return False
    return not (processes and WAYS[way].mesh == "[dp=2,tp=2]")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}, in fewer ways")
    parser.add_argument("--models", help="names, separated by ;")
    parser.add_argument("--ways", help="names, separated by ;")
    parser.add_argument("--processes", action="store_true", help="under a launcher, on 2 processes")
    chosen = parser.parse_args()
    names = chosen.models.split(";") if chosen.models else QUICK if chosen.quick else MODELS
    quick_ways = ("dp", "fully_shard") if chosen.processes else ("dp", "fully_shard", "tp")
    ways = chosen.ways.split(";") if chosen.ways else quick_ways if chosen.quick else WAYS
    equal = cases = 0
    worst = 0.0
    for way in ways:
        fitting = [name for name in names if fits(name, way, chosen.processes)]
        if chosen.processes and fitting:
            it.close()
            it.init(WAYS[way].mesh)
        for name in fitting:
            with contextlib.nullcontext() if chosen.processes else it.lockstep(WAYS[way].mesh):
                for checkpointing in (False, True) if way in ("dp", "fully_shard") and not chosen.quick else (False,):
                    cases += 1
                    far, without_rule = compare(name, way, it.mesh(), checkpointing)
                    equal += far <= TOLERANCE
                    worst = max(worst, far)
                    if not chosen.processes or it.world().rank() == 0:
                        again = ", recomputed" if checkpointing else ""
                        print(f"{name:14} {way:16} apart {far:.1e}{again}", *without_rule, flush=True)
    if not chosen.processes or it.world().rank() == 0:
        print(f"{equal} of {cases} runs equal to one device, worst {worst:.1e}", flush=True)
    it.close()
    return 0 if equal == cases else 1


if __name__ == "__main__":
    sys.exit(main())
