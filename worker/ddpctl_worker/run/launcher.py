"""The launcher of a run: its environment, the ranks' pipes, its start, and who runs it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import shlex
import shutil
import signal
import subprocess
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence

from ddpctl_worker.machine import cgroup, fs, proc, processes
from ddpctl_worker.machine.cgroup import ControlGroup
from ddpctl_worker.record.lines import STDERR, STDOUT
from ddpctl_worker.record.paths import RunPaths, job_id
from ddpctl_worker.record.record import attempt_of
from ddpctl_worker.run.drain import Drain
from ddpctl_worker.run.limits import PIPE_BYTES
from ddpctl_worker.wire import contract

_F_SETPIPE_SZ = 1031

# The ranks' interpreter, as the launcher sees it: connects the rank to its own pipes and becomes the real one, with
# the very arguments it was given. It must not fail where the pipes are missing: then the rank keeps the launcher's.
# Each rank gets a file of its own for its metrics, so that no two write to one. No shell variable of its own: one that
# the user has in the environment would change there.
_SHIM = """#!{shell}
unset PYTHON_EXEC
export DDPCTL_METRICS={metrics}/rank-{rank}.jsonl
{attempt}{doctor}if [ -p {pipes}/{local}.out ] && [ -p {pipes}/{local}.err ]; then
exec {python} "$@" >{pipes}/{local}.out 2>{pipes}/{local}.err
fi
exec {python} "$@"
"""

# doctor/rank/sitecustomize.py runs first in the rank, and only there: `$$` stays its pid.
_DOCTOR = """export DDPCTL_LOOK_PID=$$ DDPCTL_LOOK={doctor} DDPCTL_LOOK_PATH="${{PYTHONPATH+set}}"
export PYTHONPATH={boot}"${{PYTHONPATH:+:$PYTHONPATH}}"
"""
ENV_WATCHER = "DDPCTL_LOOK_BY"  # the supervisor's pid


def login_environment() -> Dict[str, str]:
    """What the login gave this process. From the kernel: the interpreter itself may have changed LC_CTYPE since."""
    found = proc.environment(os.getpid()) or os.environb
    return {os.fsdecode(key): os.fsdecode(value) for key, value in found.items()}


def scrubbed(login: Dict[str, str]) -> Dict[str, str]:
    """The login's environment without what belongs to another launch."""
    names = (key for key in login if key not in contract.SCRUB_NAMES and not key.startswith(contract.SCRUB_PREFIXES))
    return {key: login[key] for key in names}


def folders_of(paths: RunPaths) -> Dict[str, str]:
    """What the tokens of contract.py stand for in a run; see ``CHECKPOINT_DIR_TOKEN`` for the one that it shares."""
    return {
        contract.RUN_DIR_TOKEN: paths.top,
        contract.OUTPUT_DIR_TOKEN: paths.output,
        contract.CODE_DIR_TOKEN: paths.code,
    }


def place(text: str, folders: Dict[str, str]) -> str:
    """``text`` with a folder's token at its very beginning replaced; a token anywhere else is the user's own text."""
    for token, folder in folders.items():
        if text == token or text.startswith((token + "/", token + ":")):
            return folder + text[len(token) :]
    return text


def working_folder(cwd: Optional[str], paths: RunPaths) -> str:
    """Where the launcher runs: tokens and ``~`` replaced, a relative path taken from the home."""
    if not cwd:
        return paths.code if os.path.isdir(paths.code) else os.path.expanduser("~")
    found = os.path.expanduser(place(cwd, folders_of(paths)))
    return found if os.path.isabs(found) else os.path.join(os.path.expanduser("~"), found)


def at_home(argv: List[str]) -> List[str]:
    """The command line with ``~`` of its program replaced: the interpreter may be one below the home folder."""
    return [os.path.expanduser(argv[0]), *argv[1:]]


def environment(
    request: Dict[str, Any], login: Dict[str, str], paths: RunPaths, checkpoints: str, cookie: str
) -> Dict[str, str]:
    """The launcher's environment: the login's, scrubbed, then the plan's, the secrets, and ours.

    ``checkpoints`` is the folder for the checkpoints of this job on this node.
    """
    found = scrubbed(login)
    tokens = set(request.get("token_env") or ())
    folders = {**folders_of(paths), contract.CHECKPOINT_DIR_TOKEN: checkpoints}
    for key, value in (request.get("env") or {}).items():
        found[key] = place(value, folders) if key in tokens else value
    found.update(request.get("secrets") or {})
    run = request["run"]
    if run.get("launcher") != contract.PLAIN:
        found["TORCHELASTIC_ERROR_FILE"] = paths.error_file
    found.update(
        {
            contract.ENV_JOB: run["job"],
            contract.ENV_JOB_ID: job_id(run),
            contract.ENV_RUN: run["run"],
            contract.ENV_HOST: run["host"],
            contract.ENV_RUN_DIR: paths.top,
            contract.ENV_OUTPUT_DIR: paths.output,
            contract.ENV_METRICS: os.path.join(paths.metrics, "node.jsonl"),  # the shim names a file for each rank
            contract.ENV_COOKIE: cookie,
            contract.ENV_ATTEMPT: str(attempt_of(run) - 1),
        }
    )
    if "host_map" in run:  # an attempt's own; else the plan's
        found[contract.ENV_HOSTS] = run["host_map"]
        if run.get("launcher") == contract.PLAIN and "RANK" in found:
            found.update(node_variables(run))
    return found


def node_variables(run: Mapping[str, Any]) -> Dict[str, str]:
    """What a script that starts its own processes finds in an attempt: as in the plan (ddpctl/spec/plain.py)."""
    rank = dict.fromkeys(("RANK", "NODE_RANK", "GROUP_RANK"), str(run["node_rank"]))
    size = dict.fromkeys(("WORLD_SIZE", "GROUP_WORLD_SIZE"), str(run["nnodes"]))
    return {**rank, **size, "MASTER_ADDR": str(run["master_addr"]), "MASTER_PORT": str(run["master_port"])}


def make_shim(
    paths: RunPaths,
    python: str,
    env: Mapping[str, str],
    nproc: int,
    *,
    doctor: bool = False,
    attempt: int = 1,
    rank: Optional[int] = None,
) -> bool:
    """Write the ranks' interpreter and their FIFOs; False where this filesystem allows neither (noexec, no FIFOs).

    ``env`` is the launcher's; ``python`` is looked up in its PATH when it has no folder of its own. ``doctor``: the
    ranks let the doctor see them, where the disk takes what that needs. ``attempt``: which one it is of its run.
    ``rank``: that of the only process, where no launcher of torch's says so.
    """
    real = shutil.which(python, path=env.get("PATH"))
    if real is None:
        return False
    words = {"pipes": paths.pipes, "metrics": paths.metrics, "python": real}
    number = {"rank": '"$RANK"', "local": '"$LOCAL_RANK"'} if rank is None else {"rank": str(rank), "local": "0"}
    quoted = {name: shlex.quote(text) for name, text in words.items()}
    try:
        with open(paths.shim, "w", encoding="utf-8", errors="surrogateescape") as file:
            words = {"shell": _shell(env), "doctor": _way_in(paths) if doctor else ""}
            words["attempt"] = _attempt(attempt) if rank is None else ""
            file.write(_SHIM.format(**words, **number, **quoted))
        os.chmod(paths.shim, 0o700)
        null = subprocess.DEVNULL
        runs = subprocess.call([paths.shim, "-V"], stdin=null, stdout=null, stderr=null) == 0
        os.mkdir(paths.pipes, 0o700)  # after that call: nobody reads them yet
        for local in range(nproc):
            os.mkfifo(paths.fifo(local, "out"), 0o600)
            os.mkfifo(paths.fifo(local, "err"), 0o600)
    except OSError:
        runs = False
    if not runs and os.path.exists(paths.shim):
        os.unlink(paths.shim)
    return runs


def _shell(env: Iterable[str]) -> str:
    """The shell for the shim, with its flag. dash and busybox do not pass on variables whose name is no identifier:
    exported functions of bash, names with a dot or a hyphen. bash does, and with ``-p`` it reads no BASH_ENV and runs
    none of the functions. Not for all: it takes 3 ms more, and warns on stderr where LC_ALL names no locale."""
    if all(name.isascii() and name.isidentifier() for name in env):
        return "/bin/sh"
    bash = shutil.which("bash", path=os.defpath)
    return bash + " -p" if bash else "/bin/sh"


def _attempt(number: int) -> str:
    """The line of the shim that counts restarts as torch does: its launcher is a new one each time, and counts its own
    only."""
    return "export TORCHELASTIC_RESTART_COUNT=$((${TORCHELASTIC_RESTART_COUNT:-0} + %d))\n" % (number - 1)


def _way_in(paths: RunPaths) -> str:
    """The lines of the shim that let the doctor see a rank, and the folder that they name."""
    from ddpctl_worker.doctor import rank

    boot = os.path.abspath(paths.doctor_boot)  # as the interpreter names it; it is looked for, to be removed
    no_way = "unset %s\n" % ENV_WATCHER
    if os.pathsep in boot:  # in PYTHONPATH it would be two other folders
        return no_way
    try:
        for folder in (paths.doctor, paths.dumps, boot):
            os.mkdir(folder, 0o700)
        shutil.copy(os.path.join(os.path.dirname(rank.__file__), "sitecustomize.py"), boot)
    except OSError:  # see way_in_stands
        return no_way
    return _DOCTOR.format(doctor=shlex.quote(paths.doctor), boot=shlex.quote(boot))


def way_in_stands(paths: RunPaths) -> bool:
    """Whether the ranks let the doctor see their collectives and stacks."""
    try:
        with open(paths.shim, encoding="utf-8", errors="surrogateescape") as file:
            return "DDPCTL_LOOK_PID" in file.read()
    except OSError:
        return False


def enlarge(fd: int) -> None:
    """A bigger pipe lets a rank write on while the supervisor is busy; the default is 64 KiB."""
    with contextlib.suppress(OSError):  # the user's limit for pipes is used up
        fcntl.fcntl(fd, _F_SETPIPE_SZ, PIPE_BYTES)


def open_fifo(path: str) -> int:
    """Both ends at once: a rank's open never waits, and the reader never sees an end between two writers."""
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    enlarge(fd)
    return fd


class Spawned(NamedTuple):
    """A running launcher and the read ends of its own stdout and stderr."""

    pid: int
    out: int
    err: int


def spawn(argv: List[str], cwd: str, env: Dict[str, str], before_exec: Callable[[], None]) -> Spawned:
    """Start the launcher. Call it from the main thread, before any other thread runs.

    Raises:
        OSError: the program or the folder is not there or not usable.
    """
    out_r, out_w = os.pipe()
    err_r, err_w = os.pipe()
    try:
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out_w,
            stderr=err_w,
            start_new_session=True,
            close_fds=True,
            preexec_fn=before_exec,
        )
    except BaseException:
        os.close(out_r)
        os.close(err_r)
        raise
    finally:
        os.close(out_w)
        os.close(err_w)
    process.returncode = 0  # the supervisor reaps every child itself; Popen must not look for this one
    for fd in (out_r, err_r):
        os.set_blocking(fd, False)
        enlarge(fd)
    return Spawned(process.pid, out_r, err_r)


class BeforeExec:
    """What the launcher's process does first: die with the supervisor, restore its own OOM score and signals.

    It ends silently if one of ``called_off`` is there by now: the run was stopped while this was on its way.
    """

    def __init__(
        self, oom_score: Optional[str], umask: int, group: Optional[ControlGroup] = None, called_off: Sequence[str] = ()
    ) -> None:
        # SIGTERM, not SIGKILL: torchrun passes it on to its ranks, so even a double loss ends the job in good order.
        self._death = processes.DeathSignal(signal.SIGTERM)
        self._oom_score = oom_score
        self._umask = umask
        self._group = group
        self._called_off = called_off

    def __call__(self) -> None:
        self._death()
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.umask(self._umask)
        raise_limits()
        if self._oom_score is not None:
            with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
                file.write(self._oom_score)
        if self._group is not None:
            with contextlib.suppress(OSError):
                self._group.enter()
        if any(map(os.path.lexists, self._called_off)):
            os._exit(1)


def raise_limits() -> None:
    """As many open files and as much locked memory as this user may have: many ranks and data loaders pass the usual
    soft limit of 1024 files, and RDMA pins more than 64 KiB."""
    for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK):
        soft, hard = resource.getrlimit(kind)
        if soft != hard:
            with contextlib.suppress(OSError, ValueError):  # a limit above the kernel's own maximum stays as it was
                resource.setrlimit(kind, (hard, hard))


def protect_from_oom() -> Optional[str]:
    """Make this process the last one the kernel kills for memory; returns the score that its children must get.

    Only root may lower a score. Anybody may raise one, so that the job's processes go before the one that watches them.
    """
    path = "/proc/self/oom_score_adj"
    try:
        with open(path, encoding="ascii") as file:
            old = int(file.read())
    except (OSError, ValueError):
        return None
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write("-900")
    except OSError:
        return str(min(1000, old + 100))
    return str(old)


class TooLate(Exception):
    """The start was given up meanwhile, by somebody who has taken the claim."""


class Launching:
    """``order`` is the guardian's; ``launcher`` is there once it has been started."""

    def __init__(self, order: Dict[str, Any], paths: RunPaths, guardian: processes.ProcessId) -> None:
        self._order, self._run, self._paths = order, order["run"], paths
        self._me = processes.identify(os.getpid())
        self._guardian = guardian
        self.group: Optional[ControlGroup] = None
        self.launcher: Optional[processes.ProcessId] = None

    def claim(self) -> None:
        """Say on disk who runs this, before there is anything that somebody may have to end.

        Raises:
            TooLate: somebody else has claimed it.
            OSError: the disk takes nothing.
        """
        attempt = "" if self._paths.attempt is None else ".%d" % self._paths.attempt
        self.group = cgroup.make(self._run["run"], self._run["host"] + attempt)
        if not fs.write_once(self._paths.claim, self.names(), durable=False):
            self.leave_group()
            raise TooLate("the start of this run took too long and was abandoned")

    def start(self, drain: Drain) -> Optional[str]:
        """Spawn the launcher and hand its pipes and those of its ranks to ``drain``; why that was not possible."""
        oom_score = protect_from_oom()
        if self._order.get("shim"):
            for local in range(int(self._run["nproc"])):
                drain.add(open_fifo(self._paths.fifo(local, "out")), local, STDOUT)
                drain.add(open_fifo(self._paths.fifo(local, "err")), local, STDERR)
        whole = RunPaths(self._paths.top)
        called_off = (self._paths.stop, self._paths.exit, whole.stop, whole.exit)
        prepare = BeforeExec(oom_score, int(self._order["umask"]), self.group, called_off)
        try:
            child = spawn(self._order["argv"], self._order["cwd"], self._environment(), prepare)
        except OSError as error:
            return "cannot start %s: %s" % (self._order["argv"][0], error.strerror or error)
        self.launcher = processes.identify(child.pid)
        if self.group is not None and child.pid not in self.group.pids() and processes.is_alive(self.launcher):
            self.leave_group()  # it could not enter, so an empty group would prove nothing
        drain.add(child.out, None, STDOUT)
        drain.add(child.err, None, STDERR)
        return None

    def _environment(self) -> Dict[str, str]:
        watched = self._order.get("shim") and self._run.get("doctor")
        return dict(self._order["env"], **({ENV_WATCHER: str(os.getpid())} if watched else {}))

    def names(self) -> Dict[str, Any]:
        """Who runs this, and how whatever belongs to it is found."""
        return {
            "supervisor": self._me.to_json() if self._me else None,
            "guardian": self._guardian.to_json(),
            "launcher": self.launcher.to_json() if self.launcher else None,
            "cookie": self._order["cookie"],
            "group": self.group.path if self.group else None,
        }

    def leave_group(self) -> None:
        if self.group is not None:
            self.group.remove()
        self.group = None
