"""Processes that are forked from one with a world: workers that load data, and children that exit."""

import multiprocessing
import os
import sys

import torch
from _harness import on_ranks, run

import intarsia as it

FORK = multiprocessing.get_context("fork")
BACKENDS = ("gloo", "shm")
WORDS = "belongs to the process that this one was forked from, and cannot be used here; work with plain tensors"


class Rows(torch.utils.data.Dataset):
    def __init__(self, ranks):
        self.whole = torch.arange(32.0 * 6).view(32, 6).div(100)
        self.mine = range(32)[it.world().rank() :: ranks]

    def __len__(self):
        return len(self.mine)

    def __getitem__(self, i):
        return self.whole[self.mine[i]]


def child(work):
    """What `work` raises in a forked process, whose exit code must be 0."""
    texts = FORK.Queue()

    def body():
        try:
            work()
            texts.put("nothing was raised")
        except Exception as error:
            texts.put(f"{type(error).__name__} {error}")

    process = FORK.Process(target=body)
    process.start()
    text = texts.get(timeout=30)
    process.join(30)
    assert process.exitcode == 0, process.exitcode
    return text


def total(value):
    return it.full(it.from_local(torch.full((3,), value), "P(sum)")).tolist()


def train(loader, shard):
    """A model that is trained on batches from workers; its losses."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
    replica = shard(model)  # noqa: F841  lives as long as the model
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    losses = []
    for _ in range(2):
        for batch in loader:
            optimizer.zero_grad()
            rows = it.from_local(batch, "S(0)") if shard is it.fully_shard else batch  # each rank has its own
            loss = model(rows).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(float(it.full(loss) if it.has_layout(loss) else loss))
    return losses


@on_ranks(2)
def test_workers_load_data_for_training():
    for backend in BACKENDS:
        it.init({"dp": 2}, backend=backend, timeout=60)
        data = Rows(2)
        here = torch.utils.data.DataLoader(data, batch_size=4)
        workers = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork")
        kept = torch.utils.data.DataLoader(
            data, batch_size=4, num_workers=1, multiprocessing_context="fork", persistent_workers=True
        )
        for shard in (it.replicate, it.fully_shard):
            expected = train(here, shard)
            assert len(expected) == 8 and train(workers, shard) == expected and train(kept, shard) == expected
        assert total(1.0) == [2.0] * 3
        it.close()


@on_ranks(2)
def test_children_leave_the_world_alone():
    for backend in BACKENDS:
        it.init(backend=backend, timeout=60)
        assert total(1.0) == [2.0] * 3
        x = it.distribute(torch.arange(6.0), "S(0)")
        assert f"WorldError [World] group [g=2] {WORDS}" in child(lambda: it.full(x))
        assert WORDS in child(lambda: it.full(x * 2 + 1))
        assert child(lambda: (x * 2).sum) == "nothing was raised"  # sends nothing
        assert child(it.close) == "nothing was raised"
        for leave in (sys.exit, os._exit):
            process = os.fork()
            if process == 0:
                leave(0)
            assert os.waitpid(process, 0)[1] == 0
        assert total(2.0) == [4.0] * 3 and torch.equal(it.full(x), torch.arange(6.0))
        it.close()


def test_a_fork_may_have_worlds_of_its_own():
    def inside():
        with it.lockstep("[a=2]"):
            assert it.full(it.ones([4], "S(0)")).sum() == 4

    with it.lockstep("[a=2]"):
        x = it.distribute(torch.arange(4.0), "S(0)")
        assert child(inside) == "nothing was raised"
        # All ranks of lockstep came along.
        assert child(lambda: it.full(x)) == "nothing was raised"
        assert torch.equal(it.full(x), torch.arange(4.0))


if __name__ == "__main__":
    run(globals())
