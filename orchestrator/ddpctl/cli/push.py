"""``ddpctl push``: environment and code onto every node, nothing started."""

from __future__ import annotations

from pathlib import Path

import typer

from ddpctl.cli import session
from ddpctl.cli.order import make_order
from ddpctl.errors import HostsFailed
from ddpctl.render.console import stderr_console
from ddpctl.render.progress import ProgressView
from ddpctl.render.push import push_view
from ddpctl.stages.push import push as push_stage


def push(
    inventory: Path | None = session.InventoryArgument,
    job: str = typer.Option(None, "--job", help="Whose code and nodes; needed when there are several."),
    locked: bool = typer.Option(False, "--locked", help="Insist on the lock of the last push; resolve nothing."),
    option: Path | None = session.InventoryOption,
    as_json: bool = session.JsonOption,
) -> int:
    """Put environment and code onto every node; start nothing."""
    where = session.load(inventory, option)
    archive, hosts = None, where.hosts
    if job is not None or where.jobs:
        order = make_order(where, job)
        archive, hosts = order.archive, order.hosts
    names = [host.name for host in hosts]
    with session.fleet_of(where, names) as fleet, ProgressView(stderr_console()) as view:
        outcome = push_stage(where, hosts, archive, fleet, view.tell, locked=locked)
    if as_json:
        session.print_json(outcome.to_json())
    else:
        session.print_view(push_view(outcome))
    errors = {node.host: node.error for node in outcome.nodes if node.error is not None}
    if errors:
        raise HostsFailed(f"{len(errors)} of {len(outcome.nodes)} hosts did not get everything", errors)
    return 0
