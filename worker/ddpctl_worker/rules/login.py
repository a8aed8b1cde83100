"""The end of a login: whether systemd-logind ends the processes of a session with the session."""

from __future__ import annotations

import re
from typing import Any, Dict, Mapping, Optional

PROPERTIES = ("KillUserProcesses", "KillOnlyUsers", "KillExcludeUsers", "RemoveIPC")
# The innermost line of /proc/PID/cgroup that names units: version 2, or the hierarchy that systemd has in version 1.
_SESSION = re.compile(r"/session-[^/]*\.scope(?=/|$)", re.MULTILINE)


def read_settings(result: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    """Return logind's settings from busctl's output: ``kill``, ``only``, ``exclude``, ``remove_ipc``. Empty: not known.

    The output lines are ``b false``, ``as 0``, ``as 1 "root"``, ``b true``, in the order of PROPERTIES.
    """
    lines = result["stdout"].splitlines() if result and result["code"] == 0 else []
    if len(lines) != len(PROPERTIES):
        return {}
    return {
        "kill": lines[0].strip() == "b true",
        "only": re.findall(r'"([^"]*)"', lines[1]),
        "exclude": re.findall(r'"([^"]*)"', lines[2]),
        "remove_ipc": lines[3].strip() == "b true",
    }


def kills_processes(settings: Mapping[str, Any], user: str) -> bool:
    """Return whether logind ends all processes of a session of ``user`` when the session ends."""
    if not settings.get("kill") or user in settings["exclude"]:
        return False
    return not settings["only"] or user in settings["only"]


def is_session(groups: str) -> bool:
    """Return whether the text of /proc/PID/cgroup is that of a process in a session; sshd without PAM makes none."""
    return bool(_SESSION.search(groups))
