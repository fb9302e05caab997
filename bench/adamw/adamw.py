"""Steps of torch.optim.AdamW(foreach=True) over many small parameters: plain and distributed ones in turns.

    PYTHONPATH=build/release/python python bench/adamw/adamw.py

Results are compared first. Prints the best CPU time of a step of each; ours over plain is the last line. The group and
the pieces are those of bench/dispatch: rank 0 of two, pieces of the plain ones' sizes.
"""

import argparse
import pathlib
import sys

import torch

BENCH = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(BENCH), str(BENCH / "dispatch")]
from measure import say, take_turns  # noqa: E402
from sides import Bare, Ours, Rival, start  # noqa: E402

SIDE = 64


def optimizer_for(side, count):
    """An optimizer whose parameters have gradients."""
    torch.manual_seed(0)
    parameters = []
    for _ in range(count):
        p = torch.nn.Parameter(side.put(torch.randn(SIDE, SIDE), 0))
        p.grad = side.put(torch.randn(SIDE, SIDE), 0)
        parameters.append(p)
    return torch.optim.AdamW(parameters, foreach=True)


def pieces(side, optimizer):
    return [side.piece(p) for p in optimizer.param_groups[0]["params"]]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--parameters", type=int, default=1000)
    ap.add_argument("--rounds", type=int, default=15)
    ap.add_argument("--dtensor", action="store_true", help="measure PyTorch's DTensor too, which takes a minute to begin")
    args = ap.parse_args()
    torch.set_num_threads(1)
    start()
    sides = [Bare(), Ours()] + ([Rival()] if args.dtensor else [])
    optimizers = {side.name: optimizer_for(side, args.parameters) for side in sides}
    for optimizer in optimizers.values():
        for _ in range(3):
            optimizer.step()
    expected = pieces(sides[0], optimizers["bare"])
    for side in sides[1:]:
        for e, g in zip(expected, pieces(side, optimizers[side.name]), strict=True):
            torch.testing.assert_close(g, e, rtol=0, atol=0)
    samples = {}
    take_turns({name: o.step for name, o in optimizers.items()}, args.rounds, 0.0, samples)
    best = {name: min(s) / 1e3 for name, s in samples.items()}
    say(f"Python AdamW(foreach=True), {args.parameters} parameters of {SIDE}x{SIDE}, equal after 3 steps, best of "
        f"{args.rounds} rounds in turns: " + ", ".join(f"{name} {ms:.2f} ms" for name, ms in best.items()))  # fmt: skip
    if args.dtensor:
        say(f"DTensor takes {best['dtensor'] / best['bare']:.2f} of plain")
    say(f"{best['ours'] / best['bare']:.3f}")


if __name__ == "__main__":
    main()
