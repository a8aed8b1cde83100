"""The guardian: detached from the login, parent of the supervisor, and subreaper of the supervisor's tree.

    start (dies with the SSH channel) -> guardian (subreaper) -> supervisor (subreaper) -> launcher -> ranks

If the supervisor dies, its children become the guardian's. The guardian ends them and writes the exit record, with the
outcome that the supervisor had sent. The guardian kills the supervisor if its loop is stuck, or if its ranks outlive
their lease.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any, Dict, Optional, cast

from ddpctl_worker.machine import child, fs, notes, processes, syslog
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.record import record
from ddpctl_worker.record.paths import RunPaths
from ddpctl_worker.run import notifying
from ddpctl_worker.run.cleanup import Leftovers, SupervisorPipe, clean_up, leave_slots, wait_until_gone
from ddpctl_worker.run.lease import GUARDIAN, SUPERVISOR, Lease
from ddpctl_worker.run.limits import LEASED_SUPERVISOR_END_S, SUPERVISOR_END_S
from ddpctl_worker.run.order import RunOrder
from ddpctl_worker.run.scope import enter_scope
from ddpctl_worker.run.supervisor import Supervisor
from ddpctl_worker.slots import claims
from ddpctl_worker.wire.contract import SPAWN_FAILED


def launch(order: RunOrder) -> Dict[str, Any]:
    """Start a detached guardian with ``order``; return its answer {"refused": ``None`` or the reason}.

    ``login`` in the answer: the reason is that the run would end with its login.
    """
    run, lease = order["run"], order.get("lease") or {}
    words = processes.guardian_argv_tail(run["run"], run["host"])
    fds = [lease[reader] for reader in (SUPERVISOR, GUARDIAN) if reader in lease]
    return child.launch(__name__, order, words, [*fds, *order["slots"]["fds"]])


def main(reply_fd: str, *_: str) -> None:
    """Run the guardian's process: read the order, start the supervisor, wait for its end, clean up."""
    reply = int(reply_fd)
    order = cast(RunOrder, child.read_order())
    paths = RunPaths(order["top"], order.get("attempt"))
    child.detach(paths.debug_log)
    processes.set_name("ddpctl-guardian")
    if order.get("attempt") is None:  # otherwise the agent has moved already
        refused = enter_scope(order["run"], order["outlive"])
        if refused is not None:
            record.write(paths, outcomes.failed(outcomes.cause(paths.host, SPAWN_FAILED, refused)))
            child.reply_to_starter(reply, {"refused": refused, "login": True})
            return
    syslog.log_line("run %(run)s of job %(job)s starts" % order["run"])
    processes.become_subreaper()
    slots = order["slots"]
    claims.keep_private(slots)
    me = processes.identify(os.getpid())
    assert me is not None
    ours, theirs = socket.socketpair()
    supervisor_pid = os.fork()
    if supervisor_pid == 0:
        ours.close()
        _supervise(order, me, theirs.detach(), reply)
    theirs.close()
    os.close(reply)
    cookie, notifiers = order["cookie"], order["notify"]
    limit = float(order["run"]["timeouts"]["start"])
    lease = Lease(order.get("lease"), GUARDIAN)
    patience = LEASED_SUPERVISOR_END_S if order.get("lease") else SUPERVISOR_END_S
    whole = order.get("attempt") is None  # else the agent has the slots, too, for the next attempt
    job = order["run"]["job"]
    del order  # its secrets; the notifiers' secrets stay
    supervisor = processes.identify(supervisor_pid)
    listener = SupervisorPipe(ours.fileno(), limit)
    detail = wait_until_gone(listener, supervisor, lambda: leave_slots(listener, slots), lease)
    _wait_for(supervisor_pid, patience)
    clean_up(paths, Leftovers(cookie, (), [os.getpid()], supervisor, listener.facts, lease.remaining()), detail)
    claims.leave(slots, over=whole)
    _log_end(paths, job)
    notifying.at_end(paths, notifiers)


def _supervise(order: RunOrder, guardian: processes.ProcessId, guard: int, reply: int) -> None:
    """Run the supervisor's process. Never returns."""
    code = 70
    supervisor: Optional[Supervisor] = None

    def answer(refused: Optional[str]) -> None:
        child.reply_to_starter(reply, {"refused": refused})

    try:
        processes.set_name("ddpctl-super")
        supervisor = Supervisor(order, guardian, guard, answer)
        supervisor.start()
        order["env"], order["gang_key"] = {}, None
        supervisor.supervise()
        code = 0
    except BaseException as error:
        if supervisor is None:
            notes.note(notes.trace(error))
        else:
            supervisor.note_death(error)
    finally:
        os._exit(code)


def _log_end(paths: RunPaths, job: str) -> None:
    """Write the state and the reason to the log of the system; the words of a failure are the user's own."""
    end = fs.read_optional(paths.exit)
    reason = (end.get("cause") or {}).get("reason")
    syslog.log_line(
        "run %s of job %s ended: %s%s" % (paths.run_id, job, end.get("state"), ", %s" % reason if reason else "")
    )


def _wait_for(supervisor: int, seconds: float) -> None:
    """Reap the supervisor if it ends within ``seconds``, and orphans of the job until then.

    A hung disk may keep the supervisor for longer. The guardian then continues, so that the job's processes end.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == supervisor:
            return
        if pid == 0:
            time.sleep(0.02)
