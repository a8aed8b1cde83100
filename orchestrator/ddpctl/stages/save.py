"""Ask the ranks of a run for a checkpoint, and wait until all of it is there: a save may consist of several files, one
for each rank or of the model and of the optimizer. Which ones, the save before it says.

First every node is asked whether its ranks handle the signal: where one does not, nothing is sent to any. If ddpctl
ends in between, the run continues: the ranks save, or they have not been asked.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ddpctl.errors import DdpctlError, HostsFailed, NotSaved
from ddpctl.spec.checkpoints import JobCheckpoints
from ddpctl.spec.done import SavedOutcome
from ddpctl.spec.event import Line, Note, Tell
from ddpctl.spec.outcome import RunStatus
from ddpctl.spec.values import plural
from ddpctl.stages.checkpoints import read_checkpoints
from ddpctl.stages.follow import lines_of
from ddpctl.stages.status import read_run
from ddpctl.transport.base import Fleet, Frame, Transport
from ddpctl_worker.rules.entries import series_of
from ddpctl_worker.rules.order import moment
from ddpctl_worker.rules.unite import Saved

ASK_TIMEOUT_S = 20.0
LOOK_S = 1.0
STATUS_S = 5.0  # how often the run itself is looked at meanwhile: it may have ended
SAME_SAVE_S = 120.0  # what one host last wrote within this time, by its own clock, was one save
QUIET_S = 3.0  # after the last news of a save that is the first one
AGAIN_S = 30.0  # the same where a file without a step, like best.pt, may not be written each time
LAST_LINES = 3  # of the output, where no checkpoint came
RECIPE = (
    "in the script: `asked = []`, `signal.signal(signal.{signal}, lambda *_: asked.append(1))`, and after each step on "
    "every rank `flag = torch.tensor(len(asked)); dist.all_reduce(flag)`, then `if flag: asked.clear(); save()`; see "
    "docs/saving.md"
)


def save_run(fleet: Fleet, run: RunStatus, tell: Tell, *, last: bool = False) -> SavedOutcome:
    """The new checkpoint. ``last``: nothing is copied later, so its copies are waited for too.

    Raises:
        NotSaved: the run is over, a rank does not handle the signal (then nothing was sent), or there was no new
            complete checkpoint within the job's ``checkpoint.timeout``.
        HostsFailed: a host could not be asked; nothing was sent.
    """
    if run.terminal:
        raise NotSaved(f"{run.run} is over ({run.state}): no rank is left that could save")
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
    """What the last save before this one consisted of: of one attempt and one step, what each host wrote last. No time
    of one host is compared with a time of another one."""
    complete = [one for one in found.saved if one.complete]
    last = [one for one in complete if (one.when.attempt, one.step) == (complete[0].when.attempt, complete[0].step)]
    newest: dict[str, float] = {}
    for one in last:
        newest[one.when.clock] = max(one.when.moment, newest.get(one.when.clock, one.when.moment))
    return [one for one in last if newest[one.when.clock] - one.when.moment <= SAME_SAVE_S]


class _Awaited:
    """A save under way. ``before``: what was the newest on each host; ``usual``: what the save before consisted of."""

    def __init__(self, before: Mapping[str, str | None], usual: Sequence[Saved]) -> None:
        self._before = before
        self._series = {_series(one.entry) for one in usual}
        self._stepless = bool(usual) and usual[0].step is None
        self._seen: set[tuple[str, str]] = set()
        self._news_at = time.monotonic()
        self.new: list[Saved] = []  # complete, newest first
        self.left: list[str] = []  # what is not there yet, in words

    def look(self, found: JobCheckpoints) -> bool:
        """Whether the save is finished, as far as can be known."""
        now = time.monotonic()
        self.new = [one for one in found.saved if one.complete and self._is_new(one)]
        unfinished = {one.entry for one in found.saved if not one.complete and self._is_new(one)}
        unfinished |= {entry for entry, host, at in found.unsettled if self._is_later(host, at)}
        written = {_series(one.entry) for one in self.new}
        again = not self.new or bool(self._series & written)  # otherwise it saves under other names when it is asked
        missing = self._series - written if again else set()
        self.left = [f"{entry} is not complete" for entry in sorted(unfinished)]
        self.left += [f"{name} was not written again" for name in sorted(missing)]
        seen = {(one.entry, one.time) for one in self.new} | {(entry, "") for entry in unfinished}
        if seen != self._seen:
            self._seen, self._news_at = seen, now
        if not self.new or unfinished:
            return False
        if missing:
            return self._stepless and now - self._news_at >= AGAIN_S
        return (again and bool(self._series)) or now - self._news_at >= QUIET_S

    def _is_new(self, one: Saved) -> bool:
        """Whether a host has written of it after all that was there on that host: a name may be used again, content
        renamed. What a host got from another one has the time of another clock, and is not new."""
        written = [part.manifest for part in one.parts if part.manifest["clock"] == part.manifest["host"]]
        return any(self._is_later(manifest["host"], manifest["time"]) for manifest in written)

    def _is_later(self, host: str, at: str) -> bool:
        if host not in self._before:  # of another run
            return False
        known = self._before[host]
        return known is None or moment(at) > moment(known)


def _series(entry: str) -> str:
    return series_of(entry) or entry


def _ask(fleet: Fleet, run: RunStatus, *, send: bool) -> Mapping[str, dict[str, Any]]:
    request = {"run": run.run, "signal": run.save_signal, "send": send}

    def ask(transport: Transport) -> dict[str, Any]:
        return transport.call("ask_checkpoint", request, timeout=ASK_TIMEOUT_S)

    outcome = fleet.together(ask, [node.host for node in run.nodes_at_work])
    if outcome.errors:
        what = "not every host could be asked" if send else "not every host could be asked, so no rank was"
        raise HostsFailed(f"no checkpoint of {run.run}: {what}", outcome.errors)
    return outcome.results


def _require_handlers(run: RunStatus, answers: Mapping[str, dict[str, Any]]) -> None:
    deaf = [f"rank {one['rank']} on {host} (pid {one['pid']})" for host in answers for one in answers[host]["deaf"]]
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
    """The newest checkpoint of the save, and what of it is not there, in words."""
    status_at = time.monotonic() + STATUS_S
    while True:
        found = read_checkpoints(fleet, run.job_id, run.hosts)
        now = time.monotonic()
        if awaited.look(found) or (now >= until and awaited.new):
            return awaited.new[0], awaited.left
        if now >= status_at:
            status_at = now + STATUS_S
            _require_running(read_run(fleet, run))
        if now >= until:
            why = _why(fleet, run, found.errors)
            raise NotSaved(
                f"{run.run}: no new complete checkpoint within {run.save_timeout:g} s ({why})",
                hint="a longer wait is `checkpoint: {timeout: SECONDS}` in the job; `ddpctl checkpoints "
                f"{run.run}` lists what there is",
            )
        time.sleep(min(LOOK_S, max(0.0, until - now)))


def _await_copies(fleet: Fleet, run: RunStatus, saved: Sequence[Saved], until: float, tell: Tell) -> None:
    """Until all files of it lie on two hosts: the machine that wrote them may be switched off next."""
    while alone := [one for one in saved if one.held < 2]:
        if time.monotonic() >= until:
            where = ", ".join(f"{one.entry} on {', '.join(one.hosts)}" for one in alone)
            tell(Note(f"{run.run}: not all of the save has a copy on another host yet: {where}", level="warning"))
            return
        time.sleep(min(LOOK_S, max(0.0, until - time.monotonic())))
        found = {one.entry: one for one in read_checkpoints(fleet, run.job_id, run.hosts).saved if one.complete}
        saved = [found.get(one.entry, one) for one in saved]


def _require_running(run: RunStatus) -> None:
    if run.terminal:
        why = f": {run.cause.host}: {' '.join(run.cause.message.split())}" if run.cause else ""
        raise NotSaved(f"{run.run} ended before it had saved: {run.state}{why}")


def _why(fleet: Fleet, run: RunStatus, errors: Mapping[str, DdpctlError]) -> str:
    """What is known of a save that did not come: a host that did not answer, a run that is stuck, or the last words of
    the hosts."""
    if errors:
        return "; ".join(str(error) for error in errors.values())
    try:
        now = read_run(fleet, run)
    except DdpctlError as error:
        return str(error)
    if now.diagnosis:
        return f"the run is stuck: {now.diagnosis['verdict']}"
    said = [line for node in now.nodes[:LAST_LINES] for line in _last_line(fleet, run, node.host)]
    return "; ".join(said) or "no rank has written a line"


def _last_line(fleet: Fleet, run: RunStatus, host: str) -> list[str]:
    found: list[Line] = []

    def keep(frame: Frame) -> None:
        found.extend(lines_of(host, frame))

    try:
        fleet.transport(host).call("tail", {"run": run.run, "lines": 1}, on_frame=keep, timeout=ASK_TIMEOUT_S)
    except DdpctlError as error:
        return [f"{host}: {error.message}"]
    return [f"{host}:{'' if one.rank is None else one.rank} said last: {one.text[:200]}" for one in found[-1:]]
