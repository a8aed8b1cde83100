"""Ask the ranks of a run for a checkpoint, and wait until it is complete.

A save may consist of several files: one per rank, or model and optimizer apart. The save before it shows which files
belong to a save.

First, every node checks whether its ranks handle the signal. If a rank does not, no rank gets the signal. If ddpctl
ends in between, the run continues, whether the ranks save or not.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ddpctl.errors import DdpctlError, HostsFailed, NotSaved
from ddpctl.spec.checkpoints import JobCheckpoints
from ddpctl.spec.event import Line, Note, Tell
from ddpctl.spec.kill import SavedOutcome
from ddpctl.spec.status import RunStatus
from ddpctl.spec.values import plural
from ddpctl.stages.checkpoints import read_checkpoints
from ddpctl.stages.follow import lines_of
from ddpctl.stages.limits import (
    ONE_SAVE_S,
    SAVE_ASK_S,
    SAVE_LAST_LINES,
    SAVE_POLL_S,
    SAVE_QUIET_S,
    SAVE_STATUS_S,
    STEPLESS_SAVE_QUIET_S,
)
from ddpctl.stages.status import read_run
from ddpctl.transport.base import Fleet, Frame, Transport
from ddpctl_worker.rules.entries import series_of
from ddpctl_worker.rules.order import moment_of
from ddpctl_worker.rules.unite import Saved

RECIPE = (
    "in the script: `asked = []`, `signal.signal(signal.{signal}, lambda *_: asked.append(1))`, and after each step on "
    "every rank `flag = torch.tensor(len(asked)); dist.all_reduce(flag)`, then `if flag: asked.clear(); save()`; see "
    "docs/saving.md"
)


def save_run(fleet: Fleet, run: RunStatus, tell: Tell, *, last: bool = False) -> SavedOutcome:
    """Return the new checkpoint. ``last``: the run ends now, so wait for the copies too.

    Raises:
        NotSaved: the run is over, a rank does not handle the signal (then no rank got it), or no new checkpoint was
            complete within the job's ``checkpoint.timeout``.
        HostsFailed: a host could not be asked; no rank got the signal.
    """
    if run.verdict.terminal:
        raise NotSaved(f"{run.run} is over ({run.verdict.state}): no rank is left that could save")
    begun = time.monotonic()
    usual = _usual(read_checkpoints(fleet, run.job_id, run.hosts))
    _require_handlers(run, _ask(fleet, run, send=False))
    answers = _ask(fleet, run, send=True)
    _require_handlers(run, answers)
    count = sum(len(answer["ranks"]) for answer in answers.values())
    tell(Note(f"asked {plural(count, 'rank')} to save; waiting for the checkpoint, {run.save_timeout:g} s at most"))
    before = {host: answer["newest"] for host, answer in answers.items()}
    awaited, until = _Awaited(before, usual), begun + run.save_timeout
    found, left = _wait(fleet, run, awaited, until)
    if last and run.copies:
        _await_copies(fleet, run, awaited.new, until, tell)
    if left:
        tell(Note(f"{run.run}: not all of the save is there: {', '.join(left)}", level="warning"))
    return SavedOutcome(run.job, run.run, found.entry, found.step, found.size, found.hosts, time.monotonic() - begun)


def _usual(found: JobCheckpoints) -> list[Saved]:
    """Return the parts of the newest save: one attempt, one step, and the last files of each host.

    Times are compared within one host only.
    """
    complete = [saved for saved in found.saved if saved.complete]
    last = [
        saved for saved in complete if (saved.when.attempt, saved.step) == (complete[0].when.attempt, complete[0].step)
    ]
    newest: dict[str, float] = {}
    for saved in last:
        newest[saved.when.clock] = max(saved.when.moment, newest.get(saved.when.clock, saved.when.moment))
    return [saved for saved in last if newest[saved.when.clock] - saved.when.moment <= ONE_SAVE_S]


class _Awaited:
    """A save under way. ``before``: time of the newest checkpoint per host. ``usual``: the parts of the save before."""

    def __init__(self, before: Mapping[str, str | None], usual: Sequence[Saved]) -> None:
        self._before = before
        self._series = {_series(saved.entry) for saved in usual}
        self._stepless = bool(usual) and usual[0].step is None
        self._seen: set[tuple[str, str]] = set()
        self._news_at = time.monotonic()
        self.new: list[Saved] = []  # complete, newest first
        self.left: list[str] = []  # the missing parts, in words

    def look(self, found: JobCheckpoints) -> bool:
        """Whether the save is finished, as far as ddpctl can know."""
        now = time.monotonic()
        self.new = [saved for saved in found.saved if saved.complete and self._is_new(saved)]
        unfinished = {saved.entry for saved in found.saved if not saved.complete and self._is_new(saved)}
        unfinished |= {entry for entry, host, at in found.unsettled if self._is_later(host, at)}
        written = {_series(saved.entry) for saved in self.new}
        again = not self.new or bool(self._series & written)  # otherwise the script saves under other names on request
        missing = self._series - written if again else set()
        self.left = [f"{entry} is not complete" for entry in sorted(unfinished)]
        self.left += [f"{name} was not written again" for name in sorted(missing)]
        seen = {(saved.entry, saved.time) for saved in self.new} | {(entry, "") for entry in unfinished}
        if seen != self._seen:
            self._seen, self._news_at = seen, now
        if not self.new or unfinished:
            return False
        if missing:
            return self._stepless and now - self._news_at >= STEPLESS_SAVE_QUIET_S
        return (again and bool(self._series)) or now - self._news_at >= SAVE_QUIET_S

    def _is_new(self, saved: Saved) -> bool:
        """Whether a host has written a part later than every checkpoint that it had before.

        A copy from another host has the time of another clock, and does not count.
        """
        written = [part.manifest for part in saved.parts if part.manifest["clock"] == part.manifest["host"]]
        return any(self._is_later(manifest["host"], manifest["time"]) for manifest in written)

    def _is_later(self, host: str, at: str) -> bool:
        if host not in self._before:  # a host of another run
            return False
        known = self._before[host]
        return known is None or moment_of(at) > moment_of(known)


def _series(entry: str) -> str:
    return series_of(entry) or entry


def _ask(fleet: Fleet, run: RunStatus, *, send: bool) -> Mapping[str, dict[str, Any]]:
    request = {"run": run.run, "signal": run.save_signal, "send": send}

    def ask(transport: Transport) -> Any:
        return transport.call("ask_checkpoint", request, timeout=SAVE_ASK_S)

    outcome = fleet.together(ask, [node.host for node in run.verdict.active_nodes])
    if outcome.errors:
        what = "not every host could be asked" if send else "not every host could be asked, so no rank was"
        raise HostsFailed(f"no checkpoint of {run.run}: {what}", outcome.errors)
    return outcome.results


def _require_handlers(run: RunStatus, answers: Mapping[str, dict[str, Any]]) -> None:
    deaf = [f"rank {rank['rank']} on {host} (pid {rank['pid']})" for host in answers for rank in answers[host]["deaf"]]
    if deaf:
        more = f" and {len(deaf) - 3} more" if len(deaf) > 3 else ""
        who = ", ".join(deaf[:3]) + more
        raise NotSaved(
            f"no rank was asked to save: {who} would die of {run.save_signal}, the script does not handle it (yet)",
            hint=RECIPE.format(signal=run.save_signal),
        )
    absent = [f"{plural(answers[host]['absent'], 'rank')} on {host}" for host in answers if answers[host]["absent"]]
    if absent:
        raise NotSaved(
            f"no rank was asked to save: {', '.join(absent)} have not started, or have ended",
            hint=f"see how the run stands: ddpctl status {run.run}",
        )


def _wait(fleet: Fleet, run: RunStatus, awaited: _Awaited, until: float) -> tuple[Saved, list[str]]:
    """Return the newest checkpoint of the save, and the missing parts in words."""
    status_at = time.monotonic() + SAVE_STATUS_S
    while True:
        found = read_checkpoints(fleet, run.job_id, run.hosts)
        now = time.monotonic()
        if awaited.look(found) or (now >= until and awaited.new):
            return awaited.new[0], awaited.left
        if now >= status_at:
            status_at = now + SAVE_STATUS_S
            _require_running(read_run(fleet, run))
        if now >= until:
            why = _why(fleet, run, found.errors)
            raise NotSaved(
                f"{run.run}: no new complete checkpoint within {run.save_timeout:g} s ({why})",
                hint="a longer wait is `checkpoint: {timeout: SECONDS}` in the job; `ddpctl checkpoints "
                f"{run.run}` lists what there is",
            )
        time.sleep(min(SAVE_POLL_S, max(0.0, until - now)))


def _await_copies(fleet: Fleet, run: RunStatus, saved: Sequence[Saved], until: float, tell: Tell) -> None:
    """Wait until every file is on two hosts: the machine that wrote the files may be switched off next."""
    while alone := [part for part in saved if part.held < 2]:
        if time.monotonic() >= until:
            where = ", ".join(f"{part.entry} on {', '.join(part.hosts)}" for part in alone)
            tell(Note(f"{run.run}: not all of the save has a copy on another host yet: {where}", level="warning"))
            return
        time.sleep(min(SAVE_POLL_S, max(0.0, until - time.monotonic())))
        found = read_checkpoints(fleet, run.job_id, run.hosts).saved
        complete = {part.entry: part for part in found if part.complete}
        saved = [complete.get(part.entry, part) for part in saved]


def _require_running(run: RunStatus) -> None:
    if run.verdict.terminal:
        why = f": {run.verdict.cause.host}: {' '.join(run.verdict.cause.message.split())}" if run.verdict.cause else ""
        raise NotSaved(f"{run.run} ended before it had saved: {run.verdict.state}{why}")


def _why(fleet: Fleet, run: RunStatus, errors: Mapping[str, DdpctlError]) -> str:
    """Return the likely reason for a missing save: a silent host, a run that is stuck, or the last lines of output."""
    if errors:
        return "; ".join(str(error) for error in errors.values())
    try:
        now = read_run(fleet, run)
    except DdpctlError as error:
        return str(error)
    if now.diagnosis:
        return f"the run is stuck: {now.diagnosis.verdict}"
    said = [line for node in now.nodes[:SAVE_LAST_LINES] for line in _last_line(fleet, run, node.host)]
    return "; ".join(said) or "no rank has written a line"


def _last_line(fleet: Fleet, run: RunStatus, host: str) -> list[str]:
    found: list[Line] = []

    def keep(frame: Frame) -> None:
        found.extend(lines_of(host, frame))

    try:
        fleet.transport(host).call("tail", {"run": run.run, "lines": 1}, on_frame=keep, timeout=SAVE_ASK_S)
    except DdpctlError as error:
        return [f"{host}: {error.message}"]
    return [f"{host}:{'' if line.rank is None else line.rank} said last: {line.text[:200]}" for line in found[-1:]]
