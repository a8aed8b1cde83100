"""``ddpctl exec``: one command on every host."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from ddpctl.cli import session
from ddpctl.cli.state import GLOBAL
from ddpctl.errors import DdpctlError, HostsFailed, RemoteError, UsageError
from ddpctl.render.ran import output_lines
from ddpctl.spec.command import Ran, display
from ddpctl.spec.inventory import Inventory
from ddpctl.spec.values import plural
from ddpctl.stages.execute import Sudo, execute
from ddpctl.transport.base import FleetOutcome
from ddpctl_worker.wire.contract import SCHEMA


def exec(
    inventory: Path | None = session.InventoryArgument,
    host: str = typer.Option(None, "--host", metavar="H,...", help="Only these hosts: node1 or node[0-3],node7."),
    sudo: bool = typer.Option(False, "--sudo", help="Run as root with sudo; asks for each login's password once."),
    timeout: float = typer.Option(
        300.0, "--timeout", min=0.1, metavar="SECONDS", help="End the command after this many seconds."
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
    with session.at_work(where, hosts) as (fleet, tell):
        root = Sudo(session.sudo_password) if sudo else None
        outcome = execute(GLOBAL.script, hosts, fleet, tell, timeout=timeout, sudo=root)
    results = {host: outcome.results.get(host) or Ran(None, error=str(outcome.errors[host])) for host in hosts}
    failed = _failures(outcome)
    if as_json:
        told = [ran.to_json(host) for host, ran in results.items()]
        session.print_json({"schema": SCHEMA, "ok": not failed, "hosts": told})
    else:
        for stream, line in output_lines(results):
            print(line, file=getattr(sys, stream))  # as it is: not folded to a width
    if failed:
        count = f"{len(failed)} of {plural(len(hosts), 'host')}"
        raise HostsFailed(f"`{display(GLOBAL.script)}` failed on {count}", failed)
    return 0


def _hosts(inventory: Inventory, text: str | None) -> tuple[str, ...]:
    """The hosts that ``--host`` names, or all.

    Raises:
        UsageError: one is not in the inventory.
    """
    names = inventory.names if text is None else session.host_names(text)
    if not names:
        raise UsageError("--host is empty")
    return tuple(inventory.host(name).name for name in names)


def _failures(outcome: FleetOutcome[Ran]) -> dict[str, DdpctlError]:
    """Host -> what went wrong there."""
    wrong = {host: RemoteError(ran.trouble, host=host) for host, ran in outcome.results.items() if not ran.ok}
    return {**outcome.errors, **wrong}
