"""An error as lines for stderr: `error:` says what failed, where and why, `hint:` what to do next.

Above them a list, where hosts failed differently or a file has many faults.
"""

from __future__ import annotations

import re
from functools import partial

from ddpctl.errors import DdpctlError, HostsFailed, Interrupted, InventoryError
from ddpctl.spec.fold import blank, by, named, nameless, one_line, outside, together

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
    groups = by(lambda host: blank(_alike(_text(error.errors[host]), host)), error.errors)
    rows = [_row({host: error.errors[host] for host in hosts}) for hosts in groups.values()]
    if not rows:
        return [], error.message, error.hint
    first, hint = rows[0]
    return (
        [f"{row}; {step}" if step else row for row, step in rows] if len(rows) > 1 else [],
        (f"{error.message}: {first}"),
        hint,
    )


def _row(errors: dict[str, DdpctlError]) -> tuple[str, str | None]:
    """What these hosts have in common, and the next step of each of them."""
    hosts, first = list(errors), next(iter(errors.values()))
    if len({_text(one) for one in errors.values()}) == 1:
        return f"{named(hosts)}: {one_line(first.message)}", first.hint and one_line(first.hint)
    steps = [outside(one_line(one.hint or ""), partial(_alike, host=host)) for host, one in errors.items()]
    return f"{named(hosts)}: {_alike(one_line(first.message), hosts[0])}", together(steps)


def _alike(text: str, host: str) -> str:
    return _ADDRESS.sub("<address>", nameless(text, host, "the host"))


def _text(error: DdpctlError) -> str:
    return one_line(f"{error.message}; {error.hint}" if error.hint else error.message)
