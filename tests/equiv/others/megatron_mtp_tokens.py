"""Megatron-LM #7452, finding 3 (https://github.com/NVIDIA/Megatron-LM/issues/7452, open; a fix is proposed in #7570).

With a loss per token, multi-token prediction weighs its own loss by the tokens that count before and after labels are shifted, as this rank has them.
With data parallelism these quotients differ between ranks whose batches have other numbers of tokens, and each rank's loss has another weight. The
package is as it is on PyPI, and the fault is its own. It came with #3159: 0.16.1 has no such quotient, and is equal.

    launch.py -n 2 -- megatron_mtp_tokens.py uneven|even
"""

import sys

import torch
import torch.distributed as dist
from compared import compare
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec, get_gpt_mtp_block_spec
from megatron_cpu import LENGTH, ROWS, VOCABULARY, batch, config, fill, megatron, positions_and_mask


def train(ranks, even):
    with megatron(1):
        options = config(1, mtp_num_layers=1, calculate_per_token_loss=True)
        layers = get_gpt_layer_local_spec()
        model = GPTModel(options, layers, vocab_size=VOCABULARY, max_sequence_length=LENGTH,
                         mtp_block_spec=get_gpt_mtp_block_spec(options, layers, use_transformer_engine=False))  # fmt: skip
        fill(model, 1)
        model = DistributedDataParallel(options, DistributedDataParallelConfig(), model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(2):
            counts = torch.arange(LENGTH) < torch.tensor([[LENGTH], [LENGTH if even else 3]])
            rows = slice(None) if ranks == 1 else slice(dist.get_rank(), dist.get_rank() + 1)
            tokens, labels, mask = (t[rows] for t in (*batch(step), counts.float()))
            positions, unseen = positions_and_mask()
            model.zero_grad_buffer()
            loss = (model(tokens, positions[rows], unseen, labels=labels, loss_mask=mask) * mask).sum()
            loss.backward()
            finalize_model_grads([model], num_tokens=mask.sum().int())  # adds up over ranks, and divides by all tokens
            for parameter in model.parameters():
                parameter.grad = parameter.main_grad.clone()
            optimizer.step()


dist.init_process_group("gloo")
assert dist.get_world_size() == ROWS, "a row for each rank"
compare(lambda: train(1, sys.argv[1] == "even"), lambda: train(ROWS, sys.argv[1] == "even"))
dist.destroy_process_group()
