"""`ddpctl ssh`: a shell on a host, or in the folder and environment of a rank."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from ddpctl.cli import session
from ddpctl.errors import ConnectError, DdpctlError, UsageError
from ddpctl.spec.host import Host
from ddpctl.spec.inventory import Inventory
from ddpctl.spec.status import RunStatus
from ddpctl.transport.bootstrap import interpreter_line, shell_arguments
from ddpctl.transport.fleet import routes
from ddpctl.transport.master import SSH_FAILED
from ddpctl.transport.openssh import make_ssh_command

_RANK = re.compile(r"(?P<job>.+):(?P<rank>\d{1,9})")


def ssh(
    target: str = typer.Argument(..., metavar="HOST|JOB:RANK", help="A host of the inventory, or a rank of a job."),
    option: Path | None = session.InventoryOption,
) -> int:
    """Open a shell on a host: ddpctl ssh node1. For a rank, in its folder and environment: ddpctl ssh train:3.

    OpenSSH's ssh opens the connection, with the host keys that ddpctl accepts.
    """
    found = _RANK.fullmatch(target)
    inventory = session.load(None, option, job=found["job"] if found else None)
    if found is None:
        return _open(inventory.host(target), inventory, None)
    rank = int(found["rank"])
    with session.fleet_of(inventory) as fleet:
        run = session.find_run(fleet, found["job"], inventory)
    host = inventory.host(_host_of(run, rank))
    return _open(host, inventory, shell_arguments(host.base_dir, run.run, host.name, rank))


def _host_of(run: RunStatus, rank: int) -> str:
    nodes = [node for node in run.verdict.active_nodes if node.ranks]
    for node in nodes:
        if rank in node.ranks:
            return node.host
    known = sorted(rank for node in nodes for rank in node.ranks)
    shown = f"its hosts report {known[0]} to {known[-1]}" if known else "no host reports a rank"
    raise UsageError(f"run {run.run} has no rank {rank}: {shown}", hint=f"see its ranks: ddpctl status {run.run}")


def _open(host: Host, inventory: Inventory, arguments: Sequence[str] | None) -> int:
    """Run the shell, and return its exit code. ``arguments``: of the host's Python; ``None``: the login shell.

    Raises:
        ConnectError: ssh has no connection to the host.
        DdpctlError: there is no ssh on this machine.
    """
    words = _local_words(host, arguments) if host.local else _remote_words(host, inventory, arguments)
    try:
        code = subprocess.call(words)
    except FileNotFoundError as error:
        raise DdpctlError(f"there is no {words[0]} on this machine", hint="install the client of OpenSSH") from error
    if code == SSH_FAILED and not host.local:
        message = f"{host.name}: ssh has no connection; its own message is above"
        raise ConnectError(message, hint="check the login: ddpctl preflight --only ssh.connect,ssh.auth")
    return code if code >= 0 else 128 - code


def _local_words(host: Host, arguments: Sequence[str] | None) -> list[str]:
    if arguments is None:
        return [os.environ.get("SHELL", "/bin/sh")]
    return [os.path.expanduser(host.python), *arguments]  # noqa: PTH111  a name without a folder stays one


def _remote_words(host: Host, inventory: Inventory, arguments: Sequence[str] | None) -> list[str]:
    hop = routes(inventory, [host.name])[host.name]  # no warning: ssh follows every option
    remote = None if arguments is None else f"exec {interpreter_line(host.python, arguments)}"
    return make_ssh_command(hop, inventory, terminal=sys.stdin.isatty(), remote=remote)
