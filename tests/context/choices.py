"""Whether attention's `auto` takes the schedule that it says is the cheapest, and how good that choice is where the wire is slow.

    choices.py grid                         in lockstep: what `auto` sends is what the cheapest schedule of attention_costs sends
    launch.py -n 2 -- choices.py measured   on processes with INTARSIA_WIRE_DELAY and the INTARSIA_TOPOLOGY that `intarsia calibrate` made
                                            of it: `auto` and every schedule by turns, forward and backward, the medians of several rounds
"""

import itertools
import random
import statistics
import sys
import time

import intarsia as it
import torch
from intarsia import _C


def topology(latency, overhead, bandwidth, flops):
    level = {"latency_us": latency * 1e6, "overhead_us": overhead * 1e6, "gigabytes_per_s": bandwidth / 1e9}
    text = str({"gigaflops": flops / 1e9, "levels": [level]}).replace("'", '"')
    return it.Topology.parse(text)


def laid_out(layout, *shapes):
    torch.manual_seed(0)
    return [it.distribute(torch.randn(shape), layout).requires_grad_() for shape in shapes]


def sent(q, k, v, mask, schedule):
    it.clear_bill()
    it.attention(q, k, v, mask, schedule=schedule)
    return sorted((e.transition, e.axis, e.bytes, e.count) for e in it.bill().entries)


def grid():
    right = total = 0
    chosen = {}
    meshes = [("[cp=4]", "S(2)"), ("[cp=8]", "S(2)"), ("[a=2,b=4]", "S(2),S(2)"), ("[dp=2,cp=2]", "S(0),S(2)")]
    wires = [(1e-5, 1e-5, 1e8), (1e-6, 1e-5, 1e10), (1e-3, 1e-4, 1e9), (0, 0, 1e6)]
    for mesh, layout in meshes:
        with it.lockstep(mesh) as world:
            for wire, flops, size, heads, mask in itertools.product(
                wires, (1e9, 1e12), (64, 512), ((4, 4), (8, 2)), ("all", "causal", "window(15,0)", "causal+documents(0,20,40)")
            ):
                _C.set_topology(world, topology(*wire, flops))
                q, k, v = laid_out(layout, *((2, h, size, 8) for h in (heads[0], heads[1], heads[1])))
                cheapest = it.attention_costs(q, k, v, mask)[0].schedule
                total += 1
                right += sent(q, k, v, mask, "auto") == sent(q, k, v, mask, cheapest)
                chosen[cheapest] = chosen.get(cheapest, 0) + 1
    print(f"{right} of {total} choices are the cheapest by the costs: {', '.join(f'{n} x {s}' for s, n in sorted(chosen.items()))}")
    return right == total and len(chosen) > 3


def seconds(run, tensors):
    for t in tensors:
        t.grad = None
    it.full(it.from_local(torch.zeros(1), "S(0)"))  # a barrier
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def measured(rounds=9):
    it.init(f"[cp={it.world().size()}]")
    worst = 0
    for size, heads, mask in itertools.product((1024, 2048), ((4, 4), (8, 2)), ("causal", "window(127,0)")):
        tensors = laid_out("S(2)", *((1, h, size, 32) for h in (heads[0], heads[1], heads[1])))
        schedules = ["gather", "ring", "heads"]
        costs = it.attention_costs(*tensors, mask)
        grad = it.from_local(torch.ones(it.local(tensors[0].detach()).shape), "S(2)")

        def run(schedule):
            return seconds(lambda: it.attention(*tensors, mask, schedule=schedule).backward(grad), tensors)  # noqa: B023

        for schedule in ("auto", *schedules):
            run(schedule)
        times = {schedule: [] for schedule in ("auto", *schedules)}
        for _ in range(rounds):
            for schedule in random.Random(len(times["auto"])).sample(sorted(times), len(times)):
                times[schedule].append(run(schedule))
        named = "heads" if "heads" in costs[0].schedule else costs[0].schedule
        times[named] += times["auto"]  # the same schedule: both tell how long the choice takes
        medians = {schedule: statistics.median(each) for schedule, each in times.items()}
        medians = {s: float(it.full(it.from_local(torch.tensor([t]), "S(0)")).max()) for s, t in medians.items()}
        best = min(schedules, key=medians.get)
        ratio = medians[named] / medians[best]
        worst = max(worst, ratio)
        if it.world().rank() == 0:
            text = ", ".join(f"{s} {t * 1e3:.1f}" for s, t in medians.items())
            foreseen = ", ".join(f"{c.schedule} {c.seconds * 1e3:.1f}" for c in costs)
            print(f"{size} positions, heads {heads[0]}/{heads[1]}, {mask}: ms: {text}; {ratio:.2f} of {best}; foreseen {foreseen}", flush=True)
    if it.world().rank() == 0:
        print(f"auto takes at most {worst:.3f} of the best", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "grid":
        sys.exit(0 if grid() else 1)
    measured(*(int(a) for a in sys.argv[2:]))
