"""How promises that time something end.

Times say little on a machine with other work. `promises/run --untimed`, as CI does, runs such a promise all the same: it fails where
something is broken or results differ, and prints its times without judging them."""

import os

JUDGED = "INTARSIA_UNTIMED" not in os.environ


def verdict(in_time, right=True):
    """The exit code: `right` is what must hold on any machine, `in_time` what a quiet one shows."""
    if not JUDGED and not in_time:
        print("times are not judged here")
    return 0 if right and (in_time or not JUDGED) else 1


def attempts(most):
    """How often to measure until a limit holds."""
    return most if JUDGED else 1
