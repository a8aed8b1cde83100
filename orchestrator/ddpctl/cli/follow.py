"""Following a run in the terminal: shared by up, attach and tail."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from ddpctl import files
from ddpctl.errors import DdpctlError, HostsFailed
from ddpctl.render.console import is_plain, stderr_console
from ddpctl.render.lines import JsonLines, LinePrinter
from ddpctl.render.noise import Held
from ddpctl.render.progress import ProgressView
from ddpctl.spec.event import Line
from ddpctl.spec.outcome import RunStatus
from ddpctl.stages import follow as stage
from ddpctl.stages.status import read_run
from ddpctl.transport.base import Fleet
from ddpctl_worker import contract


def follow_run(
    run: RunStatus,
    fleet: Fleet,
    *,
    offsets: Mapping[str, int],
    remember: bool,
    to_stderr: bool = False,
    interrupted: Callable[[], bool] | None = None,
) -> RunStatus:
    """Print a run's output until it is over, then read how it ended.

    ``remember``: keep the position on this machine, so that `attach` goes on with the next line even when this process
    is killed. ``to_stderr``: stdout is kept for a JSON document.

    Raises:
        Interrupted: see stages.follow.
    """
    stream = sys.stderr if to_stderr else sys.stdout
    printer = LinePrinter(stream.buffer, run.hosts, colour=not is_plain(stream), world_size=run.world_size)

    def save(positions: Mapping[str, int]) -> None:
        printer.flush()  # printed before it is remembered
        if remember:
            files.save_positions(run.run, dict(positions))

    held = Held()

    def show(line: Line) -> None:
        if not held.takes(line):
            printer.write(line)

    selection = stage.Selection(offsets=offsets)
    with ProgressView(stderr_console(), on_line=show) as view:
        errors = stage.follow(
            run.run, run.hosts, fleet, view.tell, selection=selection, save=save, interrupted=interrupted
        )
    printer.flush()
    raise_for_errors(run, errors)
    end = read_run(fleet, run)
    if end.state != contract.SUCCEEDED:
        for line in held.lines:
            printer.write(line)
        printer.flush()
    return end


def print_lines(
    run: RunStatus, fleet: Fleet, hosts: Sequence[str], selection: stage.Selection, *, follow: bool, as_json: bool
) -> None:
    """Print a selection of a run's lines, once or until it is over."""
    printer: LinePrinter | JsonLines = JsonLines(sys.stdout)
    if not as_json:
        printer = LinePrinter(sys.stdout.buffer, run.hosts, colour=not is_plain(sys.stdout), world_size=run.world_size)
    with ProgressView(stderr_console(), on_line=printer.write) as view:
        errors = stage.follow(
            run.run, hosts, fleet, view.tell, selection=selection, save=lambda _: printer.flush(), follow=follow
        )
    printer.flush()
    raise_for_errors(run, errors)


def raise_for_errors(run: RunStatus, errors: Mapping[str, DdpctlError]) -> None:
    """A host that never had the run has nothing to say; every other fault is told."""
    faults = {host: error for host, error in errors.items() if not stage.is_no_such_run(error)}
    if faults:
        raise HostsFailed(f"{len(faults)} of {len(run.hosts)} hosts could not be followed", faults)
