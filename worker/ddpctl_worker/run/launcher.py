"""Starts the launcher of a run: its environment, the ranks' pipes and interpreter, the claim, and the process."""

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

from ddpctl_worker.machine import cgroup, fs, proc, processes, systemd
from ddpctl_worker.machine.cgroup import ControlGroup
from ddpctl_worker.machine.core_files import restore_core_limit
from ddpctl_worker.record.lines import STDERR, STDOUT
from ddpctl_worker.record.paths import RunPaths, job_id
from ddpctl_worker.record.record import attempt_of
from ddpctl_worker.record.runrecord import RunRecord
from ddpctl_worker.run.drain import Drain
from ddpctl_worker.run.limits import PIPE_BYTES
from ddpctl_worker.run.order import RunOrder
from ddpctl_worker.wire import contract

_F_SETPIPE_SZ = 1031

# The ranks' interpreter, as the launcher sees it. The script connects the rank to its own pipes and executes the real
# interpreter with the same arguments. Without pipes the rank keeps the launcher's: the script must not fail then. Each
# rank gets its own file for metrics, so that no two ranks write to the same file. The script sets no shell variables,
# since it could overwrite the user's.
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
    """Return the login's environment, from the kernel: the interpreter may have changed LC_CTYPE since."""
    found = proc.environment(os.getpid()) or os.environb
    return {os.fsdecode(key): os.fsdecode(value) for key, value in found.items()}


def scrub_environment(login: Dict[str, str]) -> Dict[str, str]:
    """Return the login's environment without the variables of another launch."""
    names = (key for key in login if key not in contract.SCRUB_NAMES and not key.startswith(contract.SCRUB_PREFIXES))
    return {key: login[key] for key in names}


def folders_of(paths: RunPaths) -> Dict[str, str]:
    """Return token of contract.py -> folder of the run. ``CHECKPOINT_DIR_TOKEN`` is missing: runs share its folder."""
    return {
        contract.RUN_DIR_TOKEN: paths.top,
        contract.OUTPUT_DIR_TOKEN: paths.output,
        contract.CODE_DIR_TOKEN: paths.code,
    }


def place_variables(text: str, folders: Dict[str, str]) -> str:
    """Replace a folder's token at the beginning of ``text``. A token elsewhere is the user's own text."""
    for token, folder in folders.items():
        if text == token or text.startswith((token + "/", token + ":")):
            return folder + text[len(token) :]
    return text


def working_folder(cwd: Optional[str], paths: RunPaths) -> str:
    """Return the launcher's working folder: tokens and ``~`` replaced, relative paths below the home folder."""
    if not cwd:
        return paths.code if os.path.isdir(paths.code) else os.path.expanduser("~")
    found = os.path.expanduser(place_variables(cwd, folders_of(paths)))
    return found if os.path.isabs(found) else os.path.join(os.path.expanduser("~"), found)


def expand_home(argv: List[str]) -> List[str]:
    """Return the command line with ``~`` of its program replaced."""
    return [os.path.expanduser(argv[0]), *argv[1:]]


def environment(
    request: Dict[str, Any], login: Dict[str, str], paths: RunPaths, checkpoints: str, cookie: str
) -> Dict[str, str]:
    """Return the launcher's environment: the login's, scrubbed, then the plan's, the secrets, and ddpctl's.

    ``checkpoints``: the folder for the checkpoints of this job on this node.
    """
    found = scrub_environment(login)
    tokens = set(request.get("token_env") or ())
    folders = {**folders_of(paths), contract.CHECKPOINT_DIR_TOKEN: checkpoints}
    for key, value in (request.get("env") or {}).items():
        found[key] = place_variables(value, folders) if key in tokens else value
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
            contract.ENV_METRICS: os.path.join(paths.metrics, "node.jsonl"),  # the shim sets a file for each rank
            contract.ENV_COOKIE: cookie,
            contract.ENV_ATTEMPT: str(attempt_of(run) - 1),
        }
    )
    if "host_map" in run:  # of this attempt; otherwise the plan's stays
        found[contract.ENV_HOSTS] = run["host_map"]
        if run.get("launcher") == contract.PLAIN and "RANK" in found:
            found.update(node_variables(run))
    return found


def node_variables(run: RunRecord) -> Dict[str, str]:
    """Return the variables of a script that starts its own processes, as in the plan (ddpctl/spec/self_spawning.py)."""
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
    """Write the ranks' interpreter and their FIFOs; return False if the filesystem forbids them (noexec, no FIFOs).

    ``env``: the launcher's. ``python``: the interpreter; without a folder it is looked up in PATH of ``env``.
    ``doctor``: whether the doctor may look into the ranks. ``attempt``: its number in the run. ``rank``: the rank of
    the only process, if there is no launcher of torch to set it.
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
        os.mkdir(paths.pipes, 0o700)  # after that call, since no process reads the FIFOs yet
        for local in range(nproc):
            os.mkfifo(paths.fifo(local, "out"), 0o600)
            os.mkfifo(paths.fifo(local, "err"), 0o600)
    except OSError:
        runs = False
    if not runs and os.path.exists(paths.shim):
        os.unlink(paths.shim)
    return runs


def _shell(env: Iterable[str]) -> str:
    """Return the shell for the shim, with its flag.

    dash and busybox drop variables if their name is no identifier: exported functions of bash, names with a dot or a
    hyphen. bash keeps them, and with ``-p`` it reads no BASH_ENV and runs no exported function. bash is not the
    default: it takes 3 ms more, and warns on stderr if LC_ALL names no locale.
    """
    if all(name.isascii() and name.isidentifier() for name in env):
        return "/bin/sh"
    bash = shutil.which("bash", path=os.defpath)
    return bash + " -p" if bash else "/bin/sh"


def _attempt(number: int) -> str:
    """Return the shim's line that adds the earlier attempts to torch's count of restarts.

    Each attempt has a new launcher, which counts only its own restarts.
    """
    return "export TORCHELASTIC_RESTART_COUNT=$((${TORCHELASTIC_RESTART_COUNT:-0} + %d))\n" % (number - 1)


def _way_in(paths: RunPaths) -> str:
    """Return the shim's lines that let the doctor look into a rank; make the folder that they name."""
    from ddpctl_worker.doctor import rank

    boot = os.path.abspath(paths.doctor_boot)  # as in the interpreter's sys.path, from which it is removed
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


def has_way_in(paths: RunPaths) -> bool:
    """Return whether the ranks let the doctor see their collectives and stacks."""
    try:
        with open(paths.shim, encoding="utf-8", errors="surrogateescape") as file:
            return "DDPCTL_LOOK_PID" in file.read()
    except OSError:
        return False


def enlarge_pipe(fd: int) -> None:
    """Enlarge a pipe from 64 KiB, so that a rank writes on while the supervisor is busy."""
    with contextlib.suppress(OSError):  # the user's limit for pipes
        fcntl.fcntl(fd, _F_SETPIPE_SZ, PIPE_BYTES)


def open_fifo(path: str) -> int:
    """Open both ends: a rank's open never waits, and the reader sees no end of file between two writers."""
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    enlarge_pipe(fd)
    return fd


class Spawned(NamedTuple):
    """A running launcher and the read ends of its own stdout and stderr."""

    pid: int
    out: int
    err: int


def spawn(argv: List[str], cwd: str, env: Dict[str, str], before_exec: Callable[[], None]) -> Spawned:
    """Start the launcher. Called from the main thread, before any other thread runs.

    Raises:
        OSError: the program or the folder is missing or not usable.
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
    process.returncode = 0  # the supervisor reaps every child itself, so Popen must not
    for fd in (out_r, err_r):
        os.set_blocking(fd, False)
        enlarge_pipe(fd)
    return Spawned(process.pid, out_r, err_r)


class BeforeExec:
    """The first steps in the launcher's process: the death signal, the default signal handlers, limits, the OOM score.

    The process ends silently if a file of ``called_off`` exists: the run was stopped during its start.
    """

    def __init__(
        self,
        oom_score: Optional[str],
        umask: int,
        group: Optional[ControlGroup] = None,
        called_off: Sequence[str] = (),
        parent: Optional[int] = None,
    ) -> None:
        # SIGTERM, not SIGKILL: torchrun passes it on to its ranks, so even a double loss ends the job in good order.
        self._death = processes.DeathSignal(signal.SIGTERM, parent)
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
        restore_core_limit()
        if self._oom_score is not None:
            with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
                file.write(self._oom_score)
        if self._group is not None:
            with contextlib.suppress(OSError):
                self._group.enter()
        if any(map(os.path.lexists, self._called_off)):
            os._exit(1)


def raise_limits() -> None:
    """Raise the soft limits of open files and locked memory to the hard limits.

    Many ranks and data loaders exceed the usual soft limit of 1024 files, and RDMA pins more than 64 KiB.
    """
    for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK):
        soft, hard = resource.getrlimit(kind)
        if soft != hard:
            with contextlib.suppress(OSError, ValueError):  # a hard limit above the kernel's maximum
                resource.setrlimit(kind, (hard, hard))


def protect_from_oom() -> Optional[str]:
    """Make the kernel kill the job before this process if memory runs out; return the score for the children, or None.

    Only root may lower a score. Other users can only raise the scores of the job's processes.
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
    """Another process has taken the claim: the start was given up."""


class Launching:
    """The start of a launcher. ``order``: the guardian's. ``launcher``: its identity after the start."""

    def __init__(self, order: RunOrder, paths: RunPaths, guardian: processes.ProcessId) -> None:
        self._order, self._run, self._paths = order, order["run"], paths
        self._me = processes.identify(os.getpid())
        self._guardian = guardian
        self.group: Optional[ControlGroup] = None
        self.launcher: Optional[processes.ProcessId] = None
        groups = fs.read_text("/proc/self/cgroup")
        self._manager = systemd.find_user_manager(groups) if systemd.find_scope(groups) else None

    def claim(self) -> None:
        """Write on the disk which processes run the run, before there is a process that a stop has to find.

        Raises:
            TooLate: another process has claimed the run.
            OSError: the disk refuses the file.
        """
        attempt = "" if self._paths.attempt is None else ".%d" % self._paths.attempt
        self.group = cgroup.make(self._run["run"], self._run["host"] + attempt)
        if not fs.write_once(self._paths.claim, self.names(), durable=False):
            self.leave_group()
            raise TooLate("the start of this run took too long and was abandoned")

    def start(self, drain: Drain) -> Optional[str]:
        """Spawn the launcher and give its pipes and its ranks' pipes to ``drain``; return why that failed, or None."""
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
            self.leave_group()  # it could not enter: an empty group would prove nothing
        drain.add(child.out, None, STDOUT)
        drain.add(child.err, None, STDERR)
        return None

    def _environment(self) -> Dict[str, str]:
        watched = self._order.get("shim") and self._run.get("doctor")
        return dict(self._order["env"], **({ENV_WATCHER: str(os.getpid())} if watched else {}))

    def names(self) -> Dict[str, Any]:
        """Return the identities of the run's processes, the cookie, and the path of the control group.

        ``manager``: the user's own systemd, if it has the run's scope.
        """
        return {
            "supervisor": self._me.to_json() if self._me else None,
            "guardian": self._guardian.to_json(),
            "launcher": self.launcher.to_json() if self.launcher else None,
            "cookie": self._order["cookie"],
            "group": self.group.path if self.group else None,
            "manager": self._manager.to_json() if self._manager else None,
        }

    def leave_group(self) -> None:
        if self.group is not None:
            self.group.remove()
        self.group = None
