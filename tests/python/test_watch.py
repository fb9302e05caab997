"""What intarsia.watch leaves as it is. What it finds is shown by tests/guard/faults.py --backend torch."""

import os
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from _harness import on_ranks, refuses, run
from torch import nn

import intarsia as it


def check_collectives(group=None):
    """Collectives of torch.distributed give what they should, however they are waited for."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    total = float(sum(range(1, size + 1)))
    mine = torch.full((2, 3), rank + 1.0)
    t = mine.clone()
    dist.all_reduce(t, group=group)
    assert t.eq(total).all()
    works = [dist.all_reduce(mine.clone(), op=dist.ReduceOp.MAX, group=group, async_op=True) for _ in range(5)]
    assert all(work.wait() for work in works)
    t = mine.clone()
    future = dist.all_reduce(t, group=group, async_op=True).get_future()
    assert torch.stack(future.wait()).eq(total).all() and t.eq(total).all()
    out = [torch.empty(2, 3) for _ in range(size)]
    dist.all_gather(out, mine, group=group)
    assert [o[0, 0].item() for o in out] == [r + 1.0 for r in range(size)]
    flat = torch.empty(2 * size, 3)
    dist.all_gather_into_tensor(flat, mine, group=group)
    assert flat.equal(torch.cat(out))
    part = torch.empty(2, 3)
    dist.reduce_scatter_tensor(part, torch.ones(2 * size, 3), group=group)
    assert part.eq(size).all()
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank}, group=group)
    assert [o["rank"] for o in objects] == list(range(size))
    dist.barrier(group=group)


def check_messages():
    t = torch.full((3,), float(dist.get_rank()))
    if dist.get_rank() == 0:
        dist.send(t, 1)
    elif dist.get_rank() == 1:
        dist.recv(t, 0)
        assert t.eq(0).all()


@on_ranks(2)
def test_programs_of_torch_run_as_before():
    it.watch()
    it.watch()  # once more is nothing
    dist.init_process_group("gloo")
    check_collectives()
    check_messages()
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)))
    for step in range(3):
        model(torch.full((2, 4), float(step + dist.get_rank()))).sum().backward()
    alone = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    alone.load_state_dict(model.module.state_dict())
    for step in range(3):
        for rank in range(2):
            (alone(torch.full((2, 4), float(step + rank))).sum() / 2).backward()
    for got, wanted in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(got.grad, wanted.grad)


@on_ranks(2)
def test_a_watched_group_can_be_adopted():
    it.init({"dp": 2})
    assert it.distribute(torch.arange(6.0), "S(0)").sum().item() == 15
    check_collectives()
    it.close()
    check_collectives()
    dist.destroy_process_group()


@on_ranks(4)
def test_messages_are_compared():
    dist.init_process_group("cpu:intarsia_gloo")
    other = dist.get_rank() ^ 1
    for tag in (0, 3, 0):
        mine, theirs = torch.full((4,), float(dist.get_rank())), torch.empty(2, 2)
        works = [dist.isend(mine, other, tag=tag), dist.irecv(theirs, other, tag=tag)]
        assert all(work.wait() for work in works)
        assert theirs.eq(other).all()
    check_messages()
    check_collectives()
    dist.barrier()
    text = "ranks disagree about call #1 of group of messages from rank 0 to rank 1 in 'default' of ranks 0, 1, 2, 3, tag 3: rank 0 makes message of"
    if dist.get_rank() == 0:
        refuses(RuntimeError, text, lambda: (dist.send(torch.ones(3), 1, tag=3), dist.barrier()))
    elif dist.get_rank() == 1:
        time.sleep(0.3)
        refuses(RuntimeError, text, lambda: dist.recv(torch.ones(3, dtype=torch.int32), 0, tag=3))


@on_ranks(3)
def test_groups_that_are_there_already_are_watched_from_then_on():
    dist.init_process_group("gloo")
    pair = dist.new_group([0, 2], group_desc="pair")
    check_collectives()
    it.watch()
    others = dist.new_group([1, 2])
    check_collectives()
    for group in (pair, others):
        if dist.get_rank(group) >= 0:
            check_collectives(group)
    dist.barrier()
    if dist.get_rank() != 1:
        refuses(
            RuntimeError,
            "of group 'pair' of ranks 0, 2: rank 0 makes all_reduce (sum) of Float [1]",
            lambda: dist.all_reduce(torch.ones(1 + dist.get_rank()), group=pair),
        )


def run_command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "intarsia", *arguments], capture_output=True, text=True, timeout=120, env=os.environ
    )


def test_run_passes_on_what_the_command_says():
    done = run_command("run", "--", sys.executable, "-c", "import sys; print(sys.argv[1:]); sys.exit(3)", "--", "a b")
    assert done.returncode == 3 and done.stdout == "['--', 'a b']\n", done
    assert "usage: python -m intarsia run" in run_command("run").stderr and run_command().returncode == 2 and run_command("run", "--").returncode == 2
    missing = run_command("run", "--", "no-such-command")
    assert missing.returncode == 127 and "[run] no-such-command cannot be run: No such file" in missing.stderr


def test_run_leaves_programs_without_torch_distributed_alone():
    program = "import sys; assert 'torch' not in sys.modules and 'intarsia' not in sys.modules; print('ran')"
    done = run_command("run", "--", sys.executable, "-c", program)
    assert done.stdout == "ran\n" and done.returncode == 0, done
    alone = "import torch.distributed as d; d.init_process_group('gloo', rank=0, world_size=1, store=d.HashStore()); d.barrier()"
    done = run_command("run", "--", sys.executable, "-c", f"{alone}; print('ran')")
    assert done.stdout == "ran\n" and done.returncode == 0, done


def test_a_sitecustomize_of_the_user_still_runs():
    with tempfile.TemporaryDirectory() as where:
        with open(os.path.join(where, "sitecustomize.py"), "w") as file:
            file.write("print('mine')\n")
        paths = os.pathsep.join([where, os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "intarsia", "run", "--", sys.executable, "-c", "print('ran')"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | {"PYTHONPATH": paths})
        assert done.stdout.endswith("mine\nran\n"), done


if __name__ == "__main__":
    run(globals())
