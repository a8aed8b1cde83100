"""Shell text for a finding's ``command``: it runs on the host as it is, with sudo only where the login is not root."""

from __future__ import annotations

import shlex

from ddpctl.checks.base import View


def uid(view: View, host: str) -> int | None:
    """The login's user id there, from whichever answer tells it."""
    for answer in view.answers.get(host, {}).values():
        if answer.ok and isinstance(answer.value, dict) and isinstance(answer.value.get("uid"), int):
            return int(answer.value["uid"])
    return None


def as_root(view: View, host: str, command: str) -> str:
    """One simple command, run as root."""
    return command if uid(view, host) == 0 else f"sudo {command}"


def write_as_root(view: View, host: str, path: str, *lines: str) -> str:
    """Make a file of these lines, which root alone may write."""
    text = " ".join(shlex.quote(line) for line in lines)
    return f"printf '%s\\n' {text} | {as_root(view, host, f'tee {shlex.quote(path)}')}"
