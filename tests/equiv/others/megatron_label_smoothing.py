"""Megatron-LM #7452, finding 1 (https://github.com/NVIDIA/Megatron-LM/issues/7452; also #737 and #7464, all open).

`vocab_parallel_cross_entropy` with label smoothing takes the piece of the vocabulary that a rank has for all of it, in the mean of the log
probabilities and in its length. With tensor parallelism ranks have other losses than each other, and gradients are wrong. The package is as it is on
PyPI, and the fault is its own. Nothing else in it calls this function with label smoothing.

    launch.py -n 2 -- megatron_label_smoothing.py SMOOTHING
"""

import sys

import torch
import torch.distributed as dist
from compared import compare
from megatron.core import tensor_parallel
from megatron_cpu import VOCABULARY, WIDTH, batch, config, fill, megatron
from torch import nn


class SmoothedLoss(nn.Module):
    def __init__(self, smoothing):
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits, labels):
        return tensor_parallel.vocab_parallel_cross_entropy(logits, labels, self.smoothing)


class Model(nn.Module):
    """An embedding and a head, both sharded along the vocabulary."""

    def __init__(self, tp, smoothing):
        super().__init__()
        of = {"config": config(tp), "init_method": nn.init.normal_}
        self.embed, self.norm = tensor_parallel.VocabParallelEmbedding(VOCABULARY, WIDTH, **of), nn.LayerNorm(WIDTH)
        self.head = tensor_parallel.ColumnParallelLinear(WIDTH, VOCABULARY, bias=True, **of)
        self.loss = SmoothedLoss(smoothing)

    def forward(self, tokens, labels):
        logits, _ = self.head(self.norm(self.embed(tokens)))
        return self.loss(logits, labels)


def train(tp, smoothing):
    with megatron(tp):
        model = Model(tp, smoothing)
        fill(model, tp)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-6)
        for step in range(2):
            model(*batch(step)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()


dist.init_process_group("gloo")
compare(lambda: train(1, float(sys.argv[1])), lambda: train(dist.get_world_size(), float(sys.argv[1])))
dist.destroy_process_group()
