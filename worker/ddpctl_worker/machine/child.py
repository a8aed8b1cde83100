"""Starts processes of ddpctl's own that run code of this worker: agent, guardian, keeper, notifier and so on.

``command`` is the command line of every one of them. ``launch``, ``read_order`` and ``detach`` are for the processes
that outlive the login that starts them: the guardian of a run, and the agent of a run with restarts.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from typing import Any, Dict, List, Sequence

import ddpctl_worker

_CODE = "import sys; sys.path.insert(0, sys.argv[1]); from ddpctl_worker.machine.child import run; run(sys.argv[2:])"


def code_path() -> str:
    """Return the file or folder that this worker was imported from."""
    return os.path.dirname(os.path.dirname(os.path.abspath(ddpctl_worker.__file__)))


def command(module: str, *arguments: str, options: Sequence[str] = ()) -> List[str]:
    """Return the command line that calls ``main(*arguments)`` of ``module``. ``options`` are the interpreter's."""
    return [sys.executable, "-I", *options, "-c", _CODE, code_path(), module, *arguments]


def run(words: Sequence[str]) -> None:
    """Call ``main`` of the module that the command line names."""
    module, *arguments = words
    importlib.import_module(module).main(*arguments)


def launch(module: str, order: Dict[str, Any], words: Sequence[str], fds: Sequence[int] = ()) -> Dict[str, Any]:
    """Start ``main`` of ``module`` with ``order`` and wait for its word: {"refused": None or why, ...}.

    The order holds secrets, so it goes through a pipe. Nothing of the caller's but ``fds`` is inherited: the SSH
    channel that the caller talks through must be able to close. ``words`` are for those who look for it among the
    processes.
    """
    reply_r, reply_w = os.pipe()
    argv = command(module, str(reply_w), *words)
    null, own = subprocess.DEVNULL, (reply_w, *fds)
    child = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=null, stderr=null, pass_fds=own, start_new_session=True, cwd="/"
    )
    os.close(reply_w)
    try:
        assert child.stdin is not None
        child.stdin.write(json.dumps(order).encode("ascii"))
        child.stdin.close()
        child.wait()  # it forks and ends at once
        with os.fdopen(reply_r, "rb") as pipe:
            answer = pipe.read()
    except BrokenPipeError:
        answer = b""
    if not answer:
        return {"refused": "the supervisor did not start; see supervisor.log in the run's folder"}
    found: Dict[str, Any] = json.loads(answer)
    return found


def read_order() -> Dict[str, Any]:
    """The order, in the process that was started; its parent ends."""
    order: Dict[str, Any] = json.loads(sys.stdin.buffer.read())
    if os.fork():
        os._exit(0)
    return order


def detach(log: str) -> None:
    """No terminal, no inherited descriptor, no folder kept busy; what is said goes to ``log``."""
    os.umask(0o077)
    os.chdir("/")
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    debug = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    os.dup2(null, 0)
    os.dup2(debug, 1)
    os.dup2(debug, 2)
    os.close(null)
    os.close(debug)
