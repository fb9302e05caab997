"""Megatron-LM #7452, finding 2 (https://github.com/NVIDIA/Megatron-LM/issues/7452, open).

A `GPTModel` with `parallel_output=False` gathers its logits on all ranks, and hands them, where it is given labels, to the cross entropy of a sharded
vocabulary all the same. Each rank's copy counts once more: with tensor parallelism of N the loss is too large by log(N), and the gradients are wrong.
The package is as it is on PyPI, and the fault is its own.

Serially there is nothing to gather, and the package does not run with that option: its cross entropy writes into logits that are the input of its
gathering op, which autograd refuses. So the serial program goes without it.

    launch.py -n 2 -- megatron_gathered_logits.py gathered|parallel
"""

import sys

import torch
import torch.distributed as dist
from compared import compare
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron_cpu import LENGTH, VOCABULARY, batch, config, fill, megatron, positions_and_mask


def train(tp, gathered=False):
    with megatron(tp):
        model = GPTModel(config(tp), get_gpt_layer_local_spec(), vocab_size=VOCABULARY, max_sequence_length=LENGTH, parallel_output=not gathered)
        fill(model, tp)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-6)
        for step in range(2):
            tokens, labels = batch(step)
            model(tokens, *positions_and_mask(), labels=labels).mean().backward()
            optimizer.step()
            optimizer.zero_grad()


dist.init_process_group("gloo")
compare(lambda: train(1), lambda: train(dist.get_world_size(), sys.argv[1] == "gathered"))
dist.destroy_process_group()
