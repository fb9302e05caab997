"""Worlds: who makes them, who closes them, and what their errors are."""

import subprocess
import sys
import tempfile

import intarsia as it
import torch
from _harness import on_ranks, refuses, run




def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_a_process_alone_is_a_world_of_one():
    result = python("import intarsia as it; print(it.world(), it.init(), it.mesh(), it.world().closed())")
    assert result.stdout == "<World rank 0 of 1> [x=1] [x=1] False\n", result.stderr


def test_importing_connects_nothing():
    result = python("import intarsia as it; assert it._world._world is None")
    assert result.returncode == 0, result.stderr


def test_defaults_are_made_and_closed():
    world = it.connect()
    assert it.world() is world and not world.closed()
    refuses(ValueError, "close() it first", it.connect)
    refuses(ValueError, "options come too late", lambda: it.world(timeout=3))
    refuses(ValueError, "holds rank 3", lambda: it.init({"x": 4}))
    it.close()
    assert world.closed() and "closed" in repr(world)
    it.close()


def test_meshes_and_options_in_init():
    it.close()
    assert it.init("[a=1,b=1]", timeout=7.5).names() == ["a", "b"] and it.world().timeout() == 7.5
    it.close()
    refuses(ValueError, "no default mesh", it.mesh)


def test_a_world_may_name_its_topology():
    it.close()
    refuses(ValueError, "cannot read nowhere.json", lambda: it.connect(topology="nowhere.json"))
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write('{"levels": [{"latency_us": 2, "overhead_us": 8, "gigabytes_per_s": 200}]}')
        file.flush()
        world = it.connect(topology=file.name)
        assert it._C.topology(world) == it._C.Topology.load(file.name) != it._C.Topology()
        it.close()


def test_rendezvous_is_data():
    assert it.read_rendezvous(it.Launcher.none).size == 1
    assert it.WorldError.__mro__[1:3] == (torch.distributed.DistError, RuntimeError)


@on_ranks(2)
def test_processes_meet_and_close_at_exit():
    assert it.connect(timeout=30).size() == 2
    it.full(it.ones((2,), "S(0)", mesh={"x": 2}))  # leaves a Gloo group open for atexit


@on_ranks(2)
def test_processes_share_memory():
    it.close()
    it.init({"x": 2}, backend="shm")
    t = it.from_local(torch.arange(4.0), "P(sum)")
    assert torch.equal(it.full(it.redistribute(t, "S(0)")), 2 * torch.arange(4.0))
    assert "reduce_scatter over" in it.world().ledger().dump(8)  # Gloo is not asked for it
    it.close()


def test_the_variable_names_the_backend():
    code = "import os; os.environ['INTARSIA_BACKEND'] = 'telegraph'; import intarsia as it; it.connect()"
    assert "there is no backend 'telegraph'; use gloo, shm, nccl or ucc" in python(code).stderr


@on_ranks(2, "torchrun")
def test_processes_meet_under_torchrun():
    it.init({"x": 2})
    assert torch.equal(it.full(it.ones((3,), "S(0)")), torch.ones(3))


@on_ranks(3)
def test_a_rank_that_does_not_come_is_an_error():
    mesh = it.init(timeout=1.5)
    t = it.distribute(torch.ones(3), "S(0)")
    it.full(t)
    if it.world().rank() == 2:
        import time

        time.sleep(4)
        return
    refuses(it.WorldError, "all_gather", lambda: it.full(t))
    assert mesh.size() == 3


if __name__ == "__main__":
    run(globals())
