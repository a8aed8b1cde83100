"""An error as lines for stderr: `error:` says what failed, where and why, `hint:` what to do next.

Above them a list, where hosts failed differently or a file has many faults.
"""

from __future__ import annotations

import re
from functools import partial

from ddpctl.errors import DdpctlError, HostsFailed, Interrupted, InventoryError
from ddpctl.spec.fixes import blank, outside, together
from ddpctl.spec.ranges import fold

_ADDRESS = re.compile(r"(?:\b\d{1,3}(?:\.\d{1,3}){3}\b|\[[0-9a-fA-F:]+\])(?::\d{1,5}\b)?")


def error_lines(error: DdpctlError) -> list[str]:
    """The lines to print; an interrupt, which the user asked for, is no error."""
    table, what, hint = _parts(error)
    if table:
        what = f"{what} ({len(table) - 1} more above)"
    head = what if isinstance(error, Interrupted) else f"error: {what}"
    return [*(f"  {line}" for line in table), head, *([f"hint: {' '.join(hint.split())}"] if hint else [])]


def _parts(error: DdpctlError) -> tuple[list[str], str, str | None]:
    """The list above (if there is more than one thing to say), what failed, and the next step."""
    if isinstance(error, InventoryError) and error.others:
        return [str(one) for one in (error, *error.others)], error.what, error.hint
    if not isinstance(error, HostsFailed):
        return [], error.what, error.hint
    groups: dict[str, list[str]] = {}
    for host, one in error.errors.items():
        groups.setdefault(blank(_nameless(_text(one.message, one.hint), host)), []).append(host)
    rows = [_row({host: error.errors[host] for host in hosts}) for hosts in groups.values()]
    if not rows:
        return [], error.message, error.hint
    first, hint = rows[0]
    return [_text(*row) for row in rows] if len(rows) > 1 else [], f"{error.message}: {first}", hint


def _row(errors: dict[str, DdpctlError]) -> tuple[str, str | None]:
    """What these hosts have in common, and the next step of each of them."""
    hosts, first = list(errors), next(iter(errors.values()))
    where = fold(hosts) if len(hosts) == 1 else f"{fold(hosts)} ({len(hosts)} hosts)"
    if len({_text(one.message, one.hint) for one in errors.values()}) == 1:
        return f"{where}: {_text(first.message)}", first.hint
    steps = [outside(_text(one.hint or ""), partial(_nameless, host=host)) for host, one in errors.items()]
    return f"{where}: {_nameless(_text(first.message), hosts[0])}", together(steps)


def _nameless(text: str, host: str) -> str:
    """What hosts have in common; node1 is not in node10."""
    return _ADDRESS.sub("<address>", re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", "the host", text))


def _text(message: str, hint: str | None = None) -> str:
    return " ".join(f"{message}; {hint}".split()) if hint else " ".join(message.split())
