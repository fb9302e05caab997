"""Whether the bill says what the backend gets: calls and bytes, counted by a c10d backend around the real one.

    launch.py -n 2 -- bills.py LIBRARY modes                    examples/llama in all modes that fit so many ranks
    launch.py -n 2 -- bills.py LIBRARY training SEED COUNT      random training runs, as tests/programs draws them
    launch.py -n 2 -- bills.py LIBRARY programs SEED COUNT      random programs of ops and moves, likewise

Each rank looks after each step, or each program, at its own backends. Making a replica, which compares and copies parameters, has no bill:
random training is looked at from the end of its first step on. LIBRARY is what counted.cpp became.
"""

import ctypes
import dataclasses
import pathlib
import sys

import torch

counted = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)  # before Intarsia, whose backends it makes
counted.counted_calls.restype = counted.counted_bytes.restype = ctypes.c_uint64

import intarsia as it  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "examples" / "llama"), str(ROOT / "tests" / "programs")]

MODES = {
    2: ["ddp", "dp", "fsdp", "tp", "tp+sp", "tp+sp chunks", "cp", "cp packed"],
    3: ["ddp", "dp", "fsdp", "cp"],
    4: ["hsdp", "fsdp+tp", "fsdp+cp", "tp+cp", "tp+sp", "ddp", "fsdp"],
}
STEPS = 3


class Looker:
    """Compares what was counted since the last look."""

    def __init__(self):
        self.looks = self.wrong = self.calls = 0
        self.forget()

    def now(self):
        bill = it.bill()
        return (bill.calls(), bill.bytes()), (counted.counted_calls(), counted.counted_bytes())

    def forget(self):
        self.before = self.now()

    def look(self, what):
        billed, handed = ([now - then for now, then in zip(*pair)] for pair in zip(self.now(), self.before))
        self.looks += 1
        self.calls += handed[0]
        if billed != handed:
            self.wrong += 1
            print(f"rank {it.world().rank()}, {what}: {billed} billed, {handed} handed over\n{it.bill()}{it.world().ledger().dump(40)}")
        self.forget()


def modes(looker):
    import llama

    ranks = it.world().size()
    config = dataclasses.replace(llama.CONFIGS["debug"], key_value_heads=4)  # which 4 ranks can share
    for dtype in (torch.float32, torch.bfloat16):
        torch.set_default_dtype(dtype)
        for name in MODES[ranks]:
            mode, _, extra = name.partition(" ")
            mesh = it.Mesh(llama.MODES[mode](ranks))
            model = llama.make_model(config, 30, mode, mesh, seed=0, chunks=2 if extra == "chunks" else 1)
            optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
            it.clear_bill()
            looker.forget()
            for step in range(STEPS):  # rows and positions that no number of ranks divides
                batch, mask = llama.packed(llama.batch_of(step, 5 if mode != "ddp" else 8, 30, 0))
                tokens, targets = llama.place_batch(batch, mode, mesh)
                with it.attention_scope(mask) if extra == "packed" else torch.enable_grad():
                    loss = llama.loss_of(model, tokens, targets)
                loss.backward()
                it.clip_grad_norm_(list(model.parameters()), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                llama.full_value(loss).item()
                looker.look(f"{name} in {dtype}, step {step}")
    torch.set_default_dtype(torch.float32)


def training(looker, seed, count):
    import training_data
    import training_ranks

    training_ranks.warm_up()
    for number in range(seed, seed + count):
        run = training_data.draw(number, it.world().size())
        steps = []

        def look(_training, habits, run=run, steps=steps):
            looker.look(run.text()) if steps else looker.forget()
            steps.append(habits)

        outcome = training_ranks.run_as_rank(run, it.world(), look)
        if outcome.kind in training_ranks.STOPS:
            break  # ranks may be out of step
        assert outcome.good(), outcome


def programs(looker, seed, count):
    import generate
    import processes
    import run as runs

    for number in range(seed, seed + count):
        program, _ = generate.generate(number, it.world().size(), count_rows=False)
        looker.forget()
        try:
            processes.check_on_rank(program, it.world(), exact=False, compares=False)
        except (runs.Invalid, SyntaxError):
            continue
        looker.look(f"program {number}")


def main():
    what, *numbers = sys.argv[2:]
    torch.set_num_threads(1)
    it.init("[x=%d]" % it.connect().size())
    looker = Looker()
    {"modes": modes, "training": training, "programs": programs}[what](looker, *map(int, numbers))
    print(f"rank {it.world().rank()}: {looker.looks - looker.wrong} of {looker.looks} looks equal, {looker.calls} calls", flush=True)
    it.close()
    sys.exit(looker.wrong > 0)


if __name__ == "__main__":
    main()
