"""PyTorch's own context parallel on the CPU: what it says.

    launch.py -n 2 -- pytorch.py

Rank 0 prints `runs`, or the error.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
q, k, v = (torch.randn(1, 4, 256, 32) for _ in range(3))
try:
    with context_parallel(mesh, buffers=[q, k, v], buffer_seq_dims=[2, 2, 2], no_restore_buffers={q, k, v}):
        for t in (q, k, v):
            t.requires_grad_()
        F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
    said = "runs"
except Exception as error:  # noqa: BLE001
    said = f"{type(error).__name__}: {str(error).splitlines()[0]}"
if dist.get_rank() == 0:
    print(said, flush=True)
