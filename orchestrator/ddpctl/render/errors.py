"""An error as lines for stderr: one line; above it a list where hosts failed differently or a file has many faults."""

from __future__ import annotations

import re

from ddpctl.errors import DdpctlError, HostsFailed, InventoryError
from ddpctl.spec.ranges import fold

_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b|\[[0-9a-fA-F:]+\]")


def error_lines(error: DdpctlError) -> list[str]:
    """The line to print, as the last; where hosts failed in several ways, before it a line for each way."""
    if isinstance(error, InventoryError) and error.others:
        faults = [str(one) for one in (error, *error.others)]
        return [*(f"  {line}" for line in faults), f"{faults[0]} ({len(error.others)} more above)"]
    if not isinstance(error, HostsFailed):
        return [str(error)]
    groups: dict[str, list[str]] = {}
    for host, one in error.errors.items():
        groups.setdefault(_ADDRESS.sub("<address>", _text(one).replace(host, "the host")), []).append(host)
    lines: list[str] = []
    for text, hosts in groups.items():
        own = [_text(error.errors[host]) for host in hosts]
        named = own[0] if len(hosts) == 1 or len(set(own)) == 1 else text
        lines.append(f"{fold(hosts)}: {named}" if len(hosts) == 1 else f"{fold(hosts)} ({len(hosts)} hosts): {named}")
    if len(lines) < 2:
        return [": ".join([error.message, *lines])]
    return [*(f"  {line}" for line in lines), f"{error.message}: {lines[0]} ({len(lines) - 1} more above)"]


def _text(error: DdpctlError) -> str:
    step = f"; {error.hint}" if error.hint else ""
    return " ".join(f"{error.message}{step}".split())
