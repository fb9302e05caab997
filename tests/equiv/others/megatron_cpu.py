"""megatron-core as it is on PyPI, with gloo and without a GPU: what the reproductions share.

It asks torch for CUDA in places: `device="cuda"`, `torch.cuda.current_device()`, `param.grad.type() == "torch.cuda.FloatTensor"`, and for the current
stream. Here torch is told, from outside, to answer with the CPU; no line of megatron-core is changed."""

import contextlib
import os
from unittest import mock

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # its fused ops would be compiled

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import initialize_rng_tracker
from megatron.core.transformer import TransformerConfig
from torch.overrides import TorchFunctionMode

VOCABULARY, LENGTH, ROWS, WIDTH, HEADS = 32, 8, 2, 16, 4


class CpuAnswers(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if "cuda" in str(kwargs.get("device", "")):
            kwargs["device"] = "cpu"
        out = func(*args, **kwargs)
        return out.replace("torch.", "torch.cuda.") if func is torch.Tensor.type and isinstance(out, str) else out


@contextlib.contextmanager
def megatron(tp):
    """A program with this size of tensor parallelism: 1 is a serial one on each rank."""
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=tp)
    initialize_rng_tracker(inference_rng_tracker=True, force_reset=True)  # the one that has no states of CUDA: nothing here draws
    try:
        with CpuAnswers(), mock.patch("torch.cuda.current_device", lambda: torch.device("cpu")), mock.patch("torch.cuda.current_stream"):
            yield
    finally:
        parallel_state.destroy_model_parallel()


def config(tp, **options):
    return TransformerConfig(num_layers=1, hidden_size=WIDTH, ffn_hidden_size=2 * WIDTH, num_attention_heads=HEADS, tensor_model_parallel_size=tp,
                             use_cpu_initialization=True, hidden_dropout=0.0, attention_dropout=0.0, bias_dropout_fusion=False,
                             gradient_accumulation_fusion=False, **options)  # fmt: skip


def fill(model, tp, sharded=()):
    """The same values on any number of ranks: each parameter from a generator of its own, and this rank's piece of it. `sharded`: ends of names of
    parameters of which each rank has a piece, along the first dimension, though the package does not mark them."""
    for i, (name, parameter) in enumerate(model.named_parameters()):
        dim = parameter.partition_dim if getattr(parameter, "tensor_model_parallel", False) else 0 if name.endswith(tuple(sharded)) else None
        shape = list(parameter.shape)
        if dim is not None:
            shape[dim] *= tp
        value = 0.3 * torch.randn(shape, generator=torch.Generator().manual_seed(i))
        if "layernorm.weight" in name:
            value += 1
        parameter.data.copy_(value if dim is None else value.chunk(tp, dim)[dist.get_rank() % tp])


def batch(step):
    generator = torch.Generator().manual_seed(100 + step)
    tokens = torch.randint(0, VOCABULARY, (ROWS, LENGTH), generator=generator)
    return tokens, (3 * tokens + 1) % VOCABULARY


def positions_and_mask():
    mask = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).triu(1)  # what is not seen
    return torch.arange(LENGTH).expand(ROWS, -1), mask
