"""Timing for the benchmarks: the best of rounds that take turns, in CPU time."""

import gc
import json
import statistics
import sys
import time


def calls_per_round(call, seconds):
    """Warms up, and says how many calls fill a round."""
    for _ in range(5):
        call()
    start = time.perf_counter()
    for _ in range(5):
        call()
    once = max((time.perf_counter() - start) / 5, 1e-7)
    return max(3, min(50000, int(seconds / once)))


def take_turns(calls, rounds, seconds, samples, before_round=lambda: None):
    """Times callables, {name: callable}, in alternating rounds; appends CPU microseconds per call to samples[name].

    The CPU time of the thread does not hold the time in which others had the core; backward on CPU runs in the
    thread that calls it.
    """
    counts = {name: calls_per_round(call, seconds) for name, call in calls.items()}
    gc.collect()
    gc.disable()
    for _ in range(rounds):
        for name, call in calls.items():
            before_round()
            start = time.thread_time()
            for _ in range(counts[name]):
                call()
            samples.setdefault(name, []).append((time.thread_time() - start) / counts[name] * 1e6)
    gc.enable()


def once(call):
    """CPU microseconds of one call, on all threads. Collects no garbage first, which would empty the CPU's caches."""
    gc.disable()
    start = time.process_time()
    call()
    spent = (time.process_time() - start) * 1e6
    gc.enable()
    return spent


def spin_probe(rounds=15, loops=200_000):
    """Median over best time of a fixed loop: above 1.1 other work shares the core."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        total = 0
        for i in range(loops):
            total += i
        times.append(time.perf_counter() - start)
    return statistics.median(times) / min(times)


def write_json(path, result):
    with open(path, "w") as f:
        json.dump(result, f, indent=1)
        f.write("\n")


def say(*words):
    print(*words, flush=True, file=sys.stdout)
