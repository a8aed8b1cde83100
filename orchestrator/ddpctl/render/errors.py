"""An error as lines for stderr: one line, after a table where hosts failed in different ways."""

from __future__ import annotations

from ddpctl.errors import DdpctlError, HostsFailed
from ddpctl.spec.ranges import fold


def error_lines(error: DdpctlError) -> list[str]:
    """The line to print, as the last; where hosts failed in several ways, before it a line for each way."""
    if not isinstance(error, HostsFailed):
        return [str(error)]
    groups: dict[str, list[str]] = {}
    for host, one in error.errors.items():
        step = f"; {one.hint}" if one.hint else ""
        text = " ".join(f"{one.message}{step}".replace(host, "{host}").split())
        groups.setdefault(text, []).append(host)
    lines: list[str] = []
    for text, hosts in groups.items():
        where = fold(hosts)
        named = text.replace("{host}", hosts[0] if len(hosts) == 1 else "the host")
        lines.append(f"{where}: {named}" if len(hosts) == 1 else f"{where} ({len(hosts)} hosts): {named}")
    if len(lines) < 2:
        return [": ".join([error.message, *lines])]
    return [*(f"  {line}" for line in lines), f"{error.message}: {lines[0]} ({len(lines) - 1} more above)"]
