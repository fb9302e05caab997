"""Children of this process, forked, that report in lines of JSON: a child that crashes or hangs ends nothing else."""

import json
import os
import select
import signal
import sys
import time
import traceback


class Child:
    """A forked process. `body(report)` runs in it; what it reports comes out of `reports()`."""

    def __init__(self, body):
        read, write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(read)
            _exit_after(body, write)
        os.close(write)
        self.pipe, self.rest = read, b""
        self.ended, self.status = False, None
        self.heard = time.monotonic()

    def fileno(self):
        return self.pipe

    def reports(self):
        """What has arrived; the last time, after which `ended` holds, with the rest."""
        data = os.read(self.pipe, 1 << 16)
        self.heard = time.monotonic()
        if not data:
            self.end()
            return []
        *lines, self.rest = (self.rest + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def end(self, kill=False):
        if self.ended:
            return
        if kill:
            os.kill(self.pid, signal.SIGKILL)
        self.status = os.waitpid(self.pid, 0)[1]
        os.close(self.pipe)
        self.ended = True

    def silent(self):
        """For how many seconds nothing was heard."""
        return time.monotonic() - self.heard

    def how_it_ended(self):
        if os.WIFSIGNALED(self.status):
            return signal.Signals(os.WTERMSIG(self.status)).name
        return f"exit code {os.WEXITSTATUS(self.status)}"


def _exit_after(body, write):
    """Runs the body in the child, and leaves without the parent's clean-up."""
    code = 1
    try:
        with os.fdopen(write, "w", buffering=1) as pipe:
            body(lambda **report: print(json.dumps(report), file=pipe))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ready(children, seconds):
    """The children that have something to read, or have ended, within this time."""
    return select.select(children, [], [], seconds)[0] if children else []
