"""Megatron-LM #7452, finding 8 (https://github.com/NVIDIA/Megatron-LM/issues/7452, open; a fix is proposed in #7530).

The learnable attention sink `softmax_offset` has a number for each head, so each rank of tensor parallelism has those of its own heads. It is not
marked so, and the norm by which gradients are clipped counts those of the first rank only. All gradients are clipped too little: equiv names the module
whose gradient is the first on the way back. The package is as it is on PyPI, and the fault is its own.

    launch.py -n 2 -- megatron_sink_norm.py as-is|marked

`marked`: this program sets the mark itself, on the parameter of the model that it made.
"""

import sys

import torch.distributed as dist
from compared import compare
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.tensor_parallel import set_tensor_model_parallel_attributes
from megatron_cpu import LENGTH, VOCABULARY, batch, config, fill, megatron, positions_and_mask


def train(tp, marked):
    with megatron(tp):
        options = config(tp, softmax_type="learnable")
        model = GPTModel(options, get_gpt_layer_local_spec(), vocab_size=VOCABULARY, max_sequence_length=LENGTH)
        fill(model, tp, sharded=["softmax_offset"])
        for layer in model.decoder.layers if marked else []:
            set_tensor_model_parallel_attributes(layer.self_attention.core_attention.softmax_offset, True, 0, 1)
        model = DistributedDataParallel(options, DistributedDataParallelConfig(), model)
        optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="sgd", lr=0.1, clip_grad=0.05, sgd_momentum=0.0), [model])
        for step in range(2):
            tokens, labels = batch(step)
            model.zero_grad_buffer()
            model(tokens, *positions_and_mask(), labels=labels).mean().backward()
            finalize_model_grads([model])
            optimizer.step()


dist.init_process_group("gloo")
compare(lambda: train(1, sys.argv[1] == "marked"), lambda: train(dist.get_world_size(), sys.argv[1] == "marked"))
dist.destroy_process_group()
