"""An error as lines for stderr: one line, or one a group of hosts that failed alike."""

from __future__ import annotations

from ddpctl.errors import DdpctlError, HostsFailed
from ddpctl.spec.ranges import fold


def error_lines(error: DdpctlError) -> list[str]:
    """The lines to print; hosts with the same error share one."""
    if not isinstance(error, HostsFailed):
        return [str(error)]
    groups: dict[str, list[str]] = {}
    for host, one in error.errors.items():
        step = f"; {one.hint}" if one.hint else ""
        text = " ".join(f"{one.message}{step}".replace(host, "{host}").split())
        groups.setdefault(text, []).append(host)
    lines = [error.message]
    for text, hosts in groups.items():
        where = fold(hosts)
        named = text.replace("{host}", hosts[0] if len(hosts) == 1 else "the host")
        lines.append(f"{where}: {named}" if len(hosts) == 1 else f"{where} ({len(hosts)} hosts): {named}")
    return lines
