"""Asks systemd and logind over their buses, with busctl and loginctl.

Interfaces: org.freedesktop.systemd1(5), org.freedesktop.login1(5). Units: systemd.scope(5), systemd.kill(5).
"""

from __future__ import annotations

import os
import re
import signal
from typing import Any, Dict, List, Optional, Sequence

from ddpctl_worker.machine import proc, processes, tool
from ddpctl_worker.machine.cgroup import ROOTS
from ddpctl_worker.machine.fs import read_text

RUNNING = "/run/systemd/system"  # a folder that exists where systemd is the first process; sd_booted(3)
LINGER = "/var/lib/systemd/linger"  # a file for each user whose own systemd runs without a session
_LOGIND = ("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager")
_MANAGER = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
_POLKIT = (
    "org.freedesktop.PolicyKit1",
    "/org/freedesktop/PolicyKit1/Authority",
    "org.freedesktop.PolicyKit1.Authority",
)
_LINGER_ACTION = "org.freedesktop.login1.set-self-linger"
_SCOPE = re.compile(r"/(ddpctl-[^/]+\.scope)(?=/|$)", re.MULTILINE)
_USER_MANAGER = re.compile(r"^\d+:(?:name=systemd)?:(.*/user@\d+\.service)/", re.MULTILINE)
_VERSION_1 = "/sys/fs/cgroup/systemd"  # where systemd has its units without version 2 of control groups


def is_running() -> bool:
    """Return whether systemd is the first process of this machine."""
    return os.path.isdir(RUNNING)


def ask_logind(properties: Sequence[str], timeout: float) -> Optional[Dict[str, Any]]:
    """Return the result of busctl for logind's properties; ``None`` without busctl."""
    return tool.run_if_installed(["busctl", "get-property", *_LOGIND, *properties], timeout)


def lingers(user: str) -> bool:
    """Return whether the user's own systemd lives without a session of the user."""
    return os.path.exists(os.path.join(LINGER, user))


def enable_linger(timeout: float) -> Optional[str]:
    """Let the own systemd of this user live without a session; return why that failed, or ``None``."""
    return _trouble(["loginctl", "enable-linger"], timeout)


def may_linger(timeout: float) -> Optional[bool]:
    """Return whether polkit lets this user turn lingering on, and change nothing.

    Without polkit only root may. ``None``: polkit has not answered in time.
    """
    me = processes.identify(os.getpid())
    assert me is not None
    subject = ["unix-process", "2", "pid", "u", str(me.pid), "start-time", "t", str(me.start)]
    words = ["busctl", "call", *_POLKIT, "CheckAuthorization", "(sa{sv})sa{ss}us", *subject, _LINGER_ACTION, "0", "0"]
    said = tool.run_if_installed([*words, ""], timeout)
    if said is None or said["timed_out"]:
        return None
    return bool(said["code"] == 0 and said["stdout"].split()[1:2] == ["true"])


def has_user_bus() -> bool:
    """Return whether the bus of this user's own systemd is there."""
    return os.path.exists(os.path.join(_runtime_folder(), "bus"))


def make_scope(name: str, pid: int, stop_s: float, *, user: bool, timeout: float) -> Optional[str]:
    """Move the process ``pid`` to a new unit ``name``; return why that failed, or ``None``.

    The unit's processes may make control groups of their own. When systemd stops the unit, its processes get SIGWINCH,
    which most programs ignore, and SIGKILL after ``stop_s``. ``user``: a unit of the user's own systemd.
    """
    properties = [
        ["Description", "s", "a run of ddpctl"],
        ["PIDs", "au", "1", str(pid)],
        ["Delegate", "b", "true"],
        ["CollectMode", "s", "inactive-or-failed"],
        ["KillSignal", "i", str(int(signal.SIGWINCH))],
        ["TimeoutStopUSec", "t", str(int(stop_s * 1e6))],
    ]
    words = [word for entry in properties for word in entry]
    call = [*_MANAGER, "StartTransientUnit", "ssa(sv)a(sa(sv))", name, "fail", str(len(properties)), *words, "0"]
    env = {"XDG_RUNTIME_DIR": _runtime_folder(), "DBUS_SESSION_BUS_ADDRESS": "unix:path=%s/bus" % _runtime_folder()}
    return _trouble(["busctl", "--user" if user else "--system", "call", *call], timeout, env if user else None)


def find_scope(groups: str) -> Optional[str]:
    """Return the unit of a run in the text of /proc/PID/cgroup, such as ``ddpctl-RUN.HOST.scope``."""
    found = _SCOPE.search(groups)
    return found.group(1) if found else None


def find_user_manager(groups: str) -> Optional[processes.ProcessId]:
    """Return the user's own systemd that has the processes of ``groups``; ``None``: the machine's systemd has them."""
    found = _USER_MANAGER.search(groups)
    for root in (*ROOTS, _VERSION_1) if found else ():
        pids: List[str] = read_text("%s%s/init.scope/cgroup.procs" % (root, found.group(1) if found else "")).split()
        for pid in map(int, pids):
            stat = proc.read_stat(pid)
            if stat is not None and stat.parent == 1:
                return processes.identify(pid)
    return None


def is_stopping(timeout: float) -> bool:
    """Return whether the machine is shutting down."""
    said = tool.run_if_installed(["systemctl", "is-system-running"], timeout)
    return said is not None and said["stdout"].strip() == "stopping"


def _runtime_folder() -> str:
    return os.environ.get("XDG_RUNTIME_DIR") or "/run/user/%d" % os.getuid()


def _trouble(argv: List[str], timeout: float, env: Optional[Dict[str, str]] = None) -> Optional[str]:
    """Run a program; return the reason if it failed, else ``None``."""
    said = tool.run_if_installed(argv, timeout, env=env)
    if said is None:
        return "%s is not installed" % argv[0]
    if said["code"] == 0:
        return None
    if said["timed_out"]:
        return "%s did not answer within %g s" % (argv[0], timeout)
    return " ".join(said["stderr"].split()) or "%s ended with %s" % (argv[0], said["code"])
