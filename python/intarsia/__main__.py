"""python -m intarsia run -- COMMAND: runs a command, such as torchrun with a script as it stands, and watches its collectives."""

import os
import sys

USAGE = """usage: python -m intarsia run -- COMMAND [ARGUMENT ...]

Runs COMMAND. In it, and in all Python processes that it starts, the guard compares the collectives that ranks make over
torch.distributed, as intarsia.watch() does. The script needs no change: python -m intarsia run -- torchrun train.py
"""


def environment() -> dict[str, str]:
    """What makes a Python process and its children watch, whatever they run."""
    package = os.path.dirname(os.path.abspath(__file__))
    paths = [os.path.join(package, "_site"), os.path.dirname(package), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def main(arguments: list[str]) -> int:
    command = arguments[1:]
    if command[:1] == ["--"]:
        command = command[1:]
    if arguments[:1] != ["run"] or not command:
        print(USAGE, end="", file=sys.stderr)
        return 2
    try:
        os.execvpe(command[0], command, environment())
    except OSError as error:
        print(f"[run] {command[0]} cannot be run: {error.strerror}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
