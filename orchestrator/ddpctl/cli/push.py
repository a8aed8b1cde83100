"""``ddpctl push``: environment and code onto every node, nothing started."""

from __future__ import annotations

from pathlib import Path

import typer

from ddpctl.cli import session
from ddpctl.render.console import stderr_console
from ddpctl.render.progress import ProgressView
from ddpctl.render.push import push_view
from ddpctl.stages.launch import Launch, launch_of
from ddpctl.stages.push import push as push_stage


def push(
    inventory: Path | None = session.InventoryArgument,
    job: str = typer.Option(None, "--job", help="Whose code and nodes; needed when there are several."),
    locked: bool = typer.Option(False, "--locked", help="Use the lock of the last push; fail if it is out of date."),
    option: Path | None = session.InventoryOption,
    as_json: bool = session.JsonOption,
) -> int:
    """Put environment and code onto every node; start nothing."""
    where = session.load(inventory, option)
    launch = Launch(where, None, where.hosts)
    if job is not None or where.jobs:
        launch = launch_of(where, where.job(job), session.new_identity())
    with session.fleet_of(where, launch.names) as fleet, ProgressView(stderr_console()) as view:
        outcome = push_stage(launch, fleet, view.tell, locked=locked)
    if as_json:
        session.print_json(outcome.to_json())
    else:
        session.print_view(push_view(outcome))
    outcome.raise_for_errors()
    return 0
