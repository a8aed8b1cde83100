"""``ddpctl push``: environment and code onto every node, nothing started."""

from __future__ import annotations

from pathlib import Path

import typer

from ddpctl.cli import session
from ddpctl.render.push import push_view
from ddpctl.stages.launch import Launch, launch_of
from ddpctl.stages.push import push as push_stage


def push(
    inventory: Path | None = session.InventoryArgument,
    job: str = typer.Option(
        None, "--job", help="Job whose code and nodes to use; required if the inventory has more than one."
    ),
    locked: bool = typer.Option(False, "--locked", help="Use the lock of the last push; fail if it is out of date."),
    option: Path | None = session.InventoryOption,
    as_json: bool = session.JsonOption,
) -> int:
    """Send environment and code to every node without starting anything."""
    where = session.load(inventory, option)
    launch = Launch(where, None, where.hosts)
    if job is not None or where.jobs:
        launch = launch_of(where, where.job(job), session.new_identity(where))
    with session.at_work(where, launch.names) as (fleet, tell):
        outcome = push_stage(launch, fleet, tell, locked=locked)
    session.show(outcome, push_view, as_json=as_json)
    outcome.raise_for_errors()
    return 0
