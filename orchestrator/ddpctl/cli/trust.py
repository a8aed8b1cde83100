"""``ddpctl trust``: host keys, shown and knowingly added."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.table import Table
from rich.text import Text

from ddpctl.cli import session
from ddpctl.cli.prompt import confirm, require_terminal
from ddpctl.errors import ConnectError, HostKeyChanged, HostKeyUnknown, UsageError
from ddpctl.render.console import columns, stderr_console
from ddpctl.render.progress import ProgressView
from ddpctl.spec.fold import by
from ddpctl.spec.inventory import Inventory
from ddpctl.spec.values import plural
from ddpctl.stages.trust import KeyReport, add, survey
from ddpctl.transport.prompts import Say


def trust(
    inventory: Path | None = session.InventoryArgument,
    yes: bool = typer.Option(False, "-y", "--yes", help="Add the keys without asking."),
    option: Path | None = session.InventoryOption,
) -> int:
    """Show unknown host keys (SHA-256); once you confirm, add them to known_hosts. A changed key is never replaced."""
    where = session.load(inventory, option)
    raise_for(settle(where, yes, "trust", show=True), "trust")
    return 0


def settle(where: Inventory, yes: bool, command: str, *, show: bool) -> list[KeyReport]:
    """The keys of all servers once those that a person confirms have been written down, for the command of that name.

    ``show``: also where none is unknown.

    Raises:
        UsageError: there is nobody to ask, or a file that cannot be written.
    """
    person = session.prompter()

    def look(say: Say) -> list[KeyReport]:
        with ProgressView(stderr_console()) as view:
            return survey(where, prompter=person, say=say, tell=view.tell)

    reports = look(session.warn)
    if show or _unknown(reports):
        session.print_view(_table(reports))
    while unknown := _unknown(reports):
        if not _confirmed(len(unknown), yes, command):
            break
        _write_down(unknown)
        # What lies behind a jump host shows its key only once that host is trusted.
        seen = {(report.host, report.address, report.port) for report in unknown}
        reports = look(lambda text: None)  # what servers and ssh_config say has been shown
        if {(report.host, report.address, report.port) for report in _unknown(reports)} <= seen:
            break
        session.print_view(_table(reports))
    return reports


def _unknown(reports: list[KeyReport]) -> list[KeyReport]:
    return [report for report in reports if report.state == "unknown"]


def _table(reports: list[KeyReport]) -> Table:
    table = columns("HOST", "STATE", "KEY", "SHA-256", overflow="fold")
    style = {"known": "green", "unknown": "yellow", "changed": "bold red", "unreachable": "bold red"}
    for report in reports:
        state = Text(report.state, style=style.get(report.state, ""))
        what = report.sha256 or (str(report.error) if report.error else "-")
        table.add_row(Text(report.host), state, report.key_type or "-", Text(what))
    return table


def _confirmed(count: int, yes: bool, command: str) -> bool:
    """A person's word, or ``--yes``.

    Raises:
        UsageError: there is nobody to ask.
    """
    if yes:
        return True
    require_terminal(f"{command} asks before it adds a key", otherwise="compare the fingerprints, then add --yes")
    return confirm(f"add {plural(count, 'key')}?")


def _write_down(unknown: list[KeyReport]) -> None:
    """Each key into the file that ssh would take for its host.

    Raises:
        UsageError: a host has no such file, or it cannot be written.
    """
    by_file = by(lambda report: report.file, unknown)
    if without := by_file.get(""):
        raise UsageError(
            f"cannot save the key of {without[0].host}: ssh_config names no UserKnownHostsFile for it",
            hint="set `known_hosts:` in the inventory",
        )
    for file, reports in by_file.items():
        typer.echo(f"added {plural(len(add(reports, file)), 'key')} to {file}")


def raise_for(reports: list[KeyReport], command: str, *, silent: bool = True) -> None:
    """For the command of that name.

    Raises:
        ConnectError: a key has changed, was not added, or (``silent``) could not be read.
    """
    changed = [report for report in reports if report.state == "changed"]
    if changed:
        commands = dict.fromkeys(command for report in changed for command in report.forget)
        raise HostKeyChanged(
            f"the key of {', '.join(report.host for report in changed)} is not the one in known_hosts; it was left as "
            "it is",
            hint=f"find out why; if the machine was reinstalled: {'; '.join(commands)}; then ddpctl {command}",
        )
    left = [report.host for report in reports if report.state == "unknown"]
    if left:
        raise HostKeyUnknown(f"the key of {', '.join(left)} was not added", hint=f"run ddpctl {command} again")
    lost = [report.host for report in reports if report.state == "unreachable"]
    if silent and lost:
        raise ConnectError(f"no key could be read from {', '.join(lost)}", hint="run ddpctl preflight to see why")
