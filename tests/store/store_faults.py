"""Saves to an object store, and loads from it, while something goes wrong: what is loaded afterwards is the old step, the new step, or
an error that names the object; and a fault that passes is not even an error.

    python tests/store/store_faults.py CHECKPOINT_FAULTS [STRIDE]

The program is tests/checkpoint/faults.cpp. (1) Each request of a save meets each fault of fault_proxy.KINDS once: the save succeeds, and is
the new step. (2) From each request on every answer is a fault: the save fails with the object's name, or was done; the old step is as it was.
(3) The saving process is killed at each request, before and after the store has seen it. (4) Each request of a load meets each fault once,
then all do. STRIDE: every so many of these cases. Several run at a time, each through a proxy of its own: they mostly wait."""

import collections
import concurrent.futures
import functools
import itertools
import os
import subprocess
import sys
import threading

import fault_proxy
import weed


AT_A_TIME = 4


class Campaign:
    def __init__(self, program, endpoint):
        self.program = program
        self.endpoint = endpoint
        self.of_thread = threading.local()
        self.number = itertools.count(1)

    @property
    def proxy(self):
        """That of the thread that asks."""
        if not hasattr(self.of_thread, "proxy"):
            self.of_thread.proxy = fault_proxy.FaultProxy(self.endpoint)
        return self.of_thread.proxy

    def run(self, *words, endpoint, timeout=120):
        limits = {"INTARSIA_STORE_STALL_SECONDS": "1", "INTARSIA_STORE_TRIES": "4", "INTARSIA_STORE_PART_MIB": "5"}
        process = subprocess.Popen(
            [self.program, *map(str, words)],
            env={**os.environ, **weed.variables(endpoint), **limits},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.proxy.watch(process)
        said, _ = process.communicate(timeout=timeout)
        return process.returncode, said

    def prepared(self):
        """A new folder with the old step."""
        root = f"s3://{weed.BUCKET}/case-{next(self.number)}"
        code, said = self.run("save", root, 3, 1, endpoint=self.endpoint)
        assert code == 0, said
        return root

    def versions(self, root):
        code, said = self.run("check", root, endpoint=self.endpoint)
        assert code == 0, said
        return dict(tuple(map(int, line.split())) for line in said.splitlines())

    def expect_old_or_new(self, root, step, saved):
        """`saved`: whether the save said that it was done."""
        found = self.versions(root)
        is_new = found.get(step) == 2
        old = is_new if step == 3 else found.get(3) == 1
        assert old or found.get(3) == 1, found
        assert is_new or not saved, found
        return is_new

    def requests(self, *words):
        self.proxy.fail(None, 0)
        code, said = self.run(*words, endpoint=self.proxy.endpoint)
        assert code == 0, said
        return len(self.proxy.requests)

    def saves(self):
        """The cases of saves, each a function that says what came of it."""
        for step in (4, 3):  # a new step, and one in the place of the old
            count = self.requests("save", self.prepared(), step, 2)
            print(f"{count} requests of a save that {'replaces' if step == 3 else 'adds'} a step", flush=True)
            for at in range(count):
                for kind in fault_proxy.KINDS:
                    for always in (False, True):
                        yield functools.partial(self.save_with, step, kind, at, always)
                for after in (False, True):
                    yield functools.partial(self.kill_at, step, at, after)

    def save_with(self, step, kind, at, always):
        root = self.prepared()
        self.proxy.fail(kind, at, always)
        code, said = self.run("save", root, step, 2, endpoint=self.proxy.endpoint)
        where = f"{kind} at {at}{' and on' if always else ''}: {self.proxy.requests[at:][:1]}: {said}"
        assert code in (0, 3) and (code == 0 or always), where
        if code:
            assert f"step {step} was not saved in {root}" in said and f"{root}/step" in said, where
            assert weed.SECRET not in said and weed.KEY not in said, where
        self.expect_old_or_new(root, step, saved=code == 0)
        return "failed and named" if code else "passed"

    def kill_at(self, step, at, after):
        root = self.prepared()
        self.proxy.kill(at, after)
        code, said = self.run("save", root, step, 2, endpoint=self.proxy.endpoint)
        assert code == -9, (at, after, code, said)
        is_new = self.expect_old_or_new(root, step, saved=False)
        code, said = self.run("save", root, 5, 2, endpoint=self.endpoint)  # what was left is not in the way
        assert code == 0, said
        return "killed, the new step" if is_new else "killed, the old step"

    def loads(self):
        root = self.prepared()
        count = self.requests("check", root)
        print(f"{count} requests of loads", flush=True)
        for at in range(count):
            for kind in fault_proxy.KINDS:
                for always in (False, True):
                    yield functools.partial(self.load_with, root, kind, at, always)

    def load_with(self, root, kind, at, always):
        self.proxy.fail(kind, at, always)
        code, said = self.run("check", root, endpoint=self.proxy.endpoint)
        where = f"{kind} at {at}: {said}"
        assert code == 0 or (always and code == 3 and f"s3://{weed.BUCKET}/" in said), where
        assert code or said == "3 1\n", where
        return "failed and named" if code else "passed"


def main(program, stride=1):
    if weed.program() is None:
        print("SeaweedFS is not installed")
        return
    with weed.running() as endpoint, concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
        campaign = Campaign(program, endpoint)
        cases = [*campaign.saves(), *campaign.loads()]
        due = cases[int(stride) - 1 :: int(stride)]
        counts = collections.Counter(pool.map(lambda case: case(), due))
    print(f"{len(due)} of {len(cases)} faults at an object store: {', '.join(f'{n} {what}' for what, n in counts.items())}; none wrong")


if __name__ == "__main__":
    main(*sys.argv[1:])
