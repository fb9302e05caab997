"""Hugging Face transformers #48687 (https://github.com/huggingface/transformers/issues/48687): in 5.17.0, mended in 5.18.0 by #48689.

With expert parallelism and experts_implementation="batched_mm", a token whose expert is on another rank goes through some expert of this rank all
the same. Its weight of 0 hides that from the output, but not from the gradient of that weight: the router learns from experts that it did not choose.

Serially the model has all experts; on several ranks each has its part of them, as the package's own plan for OLMoE says. The package is as it is on
PyPI, and the fault is its own.

    launch.py -n 2 -- transformers_48687.py
"""

import tempfile

import torch
import torch.distributed as dist
from compared import compare
from torch.nn import functional as F
from transformers import OlmoeConfig, OlmoeForCausalLM
from transformers.distributed import DistributedConfig

STEPS, ROWS, LENGTH, VOCABULARY = 2, 2, 8, 99


def build(folder, ranks):
    parallel = {"distributed_config": DistributedConfig(tp_size=ranks, enable_expert_parallel=True)} if ranks > 1 else {}
    model = OlmoeForCausalLM.from_pretrained(folder, experts_implementation="batched_mm", **parallel)
    # As a function, not as a module: what an expert makes of tokens that are not its own is nothing that ranks agree on, and is not to be compared.
    for layer in model.model.layers:
        del layer.mlp.experts.act_fn
        layer.mlp.experts.act_fn = F.silu
    return model.train()


def train(folder, ranks):
    model = build(folder, ranks)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, foreach=False)  # some parameters are DTensors, others are not
    for step in range(STEPS):
        torch.manual_seed(100 + step)
        tokens = torch.randint(0, VOCABULARY, (ROWS, LENGTH))
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main():
    dist.init_process_group("gloo")
    config = OlmoeConfig(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4, num_experts=8,
                         num_experts_per_tok=2, eos_token_id=1)  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        shared = [folder]
        dist.broadcast_object_list(shared)  # the package shards a model while it reads it; the first rank writes one with random weights
        if dist.get_rank() == 0:
            torch.manual_seed(0)
            OlmoeForCausalLM(config).save_pretrained(folder)
        dist.barrier()
        compare(lambda: train(shared[0], 1), lambda: train(shared[0], dist.get_world_size()))
    dist.destroy_process_group()


main()
