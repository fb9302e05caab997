"""Tensors that change while they are saved.

    mutate.py FOLDER ROUNDS MIB

Each round saves a state behind the loop, in turns "behind" and "overlapped", and changes every tensor at once (overlapped: after
`wait_staged`) and again and again as long as the save runs. Then the step is loaded and compared with what the state was when `save`
was called: bit for bit. Sharded, replicated, strided and plain tensors; in place by the optimizer's step, by ops, and through `.data`.
Each rank prints how many rounds it compared, and how many changes came while a save was running."""

import sys
import time

import intarsia as it
import torch


def main(folder, rounds, mebibytes):
    it.init("[x=2]")
    rows = (mebibytes << 20) // 4 // 4 // 1024
    torch.manual_seed(0)
    full = torch.randn(rows, 1024)
    state = {
        "rows": it.distribute(full, "S(0)"),
        "columns": it.distribute(full, "S(1)"),
        "replicated": it.distribute(full[: rows // 4].clone(), "R"),
        "plain": full[: rows // 8].clone(),
        "turned": torch.randn(64, 32).t(),  # not dense
    }
    parameter = torch.nn.Parameter(it.distribute(torch.randn(256, 256), "S(0)"))
    managers = {mode: it.CheckpointManager(f"{folder}/{mode}", keep=2, mode=mode) for mode in ("behind", "overlapped")}

    def change(optimizer):
        for name in ("rows", "columns", "replicated"):
            it.local(state[name]).add_(1)
        state["plain"].data.mul_(1.5)
        state["turned"].neg_()
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()

    def copy(value):
        return (it.local(value) if it.has_layout(value) else value).detach().clone()

    during = 0
    for number in range(rounds):
        # Ranks have made different numbers of changes: replicas are made equal again.
        generator = torch.Generator().manual_seed(number)
        for name in ("replicated", "plain", "turned"):
            value = state[name]
            (it.local(value) if it.has_layout(value) else value).normal_(generator=generator)
        optimizer = torch.optim.AdamW([parameter], lr=0.1)
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        mode = ("behind", "overlapped")[number % 2]
        manager = managers[mode]
        now = {**state, "parameter": parameter.detach(), "optimizer": optimizer}
        expected = {name: copy(value) for name, value in now.items() if name != "optimizer"}
        moments = copy(optimizer.state[parameter]["exp_avg"])
        manager.save(number, now)
        manager.wait_staged()
        start = time.perf_counter()
        while True:
            writing = manager.busy
            change(optimizer)
            during += writing
            if not writing or time.perf_counter() - start > 60:
                break
        manager.wait()
        into = {name: torch.zeros_like(value) for name, value in now.items() if name != "optimizer"}
        fresh = torch.optim.AdamW([parameter], lr=0.1)
        it.load_checkpoint(f"{folder}/{mode}", {**into, "optimizer": fresh}, step=number)
        for name, value in expected.items():
            assert torch.equal(copy(into[name]), value), f"round {number}: {name} is not what it was"
        assert torch.equal(copy(fresh.state[parameter]["exp_avg"]), moments), f"round {number}: the optimizer's state"
    print(f"{rounds} {during}\n", end="", flush=True)  # in one write: ranks share the pipe


main(sys.argv[1], *(int(word) for word in sys.argv[2:4]))
