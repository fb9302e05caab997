"""A training run saved in each of 12 meshes and layouts and loaded in each of the others, on 4 processes.

    round_trip.py FOLDER [--quick]

Uneven, strided and ordered layouts, empty pieces, fully_shard and tensor parallel among them. After each load all tensors of model and
optimizer are those that were saved, bit for bit, and so are the generator and the position in the data; training then goes on as the
run that was not interrupted, bit for bit in the same layouts. Rank 0 prints how many loads there were."""

import hashlib
import sys

import intarsia as it
import torch
from torch import nn

FLAT, SQUARE = "[x=4]", "[a=2,b=2]"
# Weights are 7 x 6, 5 x 7 and 3 x 5, biases 7, 5 and 3: no size is a multiple of 4.
KINDS = {
    "replicated": (FLAT, {}),
    "rows": (FLAT, {"*": "S(0)"}),
    "columns": (FLAT, {"*.weight": "S(1)"}),
    "tensor parallel": (FLAT, {"0.*": "S(0)", "2.weight": "S(1)"}),
    "rows of two axes": (SQUARE, {"*": "S(0),S(0)"}),
    "in the other order": (SQUARE, {"*": "S(0),S(0) | 0:b>a"}),
    "both dimensions": (SQUARE, {"*.weight": "S(0),S(1)", "*.bias": "R,S(0)"}),
    "strided": (FLAT, {"*.weight": "SS(0,2)", "*.bias": "SS(0,3)"}),
    "strided and sharded": (SQUARE, {"*.weight": "SS(1,2),S(0)"}),
    "fully sharded": (FLAT, "fully_shard"),
    "hybrid": (SQUARE, "hybrid"),
    "two ranks of four": ("[x=2]", {"*": "S(0)"}),
}


class Run:
    """A model, its optimizer, a generator for its data, and how much of them it has seen."""

    def __init__(self, kind):
        mesh, layouts = KINDS[kind]
        self.mesh = it.Mesh(mesh)
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3)).double()
        if layouts == "fully_shard":
            it.fully_shard(self.model, mesh=self.mesh, shard="x")
        elif layouts == "hybrid":
            it.fully_shard(self.model, mesh=self.mesh, shard="b", replicate="a")
        else:
            self.model = it.parallelize(self.model, self.mesh, layouts)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.generator = torch.Generator().manual_seed(3)
        self.samples = 0

    def state(self):
        return {"model": self.model, "optimizer": self.optimizer, "generator": self.generator}

    def steps(self, count):
        for _ in range(count):
            x = torch.randn(8, 6, generator=self.generator, dtype=torch.double)
            self.samples += 8
            loss = self.model(it.distribute(x, "R" if self.mesh.axes() == 1 else "R,R", mesh=self.mesh)).square().sum()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return self

    def tensors(self):
        """All, in full, on every rank of the mesh."""
        states = [(f"{i}.{k}", t) for i, p in enumerate(self.model.parameters()) for k, t in self.optimizer.state[p].items()]
        named = [*self.model.state_dict().items(), *states]
        return {name: (it.full(t.detach()) if it.has_layout(t) else t).clone() for name, t in named}


def digest(run):
    everything = hashlib.sha256()
    for name, tensor in sorted(run.tensors().items()):
        everything.update(name.encode() + tensor.contiguous().numpy().tobytes())
    everything.update(run.generator.get_state().numpy().tobytes() + str(run.samples).encode())
    return everything.hexdigest()


def close(a, b):
    return all(torch.allclose(a[name], b[name], rtol=1e-9, atol=1e-11) for name in a)


def main(folder, quick):
    world = it.connect()
    names = list(KINDS)
    sources = names[::4] if quick else names
    loads = 0
    for number, kind in enumerate(sources):
        run = Run(kind)
        member = run.mesh.contains(world.rank())
        run.steps(3)
        saved = digest(run) if member else None
        it.save_checkpoint(folder, number, {**run.state(), "samples": run.samples})
        run.steps(2)
        later = (digest(run), run.tensors()) if member else None
        for other in names:
            again = Run(other)
            loaded = it.load_checkpoint(folder, again.state(), step=number)
            again.samples = loaded.values["samples"]
            here = again.mesh.contains(world.rank())
            # All ranks of the mesh gather; those that were in the other one know what it should be.
            now = digest(again) if here else None
            assert not (here and member) or now == saved, (kind, other)
            again.steps(2)
            if here:
                tensors, now = again.tensors(), digest(again)
                assert not member or close(tensors, later[1]), (kind, other)
                assert not member or other != kind or now == later[0], (kind, other)
            loads += 1
    if world.rank() == 0:
        print(f"{loads} loads of {len(sources)} saves in {len(names)} meshes and layouts: equal bit for bit", flush=True)


main(sys.argv[1], "--quick" in sys.argv)
