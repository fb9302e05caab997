"""torch.compile with distributed tensors: a graph break with a hint, an error under fullgraph=True."""

import intarsia as it
import torch
from _harness import refuses, run
from torch import nn


def ready():
    torch._dynamo.reset()
    return it.mesh() if it._world._mesh is not None else it.init()


def test_a_function_runs_uncompiled():
    ready()
    t = it.distribute(torch.arange(4.0), "S(0)")
    compiled = torch.compile(lambda x: x * 2 + 1, backend="aot_eager")
    assert torch.equal(it.full(compiled(t)), torch.arange(4.0) * 2 + 1)
    assert torch.equal(compiled(torch.ones(4)), torch.full((4,), 3.0))


def test_a_function_that_was_compiled_for_plain_tensors_runs_too():
    ready()
    compiled = torch.compile(lambda x: x * 2 + 1, backend="aot_eager")
    compiled(torch.ones(4))
    t = it.distribute(torch.arange(4.0), "S(0)")
    assert it.has_layout(compiled(t)) and not it.has_layout(compiled(torch.ones(4)))


def test_a_graph_that_must_be_whole_is_an_error_with_a_hint():
    ready()
    t = it.distribute(torch.arange(4.0), "S(0)")
    compiled = torch.compile(lambda x: x * 2 + 1, backend="aot_eager", fullgraph=True)
    hint = "cannot trace Intarsia's distributed tensors, here f32[4@x] on [x=1]"
    refuses(torch._dynamo.exc.Unsupported, hint, lambda: compiled(t))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x):
        return self.linear(x).relu() + self.shift


def test_modules_with_distributed_parameters():
    mesh = ready()
    module = it.parallelize(Block(), mesh, {"linear.*": "S(0)"})
    expected = module(torch.ones(2, 4))
    result = torch.compile(module, backend="aot_eager")(torch.ones(2, 4))
    assert torch.equal(it.full(result), it.full(expected))
    result.sum().backward()
    assert it.has_layout(module.linear.weight.grad)
    torch._dynamo.reset()
    whole = torch.compile(module, backend="aot_eager", fullgraph=True)
    refuses(torch._dynamo.exc.Unsupported, "local_region", lambda: whole(torch.ones(2, 4)))


def test_the_body_of_a_local_region_may_be_compiled():
    ready()
    t = it.distribute(torch.arange(4.0), "S(0)")
    body = torch.compile(lambda x: x.sin() + 1, backend="aot_eager", fullgraph=True)
    assert torch.equal(it.full(it.local_region(body, [t], ["S(0)"], "S(0)")), torch.arange(4.0).sin() + 1)


def test_export_and_fake_tensors_refuse():
    ready()
    from torch._subclasses.fake_tensor import FakeTensorMode, UnsupportedFakeTensorException

    t = it.distribute(torch.arange(4.0), "S(0)")
    refuses(UnsupportedFakeTensorException, "cannot trace", lambda: FakeTensorMode().from_tensor(t))


if __name__ == "__main__":
    run(globals())
