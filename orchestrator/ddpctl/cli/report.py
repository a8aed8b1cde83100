"""``ddpctl report``: one page about a run."""

from __future__ import annotations

from pathlib import Path

import typer

from ddpctl.cli import session
from ddpctl.render.report import report_view
from ddpctl.render.report_page import report_html
from ddpctl.stages.report import make_report

HtmlOption = typer.Option(None, "--html", metavar="FILE", help="Also write it as one self-contained HTML page.")


def report(
    job: str = session.JobArgument,
    option: Path | None = session.InventoryOption,
    html: Path | None = HtmlOption,
    as_json: bool = session.JsonOption,
) -> int:
    """One page about a run, live or ended: how it went, its attempts and metrics, and what ran."""
    inventory = session.load(None, option, job=job)
    with session.fleet_of(inventory) as fleet:
        made = make_report(fleet, job, inventory)
    if html is not None:
        session.write_page(html, report_html(made))
    session.show(made, report_view, as_json=as_json)
    session.tell_unheard(made.run)
    for host, why in made.missing.items():
        if as_json:  # the view has it
            session.warn(f"{host}: {why}")
    return 0
