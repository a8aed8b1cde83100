"""Builds findings, compares hosts, and writes shell text that runs on a host unchanged."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ddpctl.checks.base import View
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.fold import group_hosts_by_value, name_hosts


def finding(
    severity: Severity,
    host: str | None,
    message: str,
    *,
    peer: str | None = None,
    fix: str | None = None,
    command: str | None = None,
    evidence: Mapping[str, Any] | None = None,
) -> Finding:
    """Return a finding on a host, or without a host on several hosts. ``Check.findings`` adds the check's id."""
    return Finding("", severity, message, host, peer, fix, command, evidence or {})


error = partial(finding, Severity.ERROR)
warning = partial(finding, Severity.WARNING)
unknown = partial(finding, Severity.UNKNOWN)
info = partial(finding, Severity.INFO)
ok = partial(finding, Severity.OK, None)


def single_host(hosts: Sequence[str]) -> str | None:
    """Return the host if there is exactly one host."""
    return hosts[0] if len(hosts) == 1 else None


def differences(
    severity: Severity,
    values: Mapping[str, Any],
    *,
    what: str,
    fix: str | None = None,
    show: Callable[[Any], str] = str,
) -> list[Finding]:
    """Return a finding for each group of hosts with a value other than the majority's.

    Without a majority (as many hosts on each side) a single finding names every value.
    """
    found = group_hosts_by_value(values)
    if len(found) < 2:
        return []
    evidence = {"values": dict(values)}
    (most, most_hosts), *minorities = found
    if len(most_hosts) == len(minorities[0][1]):
        sides = ", ".join(f"{name_hosts(hosts)}: {show(value)}" for value, hosts in found)
        return [finding(severity, None, f"{what} differs: {sides}", fix=fix, evidence=evidence)]
    rest = "other" if len(minorities) == 1 else "majority of"
    return [
        finding(
            severity,
            single_host(hosts),
            f"{name_hosts(hosts)} {'has' if len(hosts) == 1 else 'have'} {what} {show(value)}, "
            f"the {rest} {len(most_hosts)} have {show(most)}",
            fix=fix,
            evidence=evidence,
        )
        for value, hosts in minorities
    ]


def size(count: float) -> str:
    """Return bytes as text: ``64.0 KB``, ``1.5 GB`` (powers of 1000, as disks are sold and ``requires`` counts).

    8 GiB is printed as 8.6 GB.
    """
    if count < 1000:
        return f"{count:.0f} bytes"
    for unit in ("KB", "MB", "GB"):
        count /= 1000
        if count < 1000:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} TB"


# --- commands --------------------------------------------------------------------------------------------------------


def _uid(view: View, host: str) -> int | None:
    """Return the login's user id on the host, from any answer that holds it."""
    for answer in view.answers.get(host, {}).values():
        if answer.ok and isinstance(answer.value, dict) and isinstance(answer.value.get("uid"), int):
            return int(answer.value["uid"])
    return None


def as_root(view: View, host: str, command: str) -> str:
    """Return a simple command, prefixed with sudo if the login is not root."""
    return command if _uid(view, host) == 0 else f"sudo {command}"


def write_as_root(view: View, host: str, path: str, *lines: str) -> str:
    """Return a command that writes these lines to a file as root."""
    text = " ".join(shlex.quote(line) for line in lines)
    return f"printf '%s\\n' {text} | {as_root(view, host, f'tee {shlex.quote(path)}')}"
