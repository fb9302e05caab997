"""Live tensor bytes at the peak of a fully sharded training step: ours, what was predicted, and PyTorch's FSDP2.

    memory.py                 under a launcher, on 2 processes or more

The model is a Llama of 8 layers, in float32, with AdamW. Each side trains four steps in a process group of its own; a meter that
counts all allocations of the CPU's allocator gives the peak of the third. Prints bytes for rank 0 as JSON.
"""

import gc
import json
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from llama_model import Config, Llama, rotary_table

import intarsia

CONFIG = Config(dim=256, layers=8, heads=4, kv_heads=4, hidden=704, vocab=1024, sequence=128)
BATCH = 2  # sequences of a rank


def model_on_meta():
    torch.manual_seed(0)
    with torch.device("meta"):
        return Llama(CONFIG)


def step(model, optimizer, tokens, tables):
    logits = model(tokens[:, :-1], *tables)
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    del logits
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def tables():
    return rotary_table(CONFIG.sequence, CONFIG.dim // CONFIG.heads)


def ours(steps, sequences):
    """Builds and trains; returns what must live on."""
    model = model_on_meta()
    sharding = intarsia.fully_shard(model, shard="dp", blocks=["blocks.*"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for i in range(steps):
        yield i
        tokens = intarsia.randint(0, CONFIG.vocab, (sequences, CONFIG.sequence + 1), "S(0)")
        step(model, optimizer, tokens, tables())
    yield model, optimizer, sharding


def theirs(steps, sequences):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = model_on_meta()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    for part in model.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for i in range(steps):
        yield i
        tokens = torch.randint(0, CONFIG.vocab, (sequences // dist.get_world_size(), CONFIG.sequence + 1))
        step(model, optimizer, tokens, tables())
    yield model, optimizer


def peak_of(run):
    """The most bytes that were live during the third step, over what was there before the model."""
    gc.collect()
    meter = intarsia.MemoryMeter("cpu")
    for state in run:
        if state == 2:
            meter.reset()
        if state == 3:
            peak = meter.peak()
    return peak, state


def predicted(ranks):
    def two_steps():  # the first has no optimizer state when its gradients come
        *_, (model, optimizer, _) = ours(2, BATCH * ranks)
        return model, optimizer

    return intarsia.predict(two_steps, f"[dp={ranks}]")


def main():
    torch.set_num_threads(1)
    ranks = int(os.environ["WORLD_SIZE"])
    prediction = predicted(ranks)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        print("before step 1:", prediction.to_string())
    intarsia.init({"dp": ranks})
    mine, (_, _, sharding) = peak_of(ours(4, BATCH * ranks))
    groups = sharding.most_gathered()
    del sharding
    fsdp2, _ = peak_of(theirs(4, BATCH * ranks))
    if rank == 0:
        print(json.dumps({"ours": mine, "predicted": prediction.peak, "fsdp2": fsdp2, "most_gathered": groups}))
    intarsia.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
