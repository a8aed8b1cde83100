"""The commands about the nodes: run a command, send code and environment, trust host keys, remove old files."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import typer
from rich.table import Table
from rich.text import Text

from ddpctl.cli import session
from ddpctl.cli.limits import EXEC_S
from ddpctl.cli.prompt import can_ask, confirm, require_terminal
from ddpctl.cli.state import GLOBAL
from ddpctl.code.datafolder import read_folder
from ddpctl.errors import (
    ConnectError,
    DdpctlError,
    FileDamaged,
    HostKeyChanged,
    HostKeyUnknown,
    HostsFailed,
    RemoteError,
    UsageError,
)
from ddpctl.files.inventory import home_of
from ddpctl.files.records import forget_hashes, last_hashes, save_hashes
from ddpctl.render.clean import clean
from ddpctl.render.console import columns
from ddpctl.render.progress import ProgressView
from ddpctl.render.push import data_view, gc_view, push_view, size
from ddpctl.render.ran import output_lines
from ddpctl.spec.command import Ran, display
from ddpctl.spec.event import Progress, StageEnded, StageStarted
from ddpctl.spec.fold import group_by
from ddpctl.spec.inventory import Inventory
from ddpctl.spec.origin import as_name
from ddpctl.spec.values import plural
from ddpctl.stages.execute import Sudo, execute
from ddpctl.stages.gc import collect_garbage
from ddpctl.stages.launch import Launch, launch_of
from ddpctl.stages.limits import GC_KEEP_DAYS
from ddpctl.stages.push import push as push_stage
from ddpctl.stages.push_data import push_data
from ddpctl.stages.slots import warn_other_runs
from ddpctl.stages.trust import KeyReport, add, survey
from ddpctl.transport.base import FleetOutcome
from ddpctl.transport.prompts import Say
from ddpctl_worker.wire.contract import SCHEMA

_NOT_FOUND = 127  # the exit code of a shell that does not find the program


def exec(
    inventory: Path | None = session.InventoryArgument,
    host: str = typer.Option(None, "--host", metavar="H,...", help="Only these hosts: node1 or node[0-3],node7."),
    sudo: bool = typer.Option(False, "--sudo", help="Run as root with sudo; asks for each login's password once."),
    timeout: float = typer.Option(
        EXEC_S, "--timeout", min=0.1, metavar="SECONDS", help="End the command after this many seconds."
    ),
    option: Path | None = session.InventoryOption,
    as_json: bool = session.JsonOption,
) -> int:
    """Run one command on every host: ddpctl exec -- nvidia-smi. Equal outputs are shown once.

    The words after -- reach the program unchanged; for a pipe or a variable of the host: -- sh -c 'LINE'

    On Ctrl-C and at the timeout, the command and everything it started are ended.
    """
    if not GLOBAL.script:
        raise UsageError("no command to run", hint="name it after --: ddpctl exec -- nvidia-smi")
    where = session.load(inventory, option)
    hosts = _hosts(where, host)
    with session.working_fleet(where, hosts) as (fleet, tell):
        root = Sudo(session.sudo_password) if sudo else None
        if sudo:
            warn_other_runs(fleet, hosts, tell)
        outcome = execute(GLOBAL.script, hosts, fleet, tell, timeout=timeout, sudo=root)
    results = {host: outcome.results.get(host) or Ran(None, error=str(outcome.errors[host])) for host in hosts}
    failed = _failures(outcome)
    if as_json:
        documents = [ran.to_json(host) for host, ran in results.items()]
        session.print_json({"schema": SCHEMA, "ok": not failed, "hosts": documents})
    else:
        for stream, line in output_lines(results):
            print(line, file=getattr(sys, stream))  # not through rich, which would wrap long lines
    if failed:
        count = f"{len(failed)} of {plural(len(hosts), 'host')}"
        raise HostsFailed(
            f"`{display(GLOBAL.script)}` failed on {count}", failed, hint=_shell_hint(GLOBAL.script, results.values())
        )
    return 0


def _shell_hint(words: Sequence[str], results: Iterable[Ran]) -> str | None:
    """Return the hint for a line of shell text that was given as the name of a program."""
    if len(words) != 1 or len(words[0].split()) < 2 or not any(ran.exit_code == _NOT_FOUND for ran in results):
        return None
    return f"for a line of shell text: ddpctl exec -- sh -c {shlex.quote(words[0])}"


def _hosts(inventory: Inventory, text: str | None) -> tuple[str, ...]:
    """Return the hosts that ``--host`` names; without it, all hosts.

    Raises:
        UsageError: a host is not in the inventory, or the list is empty.
    """
    names = inventory.names if text is None else session.host_names(text)
    if not names:
        raise UsageError("--host is empty")
    return tuple(inventory.host(name).name for name in names)


def _failures(outcome: FleetOutcome[Ran]) -> dict[str, DdpctlError]:
    """Return the error of each host that failed or did not answer."""
    wrong = {host: RemoteError(ran.trouble, host=host) for host, ran in outcome.results.items() if not ran.ok}
    return {**outcome.errors, **wrong}


def push(
    inventory: Path | None = session.InventoryArgument,
    job: str = typer.Option(
        None, "--job", help="Job whose code and nodes to use; required if the inventory has more than one."
    ),
    locked: bool = typer.Option(False, "--locked", help="Use the lock of the last push; fail if it is out of date."),
    only_list: bool = typer.Option(False, "--list", help="Print the names of the code's files; contact no host."),
    data: Path = typer.Option(
        None, "--data", metavar="DIR", help="Send this folder of data instead, to all hosts, each content once."
    ),
    option: Path | None = session.InventoryOption,
    as_json: bool = session.JsonOption,
) -> int:
    """Send environment and code, or with --data a folder of data, to every node without starting anything."""
    where = session.load(inventory, option)
    if data is not None:
        if given := [name for name, value in (("job", job), ("locked", locked), ("list", only_list)) if value]:
            raise UsageError(f"--{given[0]} has no effect with --data", hint="remove one of the two")
        return _push_data(where, data, as_json=as_json)
    launch = Launch(where, None, where.hosts)
    if job is not None or where.jobs:
        launch = launch_of(where, where.job(job), session.new_identity(where))
    for note in launch.notes:
        session.warn(f"warning: {note}")
    if only_list:
        return _list_code(launch, as_json=as_json)
    with session.working_fleet(where, launch.names) as (fleet, tell):
        outcome = push_stage(launch, fleet, tell, locked=locked)
    session.show(outcome, push_view, as_json=as_json)
    outcome.raise_for_errors()
    return 0


def _push_data(where: Inventory, data: Path, *, as_json: bool) -> int:
    """Send a folder of data to all hosts, and print its place there."""
    home = home_of(where.file)
    folder = Path(os.path.normpath(home / data.expanduser()))
    name = as_name(folder.name, "data")
    inside = folder.is_relative_to(home) and folder != home
    with ProgressView(session.stderr_console()) as view:

        def started(total: int) -> None:
            view.tell(StageStarted("files", total, "bytes"))

        found = read_folder(folder, started, lambda done: view.tell(Progress("files", done)), last_hashes(folder))
        unread = f", {size(found.unread)} unchanged since the last push" if found.unread else ""
        view.tell(StageEnded("files", True, f"{plural(len(found.found), 'file')}, {size(found.size)}{unread}"))
    try:
        save_hashes(folder, found.known)
    except OSError as error:
        session.warn(f"warning: could not keep the hashes of the files ({error}); the next push reads all files again")
    with session.working_fleet(where) as (fleet, tell):
        origin = f"{session.author()}:{found.root}"
        link = str(folder.relative_to(home)) if inside else name
        outcome = push_data(found, name, link, where, fleet, tell, origin=origin)
    if any(isinstance(node.error, FileDamaged) for node in outcome.nodes):
        forget_hashes(folder)  # a file has changed without any mark: the next push reads it
    session.show(outcome, data_view, as_json=as_json)
    outcome.raise_for_errors()
    return 0


def _list_code(launch: Launch, *, as_json: bool) -> int:
    """Print the names of the files that ``push`` would send."""
    if launch.archive is None:
        raise UsageError("there is no code to send", hint="name a job whose code: is a folder with --job")
    if as_json:
        session.print_json({"schema": SCHEMA, "files": list(launch.archive.names), "bytes": launch.archive.size})
    else:
        sys.stdout.writelines(f"{clean(name)}\n" for name in launch.archive.names)
    return 0


def gc(
    inventory: Path | None = session.InventoryArgument,
    dry_run: bool = typer.Option(False, "--dry-run", help="Show what would be removed, and how much it frees."),
    days: float = typer.Option(GC_KEEP_DAYS, "--days", min=0.0, help="Keep anything used in the last N days."),
    yes: bool = typer.Option(False, "-y", "--yes", help="Remove without asking."),
    option: Path | None = session.InventoryOption,
    as_json: bool = session.JsonOption,
) -> int:
    """Remove old runs, and the environments, wheels and data that no run uses. Whatever a live run uses is kept.

    On a terminal it asks first; without one, or with --json, it does not.
    """
    where = session.load(inventory, option)
    with session.working_fleet(where) as (fleet, tell):
        ask = can_ask() and not (yes or dry_run or as_json)
        outcome = collect_garbage(where, where.hosts, fleet, tell, delete=not (dry_run or ask), days=days)
        if ask and any(outcome.hosts.values()):
            session.print_view(gc_view(outcome))
            if confirm(f"remove these, {size(outcome.bytes)} in all?"):
                outcome = collect_garbage(where, where.hosts, fleet, tell, delete=True, days=days)
    session.show(outcome, gc_view, as_json=as_json)
    outcome.raise_for_errors()
    return 0


def trust(
    inventory: Path | None = session.InventoryArgument,
    yes: bool = typer.Option(False, "-y", "--yes", help="Add the keys without asking."),
    option: Path | None = session.InventoryOption,
) -> int:
    """Show unknown host keys (SHA-256); once you confirm, add them to known_hosts. A changed key is never replaced."""
    where = session.load(inventory, option)
    require_known_keys(confirm_keys(where, yes, "trust", show=True), "trust")
    return 0


def confirm_keys(where: Inventory, yes: bool, command: str, *, show: bool) -> list[KeyReport]:
    """Survey the keys of all servers, and add the unknown keys that a person confirms; return the last survey.

    ``command``: the name of the command, for messages. ``show``: print the table even if all keys are known.

    Raises:
        UsageError: there is no terminal to ask on, or a known_hosts file cannot be written.
    """
    person = session.prompter()

    def look(say: Say) -> list[KeyReport]:
        with ProgressView(session.stderr_console()) as view:
            return survey(where, prompter=person, say=say, tell=view.tell)

    reports = look(session.warn)
    if show or _unknown(reports):
        session.print_view(_table(reports))
    while unknown := _unknown(reports):
        if not _confirmed(len(unknown), yes, command):
            break
        _write_down(unknown)
        # A host behind a jump host shows its key only once the jump host is trusted.
        seen = {(report.host, report.address, report.port) for report in unknown}
        reports = look(lambda text: None)  # the first survey has shown these messages
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
    """Return whether a person agrees, or ``--yes`` was given.

    Raises:
        UsageError: there is no terminal to ask on.
    """
    if yes:
        return True
    require_terminal(f"{command} asks before it adds a key", otherwise="compare the fingerprints, then add --yes")
    return confirm(f"add {plural(count, 'key')}?")


def _write_down(unknown: list[KeyReport]) -> None:
    """Add each key to the file in which ssh would save it.

    Raises:
        UsageError: a host has no such file, or the file cannot be written.
    """
    by_file = group_by(lambda report: report.file, unknown)
    if without := by_file.get(""):
        raise UsageError(
            f"cannot save the key of {without[0].host}: ssh_config names no UserKnownHostsFile for it",
            hint="set `known_hosts:` in the inventory",
        )
    for file, reports in by_file.items():
        typer.echo(f"added {plural(len(add(reports, file)), 'key')} to {file}")


def require_known_keys(reports: list[KeyReport], command: str, *, silent: bool = True) -> None:
    """Raise an error unless all keys are known. ``command``: the name of the command, for hints.

    Raises:
        HostKeyChanged, HostKeyUnknown: a key has changed, or was not added.
        ConnectError: ``silent``, and a key could not be read.
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
