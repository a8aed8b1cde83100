"""Finds out why a supervisor got SIGTERM, from the process that sent it.

systemd sends SIGTERM to all processes of a session, or of the machine, at the same time. So the signal is the cause of
a failure, and the deaths of launcher and ranks are its consequences.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, Optional

from ddpctl_worker.facts import user_name
from ddpctl_worker.machine import proc, tool
from ddpctl_worker.machine.fs import read_text
from ddpctl_worker.machine.wakeup import SignalSender
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.run.limits import SYSTEM_STATE_S
from ddpctl_worker.wire.contract import MACHINE_SHUTDOWN, SESSION_ENDED, SIGNALED

_SYSTEMD = "/run/systemd/system"  # a folder that exists where systemd is the first process; sd_booted(3)
# The units of a login, as they end a line of /proc/self/cgroup.
_LOGIN = re.compile(r"/(session-[^/]+\.scope|user@\d+\.service|user-\d+\.slice)(?=/|$)", re.MULTILINE)


def find_cause(host: str, sender: SignalSender) -> Dict[str, Any]:
    """Return the cause of the run's failure on this host."""
    if sender.pid != 1:
        return outcomes.cause(host, SIGNALED, _describe_sender(sender), signal="SIGTERM")
    if not os.path.isdir(_SYSTEMD):
        text = "the first process (PID 1) of this container or machine ended all processes with SIGTERM"
        return outcomes.cause(host, MACHINE_SHUTDOWN, text, signal="SIGTERM")
    if _is_stopping():
        text = "the machine is shutting down: systemd ended all processes"
        return outcomes.cause(host, MACHINE_SHUTDOWN, text, signal="SIGTERM")
    unit = find_login_unit(read_text("/proc/self/cgroup"))
    if unit is None:
        return outcomes.cause(host, SIGNALED, "systemd (PID 1) ended the run with SIGTERM", signal="SIGTERM")
    text = (
        "systemd ended the login that the run was in (%s): KillUserProcesses=yes, or an administrator ended it" % unit
    )
    return outcomes.cause(host, SESSION_ENDED, text, signal="SIGTERM")


def find_login_unit(groups: str) -> Optional[str]:
    """Return the innermost unit of a login in the text of /proc/PID/cgroup, such as ``session-3.scope``."""
    found = _LOGIN.findall(groups)
    return found[-1] if found else None


def _is_stopping() -> bool:
    said = tool.run_if_installed(["systemctl", "is-system-running"], SYSTEM_STATE_S)
    return said is not None and said["stdout"].strip() == "stopping"


def _describe_sender(sender: SignalSender) -> str:
    if not sender.pid:
        return "a process outside this container sent SIGTERM to the supervisor"
    command = proc.command_line(sender.pid)
    who = "PID %d%s of %s" % (sender.pid, " (%s)" % command if command else "", user_name(sender.uid))
    return "%s sent SIGTERM to the supervisor" % who
