"""python -m intarsia: watches the collectives of a command, such as torchrun with a script as it stands, says what a running job does, or compares
a script on several ranks with the same on one."""

import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile


def environment(folder: str = "") -> dict[str, str]:
    """What makes a Python process and its children watch, whatever they run, and keep their boards in a folder if one is given."""
    package = os.path.dirname(os.path.abspath(__file__))
    paths = [os.path.join(package, "_site"), os.path.dirname(package), os.environ.get("PYTHONPATH", "")]
    kept = {"INTARSIA_GUARD_DIR": folder} if folder else {}
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))} | kept


def run(command: list[str]) -> int:
    """Runs a command to its end, and where it fails says how to see what each rank did last."""
    kept = os.environ.get("INTARSIA_GUARD_DIR")
    folder = kept or tempfile.mkdtemp(prefix="intarsia-")
    try:
        child = subprocess.Popen(command, env=environment(folder))
    except OSError as error:
        print(f"[run] {command[0]} cannot be run: {error.strerror}", file=sys.stderr)
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
        return 127
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the command too
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda got, _: child.send_signal(got))
    code = child.wait()
    if code == 0 and not kept:
        shutil.rmtree(folder, ignore_errors=True)
    elif code != 0 and any(pathlib.Path(folder).glob("*.board")):
        print(f"[run] what each rank did last: {sys.executable} -m intarsia watch --attach {folder}", file=sys.stderr)
    return code if code >= 0 else 128 - code


def attach(job: str) -> int:
    import intarsia

    try:
        print(intarsia.describe_job(int(job) if job.isdigit() else job or None), end="")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def equiv(command: list[str], chosen: argparse.Namespace) -> int:
    from intarsia._equiv_command import equiv_command

    return equiv_command(command, chosen.ranks, chosen.samples, chosen.jobs, chosen.timeout, environment())


def main(arguments: list[str]) -> int:
    command = arguments[2:] if arguments[1:2] == ["--"] else arguments[1:]
    if arguments[:1] == ["run"] and command and not command[0].startswith("-"):
        return run(command)  # its words are not for argparse
    parser = argparse.ArgumentParser(prog="python -m intarsia")
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser(
        "run",
        usage="python -m intarsia run -- COMMAND [ARGUMENT ...]",
        help="run a command; the guard compares the collectives of its ranks",
        description="Runs COMMAND. In it, and in all Python processes that it starts, the guard compares the collectives that ranks make over "
        "torch.distributed, as intarsia.watch() does. The script needs no change: python -m intarsia run -- torchrun train.py",
    )
    watching = commands.add_parser("watch", help="say what the ranks of a job do, or did")
    watching.add_argument(
        "--attach",
        metavar="JOB",
        nargs="?",
        const="",
        required=True,
        help="the process of a rank; the folder that INTARSIA_GUARD_DIR named; or nothing, for all jobs of this user",
    )
    comparing = commands.add_parser(
        "equiv",
        usage="python -m intarsia equiv [--ranks N] [--samples N] [--jobs N] [--timeout SECONDS] -- COMMAND [ARGUMENT ...]",
        help="compare a script on several ranks with the same script on one",
        description="Runs COMMAND on one rank, again with the rounding errors that its ops could have had, and on several ranks of this host; compares "
        "losses, outputs of modules, gradients and parameters (docs/equiv.md). Exit code 0: equal; 1: not; 2: a run failed or proves nothing.",
    )
    comparing.add_argument("--ranks", type=int, default=2)
    comparing.add_argument("--samples", type=int, default=16, help="disturbed runs of the script on one rank; even")
    comparing.add_argument("--jobs", type=int, default=1, help="how many of those at a time")
    comparing.add_argument("--timeout", type=float, default=600, help="of each run, in seconds")
    words = arguments.index("--") if "--" in arguments else len(arguments)
    chosen = parser.parse_args(arguments[:words])
    if chosen.command == "equiv" and arguments[words + 1 :]:
        return equiv(arguments[words + 1 :], chosen)
    if chosen.command in ("run", "equiv"):
        (running if chosen.command == "run" else comparing).error("which COMMAND?")
    return attach(chosen.attach)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
