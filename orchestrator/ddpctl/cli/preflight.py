"""``ddpctl preflight``: everything that makes a launch fail, named beforehand."""

from __future__ import annotations

from pathlib import Path

import typer

from ddpctl.cli import session
from ddpctl.render.console import stderr_console
from ddpctl.render.html import preflight_html
from ddpctl.render.preflight import report_view
from ddpctl.render.progress import ProgressView
from ddpctl.spec.finding import Severity
from ddpctl.spec.inventory import Inventory
from ddpctl.spec.job import JobSpec
from ddpctl.spec.values import plural
from ddpctl.stages.launch import launch_to_check
from ddpctl.stages.preflight import Options, run_preflight
from ddpctl.stages.up import refusal


def preflight(
    inventory: Path | None = session.InventoryArgument,
    deep: bool = typer.Option(False, "--deep", help="A rehearsal too: every rank, the job's interpreter and backend."),
    only: str = session.OnlyOption,
    skip: str = session.SkipOption,
    html: Path = typer.Option(None, "--html", metavar="FILE", help="Write the report as one self-contained page."),
    job: str = typer.Option(None, "--job", help="Check for this job; default: the only one, if there is one."),
    option: Path | None = session.InventoryOption,
    as_json: bool = session.JsonOption,
) -> int:
    """Check every host, and every host against every other, before a launch can fail."""
    where = session.load(inventory, option)
    spec = _job(where, job)
    options = Options(only=session.ids(only), skip=session.ids(skip), deep=deep)
    launch = launch_to_check(where, spec)
    with session.fleet_of(where) as fleet, ProgressView(stderr_console()) as view:
        report = run_preflight(launch, fleet, view.tell, options=options)
    if html is not None:
        session.write_page(html, preflight_html(report))
    if as_json:
        session.print_json(report.to_json())
    else:
        session.print_view(report_view(report))
    if report.exit_code:
        raise refusal(report, f"preflight found {plural(report.count(Severity.ERROR), 'error')}")
    return 0


def _job(inventory: Inventory, name: str | None) -> JobSpec | None:
    """The job to check for: the one named, or the only one."""
    if name is not None:
        return inventory.job(name)
    return next(iter(inventory.jobs.values())) if len(inventory.jobs) == 1 else None
