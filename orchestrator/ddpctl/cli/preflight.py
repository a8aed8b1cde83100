"""``ddpctl preflight``: finds every known cause of a failing launch before the launch."""

from __future__ import annotations

from pathlib import Path

import typer

from ddpctl.cli import session
from ddpctl.cli.prompt import confirm, require_terminal
from ddpctl.cli.state import GLOBAL
from ddpctl.errors import UsageError
from ddpctl.render.html import preflight_html
from ddpctl.render.preflight import report_view
from ddpctl.render.ran import fixed_view, fixes_view
from ddpctl.spec.autofix import Applied, Fix, automatic_fixes
from ddpctl.spec.finding import Severity
from ddpctl.spec.inventory import Inventory
from ddpctl.spec.job import JobSpec
from ddpctl.spec.preflight import PreflightReport
from ddpctl.spec.values import plural
from ddpctl.stages.execute import Sudo
from ddpctl.stages.fix import apply
from ddpctl.stages.launch import launch_to_check
from ddpctl.stages.preflight import Options, run_preflight, second_look
from ddpctl.stages.slots import warn_other_runs
from ddpctl.stages.up import refusal


def preflight(
    inventory: Path | None = session.InventoryArgument,
    deep: bool = typer.Option(
        False, "--deep", help="Also start every rank once, with the job's interpreter and backend."
    ),
    fix: bool = typer.Option(False, "--fix", help="Show the fixes that are commands, ask once, run them, check again."),
    yes: bool = typer.Option(False, "-y", "--yes", help="With --fix: run the fixes without asking."),
    only: str = session.OnlyOption,
    skip: str = session.SkipOption,
    html: Path = typer.Option(
        None, "--html", metavar="FILE", help="Also write the report as a self-contained HTML page."
    ),
    job: str = typer.Option(
        None, "--job", help="Job to check for; default: the inventory's job, if it has exactly one."
    ),
    option: Path | None = session.InventoryOption,
    as_json: bool = session.JsonOption,
) -> int:
    """Check every host, and the network between them, for anything that would make a launch fail or hang."""
    _must_be_asked(fix, yes)
    session.check_page(html)
    where = session.load(inventory, option)
    spec = _job(where, job)
    sudo = Sudo(session.sudo_password) if fix else None
    options = Options(only=session.ids(only), skip=session.ids(skip), deep=deep, sudo=sudo, slots=True)
    launch = launch_to_check(where, spec)
    done: list[Applied] = []
    with session.working_fleet(where) as (fleet, tell):
        report = run_preflight(launch, fleet, tell, options=options)
        if sudo is not None:
            if not as_json:
                session.print_view(report_view(report))
            warn_other_runs(fleet, list({fix.host: None for fix in automatic_fixes(report.findings)}), tell)
            if fixes := _confirmed(report, yes):
                done = apply(fixes, fleet, tell, sudo)
                session.stderr_console().print(fixed_view(done))
                report = second_look(report, done, launch, fleet, tell, options)
    with session.with_page(html, lambda: preflight_html(report, GLOBAL.named)):
        if as_json:
            session.print_json(report.to_json() | ({"fixes": [applied.to_json() for applied in done]} if fix else {}))
        elif done or not fix:
            session.print_view(report_view(report))
        if report.exit_code:
            raise refusal(report, f"preflight found {plural(report.count(Severity.ERROR), 'error')}")
    return 0


def _must_be_asked(fix: bool, yes: bool) -> None:
    """Make sure that no fix runs without a person's consent.

    Raises:
        UsageError: there is no terminal to ask on, or --yes without --fix.
    """
    if yes and not fix:
        raise UsageError("--yes needs --fix", hint="ddpctl preflight --fix --yes")
    if fix and not yes:
        require_terminal("preflight --fix asks before it changes a host", otherwise="ddpctl preflight --fix --yes")


def _confirmed(report: PreflightReport, yes: bool) -> tuple[Fix, ...]:
    """Show the fixes and ask; return the fixes to run, which is no fix after a no."""
    found = automatic_fixes(report.findings)
    session.stderr_console().print(fixes_view(found))
    if found and (yes or confirm(f"run {'this' if len(found) == 1 else f'these {len(found)} commands'}?")):
        return found
    return ()


def _job(inventory: Inventory, name: str | None) -> JobSpec | None:
    """Return the job with this name, or the inventory's only job."""
    if name is not None:
        return inventory.job(name)
    return next(iter(inventory.jobs.values())) if len(inventory.jobs) == 1 else None
