"""A training step of a large Llama, predicted: fully sharded over dp, in groups of a layer; parameters stored in float32 and used in
bfloat16; tensor and sequence parallel over tp."""

import intarsia as it
import torch
from llama_model import Config, Llama, dims, layouts, rotary_table
from torch.nn import functional as F


def lay_out_activations(model):
    """Between blocks the sequence is cut over tp; inside, heads, columns and the vocabulary are."""

    def give(part, layout):
        part.register_forward_hook(lambda _, inputs, output: it.redistribute(output, layout))

    give(model.embedding, "S(0),S(1)")
    for block in model.blocks:
        for part in (block.norm1, block.norm2):
            give(part, "S(0),R")
        for part in (block.attention, block.feed_forward):
            give(part, "S(0),S(1)")
    give(model.norm, "S(0),R")


def parameters(c: Config) -> int:
    head_dim = c.dim // c.heads
    block = 2 * c.dim * (c.heads + c.kv_heads) * head_dim + 3 * c.dim * c.hidden + 2 * c.dim
    return 2 * c.vocab * c.dim + c.layers * block + c.dim


def predict_llama(config: Config, mesh: str, rank: int = 0, timed: bool = False):
    """One step, one sequence for each index of dp; another one, if it is to be timed."""

    def program():
        with torch.device("meta"):
            model = Llama(config)
        it.fully_shard(model, layouts=layouts(), blocks=["blocks.*"], dims=dims(), param_dtype=torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        lay_out_activations(model)
        cos, sin = (t.bfloat16() for t in rotary_table(config.sequence, config.dim // config.heads))
        tokens = it.randint(0, config.vocab, (it.mesh().size("dp"), config.sequence), "S(0),R")

        def step():
            optimizer.zero_grad()
            logits = model(tokens, cos, sin)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
            loss.backward()
            del logits, loss
            optimizer.step()

        step()
        return (model, optimizer, step) if timed else (model, optimizer)

    return it.predict(program, mesh, rank=rank)
