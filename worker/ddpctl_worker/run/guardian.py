"""The guardian: detached from the login, parent of the supervisor, and heir of its children should it die.

    start (dies with the SSH channel) -> guardian (subreaper) -> supervisor (subreaper) -> launcher -> ranks

Killed with SIGKILL, the supervisor leaves its whole tree to the guardian, which ends it and writes the exit record,
with the outcome that the supervisor knew, where it did. A supervisor whose loop is stuck is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any, Dict, Optional

from ddpctl_worker import notes
from ddpctl_worker.paths import RunPaths
from ddpctl_worker.run import processes
from ddpctl_worker.run.cleanup import UP_S, Leftovers, TetherListener, clean_up, wait_until_gone
from ddpctl_worker.run.supervisor import Supervisor

END_S = 5.0  # how long a supervisor that has ended, or was killed, may take to be gone
_CODE = (
    "import sys; sys.path.insert(0, sys.argv[1]); from ddpctl_worker.run.guardian import main; main(int(sys.argv[2]))"
)


def launch(order: Dict[str, Any]) -> Dict[str, Any]:
    """Start a detached guardian with ``order`` and wait for its word: {"refused": None or why}.

    The order holds secrets, so it goes through a pipe. Nothing of the caller's is inherited: the SSH channel that the
    caller talks through must be able to close.
    """
    reply_r, reply_w = os.pipe()
    run = order["run"]
    argv = [sys.executable, "-I", "-c", _CODE, order["code_path"], str(reply_w)]
    argv += processes.guardian_words(run["run"], run["host"])
    null = subprocess.DEVNULL
    child = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=null, stderr=null, pass_fds=(reply_w,), start_new_session=True, cwd="/"
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


def main(reply: int) -> None:
    """The guardian's process: read the order, let the starter go, start the supervisor, wait for it."""
    order = json.loads(sys.stdin.buffer.read())
    if os.fork():
        os._exit(0)
    paths = RunPaths(order["node"])
    _detach(paths.debug_log)
    processes.set_name("ddpctl-guardian")
    processes.become_subreaper()
    me = processes.identify(os.getpid())
    assert me is not None
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        _supervise(order, me, theirs.detach(), reply)
    theirs.close()
    os.close(reply)
    cookie = order["cookie"]
    limit = float((order["run"].get("timeouts") or {}).get("start") or UP_S)
    del order  # the secrets
    supervisor = processes.identify(child)
    listener = TetherListener(ours.fileno(), limit)
    detail = wait_until_gone(listener, supervisor, lambda: None)
    _wait_for(child)
    clean_up(paths, Leftovers(cookie, (), [os.getpid()], supervisor, listener.words), detail)


def _detach(log: str) -> None:
    """No terminal, no inherited descriptor, no folder kept busy."""
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


def _supervise(order: Dict[str, Any], guardian: processes.ProcessId, guard: int, reply: int) -> None:
    """The supervisor's process; never returns."""
    code = 70
    supervisor: Optional[Supervisor] = None

    def answer(refused: Optional[str]) -> None:
        with contextlib.suppress(BrokenPipeError):  # the starter was killed meanwhile; the run is started all the same
            os.write(reply, json.dumps({"refused": refused}).encode("ascii"))
        os.close(reply)

    try:
        processes.set_name("ddpctl-super")
        supervisor = Supervisor(order, guardian, guard, answer)
        supervisor.start()
        for secret in ("env", "gang_key"):
            order.pop(secret, None)
        supervisor.supervise()
        code = 0
    except BaseException as error:
        if supervisor is None:
            notes.note(notes.trace(error))
        else:
            supervisor.died(error)
    finally:
        os._exit(code)


def _wait_for(child: int) -> None:
    """Collect ``child``, should it end soon: it may be stuck in a hung disk, and then what it left is ended without
    waiting for that. Whatever else is collected meanwhile is nobody's."""
    until = time.monotonic() + END_S
    while time.monotonic() < until:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == child:
            return
        if pid == 0:
            time.sleep(0.02)
