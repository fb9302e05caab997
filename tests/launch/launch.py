"""Run one program as N processes on this machine under a choice of launchers.

    launch.py --with {plain,torchrun,mpirun,srun} -n N [--timeout SECONDS] [--no-master]
              [--env K=V ...] -- PROGRAM ARGS...

Tests use it, as a command or through run(), to check that a program finds its rank, size and
rendezvous address in what each launcher puts into the environment. srun needs no configured
Slurm: a private munged, slurmctld and slurmd are started for the one run. The caller's own
launcher variables (RANK, OMPI_*, SLURM_*, ...) are hidden from the program.

The exit code is 0 only if every rank exited with 0. As with timeout(1), 124 means that the time
was up and 125 that the launcher itself could not be started; anything else comes from a rank or
its launcher. --timeout counts the program's run; starting Slurm has its own limit of 30 seconds.

The command is the subreaper of all that it starts, so daemons and orphaned ranks stay its
descendants whatever session they move to. At the end, for whatever reason, it kills its
descendants, and nothing else, and removes its temporary directory. Linux only.
"""

import argparse
import contextlib
import ctypes
import dataclasses
import os
import pathlib
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

LOOPBACK = "127.0.0.1"
TIMED_OUT = 124
NOT_STARTED = 125
GRACE_SECONDS = 5
START_SECONDS = 30
POLL_SECONDS = 0.05
MASTER_VARIABLES = ("MASTER_ADDR", "MASTER_PORT")
LAUNCHER_VARIABLES = MASTER_VARIABLES + (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
    "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME",
)
LAUNCHER_PREFIXES = ("OMPI_", "ORTE_", "PMIX_", "PMI_", "SLURM", "SRUN_", "TORCHELASTIC_")

SLURM_CONF = """\
ClusterName=launch
SlurmctldHost={host}({loopback})
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={munge_socket}
CredType=cred/munge
{listening}
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
SlurmctldSyslogDebug=quiet
SlurmdSyslogDebug=quiet
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
KillWait=2
FirstJobId={first_job}
SlurmdParameters=config_overrides
NodeName=localhost NodeHostname={host} NodeAddr={loopback} CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=localhost Default=YES MaxTime=INFINITE State=UP
"""


class LaunchError(RuntimeError):
    """A launcher or one of its daemons could not be started."""


@dataclasses.dataclass
class Result:
    """What one run left: its exit code and all that its ranks and its launcher wrote."""

    returncode: int
    stdout: str
    stderr: str


@dataclasses.dataclass
class Job:
    """The program to run, how often, in which environment and for how long at most."""

    n: int
    command: list[str]
    env: dict[str, str]
    timeout: float


@dataclasses.dataclass
class Daemon:
    """A daemon in the foreground, and the file that has its output."""

    name: str
    process: subprocess.Popen
    log: pathlib.Path

    def tail(self, lines=15):
        text = self.log.read_text(errors="replace").splitlines()
        return "\n".join([f"--- the end of {self.name}'s log:", *text[-lines:]])


# --- processes and ports -------------------------------------------------------------------


def find_program(name):
    """The path of a program. Daemons are in sbin, which is in few users' PATH."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin"])
    found = shutil.which(name, path=path)
    if found is None:
        raise LaunchError(f"{name} is not installed")
    return found


def free_ports(count):
    """Ports free on loopback, below the range from which the kernel hands out ports by itself.

    Launchers take many such ports, and could take one between our choice and its use.
    """
    with contextlib.ExitStack() as held:
        ports = []
        for port in random.sample(range(15000, 30000), 1000):
            probe = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind((LOOPBACK, port))
                ports.append(port)
            if len(ports) == count:
                return ports
    raise LaunchError("no free port on loopback")


def spawn(command, env, output=None):
    """Starts a process in a session of its own, without input."""
    try:
        return subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output and subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise LaunchError(f"cannot start {command[0]}: {error.strerror}") from error


def wait_all(processes, timeout):
    """The exit code of the first process that failed, or 0 once all have ended well.

    After a failure the others get a short grace; whoever is left then is killed at our end.
    """
    deadline = time.monotonic() + timeout
    failure = 0
    while None in [process.poll() for process in processes]:
        if not failure and (failure := first_failure(processes)):
            deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        if time.monotonic() > deadline:
            if failure:
                return failure
            raise TimeoutError(f"timed out after {timeout:g} s")
        time.sleep(POLL_SECONDS)
    return failure or first_failure(processes)


def first_failure(processes):
    """The exit code of any process that has failed, as a shell would give it, or else 0."""
    code = next((process.returncode for process in processes if process.returncode), 0)
    return 128 - code if code < 0 else code


def call_prctl(option, value):
    ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), *[ctypes.c_ulong(0)] * 3)


def adopt_orphans():
    """Makes this process the parent of all its descendants that lose theirs."""
    set_child_subreaper = 36
    call_prctl(set_child_subreaper, 1)


def end_with_parent():
    """Asks for SIGTERM when the parent dies, so that a killed test leaves nothing running."""
    set_parent_death_signal = 1
    call_prctl(set_parent_death_signal, signal.SIGTERM)


def read_parents():
    """The parent of each process of the machine, by process id."""
    parents = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name before the last parenthesis may itself hold spaces and parentheses.
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
            parents[int(stat.parent.name)] = int(fields[1])
    return parents


def find_descendants():
    """The ids of the processes that this one has started, directly or not."""
    parents = read_parents()
    found = {os.getpid()}
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        grown = bool(more)
        found |= more
    return found - {os.getpid()}


def kill_descendants():
    """Kills and reaps until there is no descendant left, as they may go on starting others."""
    deadline = time.monotonic() + GRACE_SECONDS
    while (found := find_descendants()) and time.monotonic() < deadline:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


@contextlib.contextmanager
def cleanup():
    """A temporary directory, and the end of all processes started within the context."""
    with tempfile.TemporaryDirectory(prefix="launch-", ignore_cleanup_errors=True) as path:
        try:
            yield pathlib.Path(path)
        finally:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            kill_descendants()


# --- Slurm ---------------------------------------------------------------------------------


@contextlib.contextmanager
def daemon(directory, name, arguments, env):
    """Runs a daemon. It is killed at the end, for its state goes with the directory."""
    log = directory / f"{name}.log"
    with log.open("wb") as output:
        process = spawn([find_program(name), *arguments], env, output)
    try:
        yield Daemon(name, process, log)
    finally:
        process.kill()
        process.wait()


def wait_until(ready, daemons):
    """Waits until ready() is true; fails as soon as one of the daemons has ended."""
    deadline = time.monotonic() + START_SECONDS
    while not ready():
        for each in daemons:
            if each.process.poll() is not None:
                code = each.process.returncode
                raise LaunchError(f"{each.name} ended with code {code}\n{each.tail()}")
        if time.monotonic() > deadline:
            names = ", ".join(each.name for each in daemons)
            tails = "\n".join(each.tail() for each in daemons)
            raise LaunchError(f"not ready after {START_SECONDS} s: {names}\n{tails}")
        time.sleep(POLL_SECONDS)


def accepts(family, address):
    with socket.socket(family) as probe:
        return probe.connect_ex(address) == 0


@contextlib.contextmanager
def munge(directory, env):
    """Runs a munged with a key of its own, and gives the path of its socket."""
    key, path = directory / "munge.key", directory / "munge.socket"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))
    arguments = [
        "--foreground",
        # Without force it wants a socket that all users can reach; ours is for us only.
        "--force",
        f"--key-file={key}",
        f"--socket={path}",
        f"--pid-file={directory}/munged.pid",
        f"--seed-file={directory}/munged.seed",
        f"--log-file={directory}/munged.log",
    ]
    with daemon(directory, "munged", arguments, env) as munged:
        wait_until(lambda: accepts(socket.AF_UNIX, str(path)), [munged])
        yield path


def slurm_listening(host):
    """The setting by which Slurm listens at the host's own address instead of at all of them.

    Its programs reach each other over loopback, so this works only where that is the address.
    """
    with contextlib.suppress(OSError):
        if socket.gethostbyname(host) == LOOPBACK:
            return "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny"
    return ""


def write_slurm_conf(directory, munge_socket, ports):
    """Writes the configuration of a cluster that is this machine only, and gives its path."""
    host = socket.gethostname().partition(".")[0]
    text = SLURM_CONF.format(
        host=host,
        loopback=LOOPBACK,
        controller_port=ports[0],
        node_port=ports[1],
        user=pwd.getpwuid(os.getuid()).pw_name,
        munge_socket=munge_socket,
        listening=slurm_listening(host),
        directory=directory,
        cpus=os.cpu_count(),
        # Programs may derive a port from it, and runs at the same time should not collide.
        first_job=random.randint(1, 1_000_000),
    )
    for name in ("state", "spool"):
        (directory / name).mkdir()
    # Left to itself slurmd looks for a cgroup plugin that suits the machine, and gives up in a
    # container where none does. This one does nothing until a plugin asks for cgroups.
    (directory / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    path = directory / "slurm.conf"
    path.write_text(text)
    return path


def node_is_idle(env):
    command = [find_program("sinfo"), "--noheader", "--format=%T"]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=10)
    except subprocess.TimeoutExpired:
        return False
    return done.stdout.strip() == "idle"


@contextlib.contextmanager
def slurm(directory, env):
    """Runs a private Slurm, and gives the environment in which its commands find it."""
    ports = free_ports(2)
    with munge(directory, env) as munge_socket:
        env = env | {"SLURM_CONF": str(write_slurm_conf(directory, munge_socket, ports))}
        with daemon(directory, "slurmctld", ["-D"], env) as controller:
            # A slurmd or sinfo that finds no controller sleeps for long before its next try.
            wait_until(lambda: accepts(socket.AF_INET, (LOOPBACK, ports[0])), [controller])
            with daemon(directory, "slurmd", ["-D"], env) as node:
                wait_until(lambda: node_is_idle(env), [controller, node])
                yield env


# --- launchers -----------------------------------------------------------------------------


def launch_plain(job, _directory):
    ranks = []
    for rank in range(job.n):
        place = {"RANK": str(rank), "WORLD_SIZE": str(job.n), "LOCAL_RANK": str(rank)}
        ranks.append(spawn(job.command, place | job.env))
    return wait_all(ranks, job.timeout)


def launch_torchrun(job, directory):
    command = [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--standalone", "--no-python", f"--nproc-per-node={job.n}"),
        f"--local-addr={LOOPBACK}",
        f"--log-dir={directory}",
    ]
    env = {"OMP_NUM_THREADS": "1"} | job.env
    return wait_all([spawn(command + job.command, env)], job.timeout)


def launch_mpirun(job, directory):
    settings = {
        "plm": "isolated",
        "oob_tcp_if_include": "lo",
        "btl": "self,vader",
        # Otherwise a killed run leaves its files in /tmp and /dev/shm.
        "orte_tmpdir_base": str(directory),
        "btl_vader_backing_directory": str(directory),
    }
    command = [find_program("mpirun"), "-n", str(job.n), "--oversubscribe", "--bind-to", "none"]
    if os.getuid() == 0:
        command.append("--allow-run-as-root")
    for name, value in settings.items():
        command += ["--mca", name, value]
    for name in MASTER_VARIABLES:
        if name in job.env:
            command += ["-x", name]
    return wait_all([spawn(command + job.command, job.env)], job.timeout)


def launch_srun(job, directory):
    options = ["-n", str(job.n), "--nodes=1", "--overcommit", "--kill-on-bad-exit=1"]
    with slurm(directory, job.env) as env:
        command = [find_program("srun"), *options, *job.command]
        return wait_all([spawn(command, env)], job.timeout)


LAUNCHERS = {
    "plain": launch_plain,
    "torchrun": launch_torchrun,
    "mpirun": launch_mpirun,
    "srun": launch_srun,
}


def make_environment(launcher, env, master):
    """The environment for a launcher: ours without traces of other launchers, then the caller's."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in LAUNCHER_VARIABLES and not name.startswith(LAUNCHER_PREFIXES)
    }
    if master and launcher != "torchrun":
        clean |= {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(free_ports(1)[0])}
    return clean | env


def supervise(launcher, n, command, env, timeout, master):
    """Runs one job to its end and gives the exit code. This process must have no other children."""
    try:
        with cleanup() as directory:
            job = Job(n, command, make_environment(launcher, env, master), timeout)
            return LAUNCHERS[launcher](job, directory)
    except TimeoutError as error:
        print(f"launch.py: {launcher}: {error}", file=sys.stderr)
        return TIMED_OUT
    except LaunchError as error:
        print(f"launch.py: {launcher}: {error}", file=sys.stderr)
        return NOT_STARTED


def run(launcher, n, command, env=None, timeout=120, master=True):
    """Runs command n times under a launcher and gives its Result.

    Raises LaunchError if the launcher could not be started. master=False leaves MASTER_ADDR and
    MASTER_PORT out, so that the program has to derive them; torchrun always sets them.
    """
    # A process of its own, since a subreaper that kills its descendants is no good neighbour.
    arguments = [sys.executable, __file__, "--with", launcher, "-n", str(n)]
    arguments += ["--timeout", str(timeout)] + ([] if master else ["--no-master"])
    for name, value in (env or {}).items():
        arguments += ["--env", f"{name}={value}"]
    process = subprocess.Popen(
        [*arguments, "--", *map(str, command)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        stdout, stderr = process.communicate()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if process.returncode == NOT_STARTED:
        raise LaunchError(stderr.strip())
    return Result(process.returncode, stdout, stderr)


# --- command line --------------------------------------------------------------------------


def parse_setting(text):
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form K=V")
    return name, value


def parse_count(text):
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def parse_arguments(argv):
    """The options before the first "--" and, as .command, all that follows it."""
    split = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(
        usage="%(prog)s --with LAUNCHER -n N [options] -- PROGRAM ARGS...",
        description=__doc__.partition("\n")[0],
    )
    parser.add_argument("--with", dest="launcher", choices=LAUNCHERS, required=True)
    parser.add_argument("-n", type=parse_count, required=True, help="number of processes")
    parser.add_argument("--timeout", type=float, default=120, metavar="SECONDS")
    parser.add_argument("--no-master", dest="master", action="store_false",
                        help="do not set MASTER_ADDR and MASTER_PORT")
    parser.add_argument("--env", nargs="+", action="extend", type=parse_setting, default=[],
                        metavar="K=V", help="variables to set for the program")
    arguments = parser.parse_args(argv[:split])
    arguments.command = argv[split + 1:]
    if not arguments.command:
        parser.error("no program given after --")
    if arguments.launcher == "torchrun" and not arguments.master:
        parser.error("torchrun always sets MASTER_ADDR and MASTER_PORT")
    return arguments


def main(argv):
    arguments = parse_arguments(argv)
    adopt_orphans()
    end_with_parent()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        # An exception, and not the default death, so that the clean-up is done.
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    return supervise(
        arguments.launcher,
        arguments.n,
        arguments.command,
        dict(arguments.env),
        arguments.timeout,
        arguments.master,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
