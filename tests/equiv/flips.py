"""One flipped bit in one replica: is it found, and is the tensor named and the rank? And what does looking for it cost?

    launch.py -n 4 -- flips.py COUNT PAIRS

Half of the flips are in a model that is sharded over two ranks and copied twice, half in a plain one in DistributedDataParallel.
"""

import random
import statistics
import sys
import time

import intarsia as it
import torch
import torch.distributed as dist
from torch import nn

WIDTH, ROWS = 128, 16
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def model_of():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, WIDTH), nn.LayerNorm(WIDTH), *[nn.Linear(WIDTH, WIDTH) for _ in range(6)], nn.Linear(WIDTH, 10))


def stepper(model, place):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step():
        torch.manual_seed(1)
        x, y = place(torch.randn(4 * ROWS, 32)), place(torch.randint(0, 10, (4 * ROWS,)))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return optimizer, step


def hybrid():
    model = model_of()
    it.fully_shard(model, mesh=it.mesh(), shard="dp", replicate="copy")
    return model, *stepper(model, lambda t: it.distribute(t, "S(0),S(0)"))


def plain():
    model = nn.parallel.DistributedDataParallel(model_of())
    return model, *stepper(model, lambda t: t.chunk(4)[dist.get_rank()])


def held(tensor):
    """This rank's numbers, to be written."""
    return it.local(tensor) if it.has_layout(tensor) else tensor


def flip(tensor, place, bit):
    flat = held(tensor.detach()).view(-1)
    bits = flat.view(INTEGERS[flat.element_size()])
    bits[place] ^= torch.tensor(1, dtype=torch.int64).bitwise_left_shift(bit).to(bits.dtype)


def is_found(model, optimizer, random):
    """Flips one bit on one rank, looks, and flips it back."""
    tensors = [(name, p) for name, p in model.named_parameters()]
    tensors += [(f"{key} of {name}", value) for name, p in tensors for key, value in optimizer.state[p].items()]
    name, tensor = random.choice(tensors)
    rank, size = random.randrange(4), held(tensor.detach()).element_size()
    place, bit = random.randrange(1 << 30), random.randrange(8 * size - 1)  # not the sign: zeros of both signs are the same
    count = torch.tensor([held(tensor.detach()).numel()])
    dist.broadcast(count, rank)
    if count.item() == 0:
        return is_found(model, optimizer, random)
    place %= count.item()
    if dist.get_rank() == rank:
        flip(tensor, place, bit)
    try:
        it.assert_replicas(model, optimizer)
        text = "not found"
    except it.WorldError as error:
        text = str(error)
    if dist.get_rank() == rank:
        flip(tensor, place, bit)
    found = f"'{name}'" in text and f"rank {rank} " in text
    if not found and dist.get_rank() == 0:
        print(f"bit {bit} of element {place} of {name} on rank {rank}: {text}", flush=True)
    return found


def main(count, pairs):
    dist.init_process_group("gloo")
    it.init("[copy=2,dp=2]")
    found, prices = 0, []
    for make in (hybrid, plain):
        model, optimizer, step = make()
        for _ in range(3):
            step()
        it.assert_replicas(model, optimizer)
        draws = random.Random(7)
        found += sum(is_found(model, optimizer, draws) for _ in range(count // 2))
        it.assert_replicas(model, optimizer)
        times = [], []
        for _ in range(pairs):
            for kept, call in zip(times, (step, lambda: it.assert_replicas(model, optimizer)), strict=True):
                dist.barrier()
                begin = time.perf_counter()
                call()
                kept.append(time.perf_counter() - begin)
        one, look = map(statistics.median, times)
        prices.append(look / (100 * one))
        if dist.get_rank() == 0:
            print(f"{make.__name__}: a step {one * 1e3:.2f} ms, a look {look * 1e3:.2f} ms", flush=True)
    if dist.get_rank() == 0:
        print(f"{found} of {count} flipped bits found and named; every 100 steps at most {max(prices):.2%} of a step's time")
    dist.destroy_process_group()


main(*map(int, sys.argv[1:]))
