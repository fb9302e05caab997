"""Every source of rules, plan, tensor and world has a test of its name, in the folder of tests that mirrors its layer.

`src/tensor/move/route.cpp` is tested by `tests/tensor/move/route_test.cpp`, so that a failure is near its cause. What has none is in
EXCEPTIONS, at most 15, each with its reason in HACKING.md."""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAYERS = ("rules", "plan", "tensor", "world")
LIMIT = 15
EXCEPTIONS = {
    "src/world/transport/backend_nccl.cpp", "src/world/transport/backend_ucc.cpp",
}  # fmt: skip


def test_of(source):
    """Where the test of a source stands."""
    inside = source.relative_to("src")
    return pathlib.Path("tests") / inside.with_name(f"{inside.stem}_test.cpp")


def missing(root, exceptions):
    """What is wrong: sources without a test, tests that are not built or test nothing, exceptions that are none."""
    built = (root / "tests/CMakeLists.txt").read_text()
    hacking = (root / "HACKING.md").read_text()
    sources = [p.relative_to(root) for layer in LAYERS for p in sorted((root / "src" / layer).rglob("*.cpp"))]
    for source in sources:
        test = root / test_of(source)
        if source.as_posix() in exceptions:
            if test.exists():
                yield f"{source} has a test, and is no exception any more"
            if source.name not in hacking:
                yield f"{source} has no test, and HACKING.md does not say why"
        elif not test.exists():
            yield f"{source} has no {test_of(source)}"
        elif "TEST" not in test.read_text():
            yield f"{test_of(source)} tests nothing"
        elif test.relative_to(root / "tests").as_posix() not in built:
            yield f"{test_of(source)} is not built: name it in tests/CMakeLists.txt"
    yield from (f"{name} is an exception, and not there" for name in sorted(exceptions - {s.as_posix() for s in sources}))
    if len(exceptions) > LIMIT:
        yield f"{len(exceptions)} exceptions, more than {LIMIT}"


def main():
    wrong = list(missing(ROOT, set(EXCEPTIONS)))
    sources = sum(1 for layer in LAYERS for _ in (ROOT / "src" / layer).rglob("*.cpp"))
    print("\n".join([*wrong, f"{sources} sources, {len(EXCEPTIONS)} without a test of their name, {len(wrong)} faults"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
