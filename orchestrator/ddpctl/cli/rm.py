"""``ddpctl rm``: runs that have ended, off the nodes."""

from __future__ import annotations

from pathlib import Path

import typer

from ddpctl.cli import session
from ddpctl.errors import DdpctlError
from ddpctl.render.status import removal_view
from ddpctl.spec.inventory import Inventory
from ddpctl.spec.outcome import RunStatus
from ddpctl.spec.removal import RemovedRun, removal_document
from ddpctl.stages.remove import remove_run
from ddpctl.stages.status import find_run
from ddpctl.transport.base import Fleet

RunsArgument = typer.Argument(
    ..., metavar="RUN", help="Names (each its newest run), run ids, or beginnings of them.", show_default=False
)


def rm(
    runs: list[str] = RunsArgument,
    any_project: bool = session.AnyProjectOption,
    option: Path | None = session.InventoryOption,
    as_json: bool = session.JsonOption,
) -> int:
    """Remove ended runs from the nodes: records, logs and outputs, never checkpoints. A live run is refused."""
    inventory = session.load(None, option, job=runs[0])
    removed: list[RemovedRun] = []
    errors: list[DdpctlError] = []
    with session.fleet_of(inventory) as fleet:
        for run in _found(fleet, runs, None if any_project else inventory, errors):
            try:
                removed.append(remove_run(run, fleet))
                removed[-1].raise_for_errors()
            except DdpctlError as error:
                errors.append(error)
    if as_json and removed:
        session.print_json(removal_document(removed))
    elif removed:
        session.print_view(removal_view(removed))
    session.raise_gravest(errors)
    return 0


def _found(fleet: Fleet, words: list[str], of: Inventory | None, errors: list[DdpctlError]) -> list[RunStatus]:
    """The runs that are meant, each once. All are looked up first: with its newest run gone a name means another.
    ``of``: a name means a job of this project, started from this folder."""
    found: dict[str, RunStatus] = {}
    for word in words:
        try:
            run = find_run(fleet, word, of)
            if of is not None:
                session.refuse_other_folder(run, word, of)
            found.setdefault(run.run, run)
        except DdpctlError as error:
            errors.append(error)
    return list(found.values())
