"""Random programs on the device of far_device.h, in lockstep: the numbers of plain torch on the CPU, and nobody touches its memory.

    far_programs.py LIBRARY [--seed S] [--count N]

The programs are those of tests/programs. Lines that cannot run there are left out, as programs do with what is refused; who touches
the memory ends this process."""

import argparse
import collections
import contextlib
import pathlib
import sys
import types

import intarsia as it
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "programs"))
import compare  # noqa: E402
import generate  # noqa: E402
import run  # noqa: E402

MOST_REFUSED = 0.1  # of all lines


def far_device(library):
    """Torch's Python wants a module for each device."""
    torch.ops.load_library(library)
    module = types.ModuleType("torch.far")
    module.is_available, module.is_initialized, module._is_in_bad_fork = lambda: True, lambda: True, lambda: False
    module.device_count, module.current_device = lambda: 2, lambda: 0
    module.set_device = module.manual_seed = module.manual_seed_all = lambda _: None
    torch._register_device_module("far", module)
    return torch.device("far:0")


class There(run.Side):
    """A side whose lines make their plain tensors on the device of its inputs."""

    def run(self):
        devices = {value.device for value in self.names.values() if isinstance(value, torch.Tensor)}
        far = [device for device in devices if device.type == "far"]
        with far[0] if far else contextlib.nullcontext():
            return super().run()


def main(library, seed, count):
    device = far_device(library)
    run.Side = There
    full = compare.full
    compare.full = lambda tensor: full(tensor).cpu()
    done, refused = collections.Counter(), collections.Counter()
    for each in range(seed, seed + count):
        program, _ = generate.generate(each, count_rows=False)
        with contextlib.suppress(run.Invalid):
            result = run.check(program, lambda p: it.lockstep(run.mesh_text(p.mesh), device=device))
            assert not result.differences, f"seed {each}: {result.differences[:3]}\n{result.program}"
            done["programs"] += 1
            done["lines"] += len(result.program.lines)
            refused.update(refusal.text[:120] for refusal in result.refusals)
    for text, number in refused.most_common(5):
        print(f"refused {number} times: {text}")
    share = refused.total() / max(done["lines"], 1)
    print(f"{done['programs']} programs of {done['lines']} lines gave the CPU's numbers; {refused.total()} lines were refused")
    assert done["programs"] > 0.8 * count and share < MOST_REFUSED, (done, refused)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    options = parser.parse_args()
    main(options.library, options.seed, options.count)
