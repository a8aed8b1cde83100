"""An error as lines for stderr: one line; above it a list where hosts failed differently or a file has many faults."""

from __future__ import annotations

import re
from functools import partial

from ddpctl.errors import DdpctlError, HostsFailed, InventoryError
from ddpctl.spec.fold import blank, by, named, nameless, one_line, outside, together

_ADDRESS = re.compile(r"(?:\b\d{1,3}(?:\.\d{1,3}){3}\b|\[[0-9a-fA-F:]+\])(?::\d{1,5}\b)?")


def error_lines(error: DdpctlError) -> list[str]:
    """The line to print, as the last; where hosts failed in several ways, before it a line for each way."""
    if isinstance(error, InventoryError) and error.others:
        faults = [str(one) for one in (error, *error.others)]
        return [*(f"  {line}" for line in faults), f"{faults[0]} ({len(error.others)} more above)"]
    if not isinstance(error, HostsFailed):
        return [str(error)]
    groups = by(lambda host: blank(_alike(_text(error.errors[host]), host)), error.errors)
    lines: list[str] = []
    for hosts in groups.values():
        own = [_text(error.errors[host]) for host in hosts]
        what = own[0] if len(set(own)) == 1 else _shared([error.errors[host] for host in hosts], hosts)
        lines.append(f"{named(hosts)}: {what}")
    if len(lines) < 2:
        return [": ".join([error.message, *lines])]
    return [*(f"  {line}" for line in lines), f"{error.message}: {lines[0]} ({len(lines) - 1} more above)"]


def _shared(errors: list[DdpctlError], hosts: list[str]) -> str:
    """What they have in common, and the next step of each of them."""
    message = _alike(one_line(errors[0].message), hosts[0])
    both = zip(errors, hosts, strict=True)
    step = together([outside(one_line(error.hint or ""), partial(_alike, host=host)) for error, host in both])
    return f"{message}; {step}" if step else message


def _alike(text: str, host: str) -> str:
    return _ADDRESS.sub("<address>", nameless(text, host, "the host"))


def _text(error: DdpctlError) -> str:
    return one_line(f"{error.message}; {error.hint}" if error.hint else error.message)
