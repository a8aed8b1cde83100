"""The guardian: detached from the login, parent of the supervisor, and heir of its children should it die.

    start (dies with the SSH channel) -> guardian (subreaper) -> supervisor (subreaper) -> launcher -> ranks

Killed with SIGKILL, the supervisor leaves its whole tree to the guardian, which ends it and writes the exit record,
with the outcome that the supervisor knew, where it did. A supervisor whose loop is stuck is killed, and so is one that
has not ended its ranks by the end of their lease.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from typing import Any, Dict, Optional

from ddpctl_worker import notes
from ddpctl_worker.paths import RunPaths
from ddpctl_worker.run import detached, notifying, processes
from ddpctl_worker.run.cleanup import Leftovers, TetherListener, clean_up, wait_until_gone
from ddpctl_worker.run.lease import GUARDIAN, SUPERVISOR, Lease
from ddpctl_worker.run.supervisor import Supervisor

END_S = 5.0  # how long a supervisor that has ended, or was killed, may take to be gone
LEASED_END_S = 0.5  # where other hosts wait for the end of a lease, and start their ranks soon after that


def launch(order: Dict[str, Any]) -> Dict[str, Any]:
    """Start a detached guardian with ``order`` and wait for its word: {"refused": None or why}."""
    run, lease = order["run"], order.get("lease") or {}
    words = processes.guardian_words(run["run"], run["host"])
    return detached.launch(__name__, order, words, [lease[one] for one in (SUPERVISOR, GUARDIAN) if one in lease])


def main(reply: int) -> None:
    """The guardian's process: read the order, let the starter go, start the supervisor, wait for it."""
    order = detached.read_order()
    paths = RunPaths(order["top"], order.get("attempt"))
    detached.detach(paths.debug_log)
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
    cookie, notifiers = order["cookie"], order["notify"]
    limit = float(order["run"]["timeouts"]["start"])
    lease = Lease(order.get("lease"), GUARDIAN)
    patience = LEASED_END_S if order.get("lease") else END_S
    del order  # the secrets, but those that notifiers need
    supervisor = processes.identify(child)
    listener = TetherListener(ours.fileno(), limit)
    detail = wait_until_gone(listener, supervisor, lambda: None, lease)
    _wait_for(child, patience)
    clean_up(paths, Leftovers(cookie, (), [os.getpid()], supervisor, listener.words, lease.left()), detail)
    notifying.at_end(paths, notifiers)


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


def _wait_for(child: int, seconds: float) -> None:
    """Collect ``child``, should it end soon: it may be stuck in a hung disk, and then what it left is ended without
    waiting for that. Whatever else is collected meanwhile is nobody's."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == child:
            return
        if pid == 0:
            time.sleep(0.02)
