"""Prints a run's output and its end in the terminal, for up, restart, attach and tail."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

from ddpctl.cli import session
from ddpctl.cli.limits import SWITCH_S
from ddpctl.errors import DdpctlError, HostsFailed, JobFailed, Unreachable
from ddpctl.files.positions import Positions, load_positions
from ddpctl.render.console import has_colours
from ddpctl.render.lines import JsonLines, LinePrinter, LineTime
from ddpctl.render.progress import ProgressView, quiet
from ddpctl.render.status import end_line, status_view, untracked_lines
from ddpctl.spec.event import Event, Note
from ddpctl.spec.noise import Held
from ddpctl.spec.status import RunStatus
from ddpctl.spec.values import plural
from ddpctl.stages import follow as stage
from ddpctl.stages.status import is_no_such_run, read_end, read_run
from ddpctl.stages.untracked import with_untracked
from ddpctl.transport.base import Fleet
from ddpctl_worker.wire import contract


def conclude(run: RunStatus, *, as_json: bool = False) -> int:
    """Print the end of the run; return 0 for a success.

    Raises:
        JobFailed: the run failed, was killed, or was lost.
    """
    if as_json:
        session.print_json(run.to_json())
    if run.verdict.state == contract.SUCCEEDED:
        if not as_json:
            for line in untracked_lines(run.run, run.untracked):
                session.warn(line)
            session.stderr_console().print(_success(run), style="green")
        return 0
    if not as_json:
        session.stderr_console().print(status_view(run, hint=False))
    why = end_line(run)
    # With an unreachable host the state is still open.
    word = run.verdict.state if run.verdict.terminal else contract.FAILED
    kept = f"the output is kept: ddpctl tail {run.run} -n 100"
    raise JobFailed(f"{run.job} {word}: {why}", hint="; ".join(filter(None, (run.hint, kept))))


def _success(run: RunStatus) -> str:
    if run.verdict.departed_nodes:
        staying = len(run.verdict.deciding_nodes)
        return f"{run.job} succeeded on {staying} of {plural(len(run.nodes), 'node')}  (run {run.run})"
    return f"{run.job} succeeded on {plural(len(run.nodes), 'node')}, world size {run.world_size}  (run {run.run})"


def follow_run(
    run: RunStatus,
    fleet: Fleet,
    *,
    to_stderr: bool = False,
    interrupted: Callable[[], bool] | None = None,
) -> RunStatus:
    """Print a run's output from the last followed position until the run is over; return the run as it ended.

    This machine records the position, so that `attach` continues with the next line even if this process is killed.
    ``to_stderr``: leave stdout to a JSON document.

    Raises:
        Interrupted: see stages.follow.
        HostsFailed: the output or the end of the run could not be read on some hosts.
    """
    printer = _printer(run, sys.stderr if to_stderr else sys.stdout)
    noise = Held()
    selection = stage.Selection(offsets=load_positions(run.run))
    with ProgressView(session.stderr_console()) as view, _kept_positions(run) as save:
        errors = stage.follow(
            run.run,
            run.hosts,
            fleet,
            view.tell,
            printer.show,
            selection=selection,
            noise=noise,
            save=save,
            interrupted=interrupted,
            restarts=run.record.restart is not None,
        )
    end = _end(run, fleet, errors)
    # With restarts a failed host is not yet the end.
    open_end = end.verdict.cause is None or end.record.restart is not None
    if not end.verdict.terminal and open_end:  # otherwise the end is known, even if a host is unreachable
        raise_for_errors(run, errors)
    if _may_explain_more(end):
        printer.show(noise.groups())
    return end


def _may_explain_more(end: RunStatus) -> bool:
    """Return whether the launcher's output may say more than the cause: no rank and no kill is the cause."""
    cause = end.verdict.cause
    return end.verdict.state not in (contract.SUCCEEDED, contract.KILLED) and (cause is None or cause.rank is None)


def _printer(run: RunStatus, stream: TextIO, stamp: LineTime | None = None) -> LinePrinter:
    colour = has_colours(stream)
    return LinePrinter(stream.buffer, run.hosts, colour=colour, world_size=run.world_size, stamp=stamp)


def _end(run: RunStatus, fleet: Fleet, errors: Mapping[str, DdpctlError]) -> RunStatus:
    return with_untracked(fleet, read_end(fleet, run, gone=_gone(errors), unread=errors))


def _gone(errors: Mapping[str, DdpctlError]) -> list[str]:
    return [host for host, error in errors.items() if isinstance(error, Unreachable)]  # another try costs seconds


def tell_beside(event: Event) -> None:
    """Print a note on stderr beside the output; any thread may call this."""
    if isinstance(event, Note):
        with quiet():
            session.stderr_console().print(event.message)


@contextlib.contextmanager
def _kept_positions(run: RunStatus) -> Iterator[stage.Save]:
    """Yield a function that saves positions. After a record that cannot be written, warn, and save no more."""
    try:
        file = Positions(run.run)
    except OSError as error:
        _warn_unsaved(error, "start from the first line")
        yield lambda positions: None
        return
    broken = False

    def save(positions: Mapping[str, int]) -> None:
        nonlocal broken
        if broken:
            return
        try:
            file.save(positions)
        except OSError as error:  # the lines are printed all the same
            broken = True
            _warn_unsaved(error, "print the lines from here on again")

    before = sys.getswitchinterval()
    # A printed batch must not wait for a reader thread before its position is saved: after a kill in between the batch
    # would be printed again.
    sys.setswitchinterval(SWITCH_S)
    try:
        with file:
            yield save
    finally:
        sys.setswitchinterval(before)


def _warn_unsaved(error: OSError, effect: str) -> None:
    session.warn(f"warning: could not save the position in the output ({error}); attach will {effect}")


@dataclass(frozen=True)
class LineLook:
    """The form in which lines are printed."""

    follow: bool = False
    as_json: bool = False
    folded: bool = True
    timestamps: bool = False


def print_lines(run: RunStatus, fleet: Fleet, hosts: Sequence[str], selection: stage.Selection, look: LineLook) -> None:
    """Print a selection of a run's lines, with ``look.follow`` until the run is over."""
    text = _printer(run, sys.stdout, LineTime() if look.timestamps else None)
    failed = run.verdict.terminal and run.verdict.state != contract.SUCCEEDED
    noise = None if look.as_json or failed else Held()
    with ProgressView(session.stderr_console()) as view:
        errors = stage.follow(
            run.run,
            hosts,
            fleet,
            view.tell,
            JsonLines(sys.stdout).show if look.as_json else text.show,
            selection=selection,
            folded=look.folded and not look.as_json,
            held=not look.as_json,
            noise=noise,
            follow=look.follow,
            restarts=run.record.restart is not None,
            starts=run.verdict.state in contract.COMING,
        )
    held_back = look.follow and noise is not None and noise.lines
    if noise is not None and held_back and _may_explain_more(read_run(fleet, run, gone=_gone(errors))):
        text.show(noise.groups())
    raise_for_errors(run, errors)


def raise_for_errors(run: RunStatus, errors: Mapping[str, DdpctlError]) -> None:
    """Raise HostsFailed for all errors except the errors of hosts that never had the run."""
    faults = {host: error for host, error in errors.items() if not is_no_such_run(error)}
    if faults:
        raise HostsFailed(f"could not read the output of {len(faults)} of {len(run.hosts)} hosts", faults)
