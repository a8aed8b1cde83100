"""The shell of ``ddpctl ssh JOB:RANK`` on the rank's host: in the run's folder, with the rank's environment."""

from __future__ import annotations

import os
import pwd
import sys
from typing import Dict, Optional

from ddpctl_worker.machine import fs, proc, processes
from ddpctl_worker.record.paths import RunPaths
from ddpctl_worker.record.ranks import read_rank_processes
from ddpctl_worker.record.record import named_by
from ddpctl_worker.wire.channel import WorkerError
from ddpctl_worker.wire.contract import ENV_COOKIE, ENV_METRICS

# The variables by which ddpctl and torch know a process of the run. A program in the shell is no process of the run: a
# kill must not end it, and it must not write to the run's files.
_OF_THE_RUN = (ENV_COOKIE, ENV_METRICS, "TORCHELASTIC_ERROR_FILE")
_LOOK = "DDPCTL_LOOK"  # the beginning of the doctor's variables
_OF_THE_LOGIN = ("TERM", "SSH_TTY", "SSH_CONNECTION", "SSH_CLIENT", "SSH_AUTH_SOCK", "DISPLAY")


def open_shell(base_dir: str, run: str, host: str, rank: str) -> None:
    """Replace this process by the login's shell. Ends with status 1 and a message if the run is not on this host."""
    try:
        paths, _ = named_by({"base_dir": base_dir, "run": run, "host": host})
    except WorkerError as error:
        raise SystemExit("ddpctl: %s" % error) from None
    newest = paths.newest()
    env = _environment_of(newest, rank)
    if env is None:
        sys.stderr.write("ddpctl: rank %s is not running on %s: this is the run's folder only\n" % (rank, host))
        env = dict(os.environ)
    folder = fs.read_optional(newest.state).get("cwd")
    os.chdir(folder if isinstance(folder, str) and os.path.isdir(folder) else paths.top)
    shell = pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"
    sys.stderr.flush()
    os.execve(shell, [shell, "-i"] if os.isatty(0) else [shell], env)


def _environment_of(paths: RunPaths, rank: str) -> Optional[Dict[str, str]]:
    """Return the environment of a living rank, without the variables of the run; ``None``: it does not run."""
    pid, start = read_rank_processes(paths).get(int(rank), (0, 0))
    who = processes.ProcessId(str(fs.read_optional(paths.state).get("boot")), pid, start)
    values = proc.environment(pid) if processes.is_alive(who) else None
    if not values:
        return None
    env = {os.fsdecode(name): os.fsdecode(value) for name, value in values.items()}
    if any(name.startswith(_LOOK) for name in env):  # the doctor's folder is the first of PYTHONPATH
        own = env.pop("PYTHONPATH", "").partition(":")[2]
        env.update({"PYTHONPATH": own} if own else {})
    kept = {name: value for name, value in env.items() if name not in _OF_THE_RUN and not name.startswith(_LOOK)}
    return {**kept, **{name: os.environ[name] for name in _OF_THE_LOGIN if name in os.environ}}
