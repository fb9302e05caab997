"""Training steps, measured and predicted: bytes at the peak and seconds.

    step_times.py real [--quick] [NAME ...]   on ranks: medians of what they take
    step_times.py predicted COSTS [NAME ...]  in one process, by the file of `intarsia calibrate`
    step_times.py large COSTS                 predicted: a model of 126 layers on 131,072 ranks

Both run the same programs, and print a line of JSON for each."""

import json
import pathlib
import statistics
import sys
import time
from dataclasses import dataclass, replace

import intarsia as it
import torch
from torch.nn import functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "training"))
import llama_model  # noqa: E402
from simulated import lay_out_activations, predict_llama  # noqa: E402

LLAMA = llama_model.Config(dim=256, layers=4, heads=8, kv_heads=4, hidden=704, vocab=1024, sequence=128)
WARM, STEPS, TURNS, QUICK_TURNS = 1, 4, 5, 1  # steps of each setup in each turn


@dataclass(frozen=True)
class Setup:
    mesh: str
    mode: str  # sharded, kept (gathered until backward), sequence (parallel too), laid out: as the layouts say
    batch: int
    config: llama_model.Config = LLAMA

    def ranks(self):
        return it.Mesh(self.mesh).size()


WIDE = replace(LLAMA, dim=384, hidden=1536, layers=2)
CHECKPOINTED = replace(LLAMA, checkpoint=True)
SETUPS = {
    "sharded on 2": Setup("[dp=2]", "sharded", 16),
    "sharded on 2, kept": Setup("[dp=2]", "kept", 16),
    "sharded on 2, computed again": Setup("[dp=2]", "sharded", 16, CHECKPOINTED),
    "sharded on 2, wide": Setup("[dp=2]", "sharded", 8, WIDE),
    "data parallel on 2": Setup("[dp=2]", "laid out", 16),
    "tensor parallel on 2": Setup("[tp=2]", "laid out", 8),
    "tensor parallel on 2, wide": Setup("[tp=2]", "laid out", 8, WIDE),
    "sharded on 4": Setup("[dp=4]", "sharded", 32),
    "sharded on 4, wide": Setup("[dp=4]", "sharded", 16, WIDE),
    "data parallel on 4": Setup("[dp=4]", "laid out", 32),
    "tensor parallel on 4": Setup("[tp=4]", "laid out", 8),
    "sharded on 2, tensor parallel on 2": Setup("[dp=2,tp=2]", "sharded", 16),
    "data parallel on 2, tensor parallel on 2": Setup("[dp=2,tp=2]", "laid out", 16),
    "sharded on 2, sequence parallel on 2": Setup("[dp=2,tp=2]", "sequence", 16),
}


def program(setup):
    """Makes model and optimizer, trains a step, and returns both with the next step."""
    config, mesh = setup.config, it.Mesh(setup.mesh)
    axes = [name for name in ("dp", "tp") if f"{name}=" in setup.mesh]
    uses = {name: text if "dp" in axes else text.split(",")[1] for name, text in llama_model.layouts().items()}
    torch.manual_seed(0)
    with torch.device("meta"):
        model = llama_model.Llama(config)
    if setup.mode in ("sharded", "kept", "sequence"):
        it.fully_shard(
            model,
            mesh=mesh,
            layouts=uses if "tp" in axes else None,
            blocks=["blocks.*"],
            dims=llama_model.dims() if "tp" in axes else None,
            keep_after_forward=setup.mode == "kept",
        )
    else:
        it.parallelize(model, mesh, uses if "tp" in axes else {})
    if setup.mode == "sequence":
        lay_out_activations(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    cos, sin = llama_model.rotary_table(config.sequence, config.dim // config.heads)
    entry = ",".join({"dp": "S(0)", "tp": "R"}[axis] for axis in axes)
    tokens = it.randint(0, config.vocab, (setup.batch, config.sequence), entry, mesh=mesh)

    def step():
        optimizer.zero_grad()
        logits = model(tokens, cos, sin)
        F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        del logits
        optimizer.step()

    step()
    return model, optimizer, step


def measured(setups, turns):
    """Steps of all, a few of each in turn, so that a slow minute does not fall on one of them."""
    meter, kept, peaks, times = it.MemoryMeter(), {}, {}, {name: [] for name in setups}
    for name, setup in setups.items():
        before = meter.live()
        meter.reset()
        kept[name] = program(setup)
        peaks[name] = meter.peak() - before
    for _ in range(turns):
        for name in setups:
            for i in range(WARM + STEPS):
                start = time.perf_counter()
                kept[name][2]()
                if i >= WARM:
                    times[name].append(time.perf_counter() - start)
    return {name: {"peak": peaks[name], "seconds": statistics.median(times[name])} for name in setups}


def predicted(setup, costs):
    prediction = it.predict(lambda: program(setup), setup.mesh)
    taken = prediction.time(costs)
    return {"peak": prediction.peak, "seconds": taken.total, "words": str(taken)}


def large(costs):
    """Llama 3.1 405B, of 126 layers, on 131,072 ranks: fully sharded, tensor and sequence parallel."""
    prediction = predict_llama(llama_model.LLAMA_405B, "[dp=16384,tp=8]", timed=True)
    return {"name": "405B on 131,072 ranks", "words": f"{prediction.time(costs)}; {prediction}"}


def main():
    what, *names = [argument for argument in sys.argv[1:] if argument != "--quick"]
    if what == "real":
        ranks = it.init().size()
        chosen = {n: s for n, s in SETUPS.items() if s.ranks() == ranks and (not names or n in names)}
        for name, found in measured(chosen, QUICK_TURNS if "--quick" in sys.argv else TURNS).items():
            if it.world().rank() == 0:
                print(json.dumps({"name": name} | found), flush=True)
        return
    costs = it.StepCosts.load(names.pop(0))
    if what == "large":
        print(json.dumps(large(costs)))
        return
    for name in names or SETUPS:
        print(json.dumps({"name": name} | predicted(SETUPS[name], costs)), flush=True)


if __name__ == "__main__":
    main()
