"""Values of many hosts side by side: which one is the odd one out, said so that a person sees it at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.ranges import fold

Show = Callable[[Any], str]


def groups(values: Mapping[str, Any]) -> list[tuple[Any, list[str]]]:
    """(value, its hosts), most hosts first; among equals the one whose first host comes first."""
    found: list[tuple[Any, list[str]]] = []
    for host, value in values.items():
        for known, hosts in found:
            if known == value:
                hosts.append(host)
                break
        else:
            found.append((value, [host]))
    return sorted(found, key=lambda group: -len(group[1]))


def where(hosts: list[str]) -> str:
    """``node3``, ``node[1-3] (3 hosts)``."""
    return hosts[0] if len(hosts) == 1 else f"{fold(hosts)} ({len(hosts)} hosts)"


def differences(
    check: str,
    values: Mapping[str, Any],
    *,
    what: str,
    severity: Severity,
    fix: str | None = None,
    show: Show = str,
) -> list[Finding]:
    """One finding for each group of hosts whose value is not the majority's; none when all are equal.

    Without a majority (as many hosts on each side) one finding names every value.
    """
    found = groups(values)
    if len(found) < 2:
        return []
    evidence = {"values": dict(values)}
    (most, most_hosts), *others = found
    if len(most_hosts) == len(others[0][1]):
        sides = ", ".join(f"{where(hosts)}: {show(value)}" for value, hosts in found)
        return [Finding(check, severity, f"{what} differs: {sides}", fix=fix, evidence=evidence)]
    rest = "other" if len(others) == 1 else "majority of"
    return [
        Finding(
            check,
            severity,
            f"{where(hosts)} {'has' if len(hosts) == 1 else 'have'} {what} {show(value)}, "
            f"the {rest} {len(most_hosts)} have {show(most)}",
            host=hosts[0] if len(hosts) == 1 else None,
            fix=fix,
            evidence=evidence,
        )
        for value, hosts in others
    ]


def size(count: float) -> str:
    """Bytes for people: ``64.0 KB``, ``1.5 GB`` (powers of 1000, as disks are sold and ``requires`` counts)."""
    for unit in ("bytes", "KB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")
