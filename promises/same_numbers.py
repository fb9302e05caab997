"""examples/llama, in C++ and in Python, trained on ranks beside one process: every parameter and every gradient after some steps, and
initial parameters bit for bit. For training/1 and context/6.

Tolerances. A layout changes nothing but the order in which sums are added, so results may differ as far as rounding may
move them. How far that is, after so many ops and steps, is measured for each kind of tensor, such as `wq.weight.grad`: the root
mean square of what float32 differs by from float64 in one process, over that of the tensor; E is the largest over all layers
and three seeds (--quick: two), as one sample of a rounding error says little. Rounding errors are proportional to the dtype's
unit as long as they are small, so a distributed run may differ from the run of its dtype on one process

    in float32 by    DEPTH * E,
    in float64 by    DEPTH * E * 2^-53 / 2^-24        (between 1e-15 and 1e-13),

in the same measure. DEPTH = 3 + log2(n): two roundings of one sum differ at most by twice what one of them is off; some ops of
a plain tensor, such as norms, are fused kernels where those of a distributed one are composed, on one rank too, which rounds
once more; and cutting sums over n ranks makes their trees log2(n) levels deeper, each of which does. In float64 the largest difference of an element is also held to 1e-10 of the largest element.

AdamW runs with an epsilon of 1e-3. With its usual 1e-8 an element whose gradient is nearly zero takes a whole step in a
direction that rounding decides, in float32 as in float64, and errors are not proportional to the unit."""

import dataclasses
import functools
import math
import os
import pathlib
import re
import sys
import tempfile

import torch

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "launch"))
import launch  # noqa: E402

BUILD = pathlib.Path(os.environ.get("INTARSIA_BUILD", ROOT / "build/release"))
PROGRAMS = {
    "C++": [str(BUILD / "examples/llama/llama")],
    "Python": [sys.executable, str(ROOT / "examples/llama/llama.py")],
}
UNITS = 2.0**-53 / 2.0**-24
LARGEST = 1e-10
os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(BUILD / "python")}


@dataclasses.dataclass(frozen=True)
class Run:
    language: str
    mode: str
    mesh: str
    dtype: str = "float64"
    dropout: float = 0.0
    key_value_heads: int = 2
    chunks: int = 1
    packed: bool = False
    seed: int = 1

    def ranks(self):
        sizes = [int(axis.split("=")[1]) for axis in self.mesh.strip("[]").split(",")]
        return int(torch.tensor(sizes).prod())

    def reference(self, dtype, seed=1):
        """The run on one process: with plain tensors or, where Intarsia makes the masks, on a mesh of one rank."""
        mode = "dp" if self.dropout or self.packed else "plain"
        return dataclasses.replace(self, mode=mode, mesh="[dp=1]", chunks=1, dtype=dtype, seed=seed)

    def __str__(self):
        more = f", {self.key_value_heads} heads of keys" if self.key_value_heads != 2 else ""
        more += f", {self.chunks} chunks" if self.chunks > 1 else ""
        more += ", packed" if self.packed else ""
        return f"{self.language} {self.mode} {self.mesh} {self.dtype} dropout {self.dropout}{more}"


class Comparison:
    """STEPS steps from each of some seeds; states are kept in a folder while they are read. `both`: E is also measured of the run itself, float32
    beside float64 in its own layout, and the larger counts: for ops that round more often on pieces, as attention does that merges its parts."""

    def __init__(self, steps, seeds, folder, both=False):
        self._steps = steps
        self._seeds = seeds
        self._both = both
        self.less_accurate = 0.0
        self._folder = pathlib.Path(folder)
        self._reference_of = functools.lru_cache(maxsize=8)(self._state_of)
        self._measured = functools.cache(self._measure)

    def check(self, run):
        """The largest difference of any tensor over its tolerance, and the number of tensors."""
        rounding = self._measured(run.reference("float64"))
        if self._both:
            own = self._differences(*(dataclasses.replace(run, dtype=dtype) for dtype in ("float64", "float32")))
            self.less_accurate = max(self.less_accurate, *(own[kind] / rounding[kind] for kind in own))
            rounding = {kind: max(error, own[kind]) for kind, error in rounding.items()}
        plain = self._reference_of(run.reference(run.dtype))
        initial, last = self._reference_of(run) if self._both else self._state_of(run)
        assert initial.keys() == plain[0].keys() and last.keys() == plain[1].keys() and 2 * len(initial) == len(last)
        for name, tensor in initial.items():
            assert torch.equal(tensor, plain[0][name]), f"{run}: {name} begins otherwise"
            assert far(last[name], tensor) > 1e-4, f"{run}: {name} did not move"
        worst, depth = 0.0, 3 + math.log2(run.ranks())
        for name, tensor in last.items():
            assert tensor.dtype == getattr(torch, run.dtype) and tensor.isfinite().all(), f"{run}: {name}"
            tolerance = depth * rounding[kind_of(name)] * (UNITS if run.dtype == "float64" else 1)
            worst = max(worst, far(tensor, plain[1][name]) / tolerance)
            if run.dtype == "float64":
                largest = (tensor - plain[1][name]).abs().max() / plain[1][name].abs().max()
                worst = max(worst, largest.item() / LARGEST)
        return worst, len(last)

    def _state_of(self, run):
        """Initial parameters, and parameters and gradients after the last step."""
        files = [str(self._folder / name) for name in ("initial.pt", "last.pt")]
        command = [
            *PROGRAMS[run.language], "--mode", run.mode, "--mesh", run.mesh, "--dtype", run.dtype, "--steps", str(self._steps),
            "--batch", "4", "--seq", "16", "--seed", str(run.seed), "--epsilon", "1e-3", "--dropout", str(run.dropout),
            "--key-value-heads", str(run.key_value_heads), "--chunks", str(run.chunks), "--dump-initial", files[0], "--dump", files[1],
            *(["--packed"] if run.packed else []),
        ]  # fmt: skip
        result = launch.run("plain", run.ranks(), command, timeout=300)
        assert result.returncode == 0, f"{run}\n{result.stdout[-1000:]}{result.stderr[-3000:]}"
        states = [dict(torch.load(file, weights_only=True)) for file in files]
        for file in files:
            os.remove(file)
        return states

    def _measure(self, reference):
        """What rounding to float32 does to each kind of tensor in one process."""
        result = {}
        for seed in reversed(self._seeds):
            found = self._differences(*(reference.reference(dtype, seed) for dtype in ("float64", "float32")))
            result = {kind: max(result.get(kind, 0.0), error) for kind, error in found.items()}
        return result

    def _differences(self, exact, rough):
        """Of two runs, the largest of each kind of tensor."""
        exact, rough = (self._reference_of(run)[1] for run in (exact, rough))
        result = {}
        for name in exact:
            result[kind_of(name)] = max(result.get(kind_of(name), 0.0), far(rough[name], exact[name]))
        return result


def size(tensor):
    """Root mean square."""
    return tensor.double().square().mean().sqrt().item()


def far(a, b):
    """The difference of two tensors beside the size of the second."""
    return size(a.double() - b.double()) / size(b)


def kind_of(name):
    return re.sub(r"\.\d+\.", ".*.", name)


def compare(runs, steps, seeds, both=False):
    """Prints each run; the number of runs, of tensors compared, and the worst difference over its tolerance."""
    worst = count = tensors = 0
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(steps, seeds, folder, both)
        for run in runs:
            ratio, compared = comparison.check(run)
            worst, count, tensors = max(worst, ratio), count + 1, tensors + compared
            print(f"{run}: worst difference / tolerance = {ratio:.2g}", flush=True)
        if both:
            print(f"float32 in a layout is at most {comparison.less_accurate:.2g} times as far from float64 as on one rank")
    return count, tensors, worst
