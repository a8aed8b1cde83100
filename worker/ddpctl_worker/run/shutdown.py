"""Finds out why a supervisor was asked to end, from the process that sent the signal.

systemd sends SIGTERM to all processes of a session, or of the machine, at the same time. So the signal is the cause of
a failure, and the deaths of launcher and ranks are its consequences. The processes of a scope get SIGWINCH instead,
which ends no rank (scope.py).
"""

from __future__ import annotations

import re
from typing import Any, Dict, Optional

from ddpctl_worker.facts import user_name
from ddpctl_worker.machine import proc, systemd
from ddpctl_worker.machine.fs import read_text
from ddpctl_worker.machine.wakeup import UNIT_STOP, SignalSender
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.run.limits import SYSTEM_STATE_S
from ddpctl_worker.wire.contract import MACHINE_SHUTDOWN, SESSION_ENDED, SIGNALED

# The units of a login, as they end a line of /proc/self/cgroup.
_LOGIN = re.compile(r"/(session-[^/]+\.scope|user@\d+\.service|user-\d+\.slice)(?=/|$)", re.MULTILINE)


def asks_to_end(sender: SignalSender) -> bool:
    """Return whether the signal asks the run to end: each SIGTERM, and the SIGWINCH of systemd to the run's scope."""
    if sender.number != UNIT_STOP:
        return True
    groups = read_text("/proc/self/cgroup")
    manager = systemd.find_user_manager(groups)
    return systemd.find_scope(groups) is not None and sender.pid in (1, manager.pid if manager else 1)


def find_cause(host: str, sender: SignalSender) -> Dict[str, Any]:
    """Return the cause of the run's failure on this host."""
    if sender.number == UNIT_STOP:
        return _find_cause_of_stop(host)
    if sender.pid != 1:
        return outcomes.cause(host, SIGNALED, _describe_sender(sender), signal="SIGTERM")
    if not systemd.is_running():
        text = "the first process (PID 1) of this container or machine ended all processes with SIGTERM"
        return outcomes.cause(host, MACHINE_SHUTDOWN, text, signal="SIGTERM")
    if systemd.is_stopping(SYSTEM_STATE_S):
        text = "the machine is shutting down: systemd ended all processes"
        return outcomes.cause(host, MACHINE_SHUTDOWN, text, signal="SIGTERM")
    unit = find_login_unit(read_text("/proc/self/cgroup"))
    if unit is None:
        return outcomes.cause(host, SIGNALED, "systemd (PID 1) ended the run with SIGTERM", signal="SIGTERM")
    text = (
        "systemd ended the login that the run was in (%s): KillUserProcesses=yes, or an administrator ended it" % unit
    )
    return outcomes.cause(host, SESSION_ENDED, text, signal="SIGTERM")


def _find_cause_of_stop(host: str) -> Dict[str, Any]:
    """Return the cause after systemd has stopped the run's scope."""
    if systemd.is_stopping(SYSTEM_STATE_S):
        return outcomes.cause(host, MACHINE_SHUTDOWN, "the machine is shutting down: systemd stopped the run")
    scope = systemd.find_scope(read_text("/proc/self/cgroup"))
    text = "systemd stopped the run's unit (%s): its user, or an administrator, ended the unit or the user's slice"
    return outcomes.cause(host, SESSION_ENDED, text % scope)


def find_login_unit(groups: str) -> Optional[str]:
    """Return the innermost unit of a login in the text of /proc/PID/cgroup, such as ``session-3.scope``."""
    found = _LOGIN.findall(groups)
    return found[-1] if found else None


def _describe_sender(sender: SignalSender) -> str:
    if not sender.pid:
        return "a process outside this container sent SIGTERM to the supervisor"
    command = proc.command_line(sender.pid)
    who = "PID %d%s of %s" % (sender.pid, " (%s)" % command if command else "", user_name(sender.uid))
    return "%s sent SIGTERM to the supervisor" % who
