"""Runs tests with pytest or, without it, as plain programs; on this process or on several.

    @on_ranks(2)
    def test_something(): ...

runs in as many processes over Gloo on loopback. All such tests of a file with the same number of ranks
share one launch, in the order of the file; after the first failure the rest do not run.
"""

import functools
import pathlib
import sys
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "launch"))
import launch  # noqa: E402

SECONDS = 200
AS_RANK = "--as-rank"


def on_ranks(n, launcher="plain"):
    def decorate(test):
        @functools.wraps(test)
        def in_parent():
            file = test.__code__.co_filename
            code, output = launched(file, n, launcher)
            if f"began {test.__name__}\n" not in output:
                raise AssertionError(f"{test.__name__} did not run, as a test before it failed")
            passed = output.count(f"passed {test.__name__}\n") == n
            assert passed, f"exit code {code}, {test.__name__} did not pass on all {n} ranks:\n{output}"

        in_parent.body, in_parent.key = test, f"{launcher}{n}"
        return in_parent

    return decorate


@functools.cache
def launched(file, n, launcher):
    """Exit code and output of one launch of a file's tests for n ranks."""
    command = [sys.executable, file, AS_RANK, f"{launcher}{n}"]
    result = launch.run(launcher, n, command, env={"OMP_NUM_THREADS": "1"}, timeout=SECONDS)
    return result.returncode, result.stdout + result.stderr


def tests_in(names):
    return [value for name, value in names.items() if name.startswith("test_") and callable(value)]


def run(names):
    """The main program of a test file."""
    if AS_RANK in sys.argv:
        key = sys.argv[sys.argv.index(AS_RANK) + 1]
        for test in [t for t in tests_in(names) if getattr(t, "key", None) == key]:
            print(f"began {test.__name__}\n", end="", flush=True)
            test.body()
            print(f"passed {test.__name__}\n", end="", flush=True)
        return
    failed = 0
    for test in tests_in(names):
        try:
            test()
            print("passed", test.__name__)
        except Exception:
            failed += 1
            print(f"FAILED {test.__name__}\n{traceback.format_exc()}", flush=True)
    sys.exit(1 if failed else 0)


def refuses(kind, text, call):
    """Checks that a call raises an error of this kind whose message has this text."""
    try:
        call()
    except kind as error:
        assert text in str(error), f"the message is: {error}"
        return
    raise AssertionError(f"no {kind.__name__} was raised")
