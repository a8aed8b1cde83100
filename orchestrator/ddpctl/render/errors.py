"""An error as lines for stderr: `error:` names the failure, the place and the cause, `hint:` the next step.

If hosts failed differently, or a file has many faults, a list comes first.
"""

from __future__ import annotations

import re
from functools import partial

from ddpctl.errors import DdpctlError, HostsFailed, HostsInUse, Interrupted, InventoryError
from ddpctl.spec.fold import blank_numbers, group_by, hosts_outside, join_steps, name_hosts, nameless, one_line

_ADDRESS = re.compile(r"(?:\b\d{1,3}(?:\.\d{1,3}){3}\b|\[[0-9a-fA-F:]+\])(?::\d{1,5}\b)?")


def error_lines(error: DdpctlError) -> list[str]:
    """Return the lines to print. An interrupt was asked for by the user, so it is not shown as an error."""
    table, what, hint = _parts(error)
    if table and not isinstance(error, HostsInUse):
        what = f"{what} ({len(table) - 1} more above)"
    head = what if isinstance(error, Interrupted) else f"error: {what}"
    return [*(f"  {line}" for line in table), head, *([f"hint: {' '.join(hint.split())}"] if hint else [])]


def _parts(error: DdpctlError) -> tuple[list[str], str, str | None]:
    """Return the list (if there is more than one error), the failure, and the next step."""
    if isinstance(error, InventoryError) and error.further:
        return [str(each) for each in (error, *error.further)], error.summary, error.hint
    if isinstance(error, HostsInUse):
        return list(error.lines), error.summary, error.hint
    if not isinstance(error, HostsFailed):
        return [], error.summary, error.hint
    groups = group_by(lambda host: blank_numbers(_alike(_text(error.errors[host]), host)), error.errors)
    rows = [_row({host: error.errors[host] for host in hosts}) for hosts in groups.values()]
    if not rows:
        return [], error.message, error.hint
    first, hint = rows[0]
    return (
        [f"{row}; {step}" if step else row for row, step in rows] if len(rows) > 1 else [],
        (f"{error.message}: {first}"),
        error.hint or hint,
    )


def _row(errors: dict[str, DdpctlError]) -> tuple[str, str | None]:
    """Return the common text of these hosts' errors, and the next step of each host."""
    hosts, first = list(errors), next(iter(errors.values()))
    if len({_text(error) for error in errors.values()}) == 1:
        return f"{name_hosts(hosts)}: {one_line(first.message)}", first.hint and one_line(first.hint)
    steps = [hosts_outside(one_line(error.hint or ""), partial(_alike, host=host)) for host, error in errors.items()]
    return f"{name_hosts(hosts)}: {_alike(one_line(first.message), hosts[0])}", join_steps(steps)


def _alike(text: str, host: str) -> str:
    return _ADDRESS.sub("<address>", nameless(text, host, "the host"))


def _text(error: DdpctlError) -> str:
    return one_line(f"{error.message}; {error.hint}" if error.hint else error.message)
