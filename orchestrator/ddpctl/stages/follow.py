"""Follows a run's output on all its nodes until the run is over.

A reader thread per host reads the worker's stream from an absolute offset. The caller's thread takes the lines from all
readers and shows them in the order of time (spec/flow.py). After a broken connection a reader continues at its last
offset, so no line is lost or repeated.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ddpctl.errors import (
    ConnectError,
    DdpctlError,
    InternalFault,
    Interrupted,
    RemoteError,
    Unreachable,
    to_ddpctl_error,
)
from ddpctl.spec.checkpoints import lag_line
from ddpctl.spec.event import Line, Note, Tell
from ddpctl.spec.flow import Flow, Out
from ddpctl.spec.limits import FULL_BATCH, MOST_WEIGHT
from ddpctl.spec.lines import Group
from ddpctl.spec.noise import Held
from ddpctl.spec.outcome import StuckRun
from ddpctl.spec.status import LOST_FOR_RUN
from ddpctl.spec.verdict import end_and_continue, majority_of, no_majority
from ddpctl.stages.limits import (
    GIVE_UP_FAILED_S,
    GIVE_UP_S,
    IDLE_S,
    NOISE_LINES,
    READERS_END_S,
    ROOM_S,
    RUN_APPEARS_POLL_S,
    RUN_APPEARS_S,
    TAIL_LINES_S,
    TURN_S,
    WORKER_DEATHS,
)
from ddpctl.stages.status import is_no_such_run, not_listed
from ddpctl.transport import limits
from ddpctl.transport.base import Fleet, Frame
from ddpctl.transport.conversation import has_ended
from ddpctl.transport.progress_clock import ProgressClock
from ddpctl_worker.wire import contract

log = logging.getLogger(__name__)

Show = Callable[[Sequence[Group]], None]
Save = Callable[[Mapping[str, int]], None]
Wait = Callable[[threading.Event, float], bool]  # waits for the event, for this many seconds at most


@dataclass(frozen=True)
class _Batch:
    host: str
    lines: list[Line]
    more: bool  # another batch follows at once

    @property
    def size(self) -> int:
        return FULL_BATCH if self.more else 1


@dataclass(frozen=True)
class _Cut:
    """The connection broke; the reader tries again."""

    host: str
    error: DdpctlError

    @property
    def note(self) -> Note:
        return Note(f"{self.error}; trying again", "warning", self.host)


@dataclass(frozen=True)
class _Stale:
    """The host answers, but its supervisor does not."""

    host: str
    age: float | None  # of its heartbeat, seconds

    @property
    def note(self) -> Note:
        since = "" if self.age is None else f" for {self.age:.0f} s"
        what = f"the job's supervisor there has not answered{since}"
        return Note(f"{what}; `ddpctl kill` ends the job if it does not come back", "warning", self.host)


@dataclass(frozen=True)
class _Alive:
    """The host answers, and its supervisor lives."""

    host: str


@dataclass(frozen=True)
class _RunNote:
    """A note of the nodes about the run itself."""

    host: str
    note: Note


@dataclass(frozen=True)
class _Ended:
    host: str
    error: DdpctlError | None = None
    state: str | None = None  # of the host's part of the run

    @property
    def lost(self) -> bool:
        """Whether the host's part of the run is gone: its agent has died, or its record is missing."""
        return self.state == contract.LOST or (self.error is not None and is_no_such_run(self.error))


_Item = _Batch | _Cut | _Stale | _Alive | _RunNote | _Ended


class _Inbox:
    """A queue from the readers to the loop. A reader waits while its host's lines fill the queue or the loop."""

    def __init__(self, hosts: Sequence[str], cancelled: threading.Event) -> None:
        self._items: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._room = threading.Condition()
        self._sizes = dict.fromkeys(hosts, 0)  # of the batches in the queue
        self._full = dict.fromkeys(hosts, False)  # whether the loop holds enough lines
        self._cancelled = cancelled

    def put(self, item: _Item) -> None:
        if isinstance(item, _Batch):
            with self._room:
                while (self._full[item.host] or self._sizes[item.host] >= MOST_WEIGHT) and not self._cancelled.is_set():
                    self._room.wait(ROOM_S)
                self._sizes[item.host] += item.size
        self._items.put(item)

    def get(self, timeout: float) -> list[_Item]:
        """Return every waiting item; an empty list after ``timeout`` seconds without any."""
        found: list[_Item] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._items.get(timeout=timeout))
            while True:
                found.append(self._items.get_nowait())
        return found

    def taken(self, items: Sequence[_Item], flow: Flow) -> None:
        """Note that the loop has taken ``items``, and wake the readers: some hosts may have room again."""
        with self._room:
            for item in items:
                if isinstance(item, _Batch):
                    self._sizes[item.host] -= item.size
            self._full = {host: flow.full(host) for host in self._full}
            self._room.notify_all()


@dataclass
class Selection:
    """The lines to show.

    The start is ``offsets``, the last ``lines`` of all hosts together, the time ``since``, or ``ago`` before now.
    """

    ranks: frozenset[int] | None = None  # by default all
    lines: int | None = None
    offsets: Mapping[str, int] = field(default_factory=dict)
    since: float | None = None  # Unix seconds
    ago: float | None = None  # seconds
    grep: str | None = None  # a regular expression

    def of(self, host: str) -> dict[str, Any]:
        """Return the selection as the first request to the host has it."""
        lines = self.lines and self.lines + NOISE_LINES
        return {"offset": self.offsets.get(host), "lines": lines, "since": self.since, "ago": self.ago, **self.always}

    @property
    def always(self) -> dict[str, Any]:
        """The part of the selection that a request after a broken connection repeats."""
        return {"ranks": None if self.ranks is None else sorted(self.ranks), "grep": self.grep}


@dataclass
class _Stream:
    """The reader of a host: calls `tail` until the run is over there, despite broken connections and dying workers."""

    fleet: Fleet
    host: str
    run: str
    selection: Selection
    follow: bool
    out: _Inbox
    cancelled: threading.Event
    offset: int | None = None
    warned: bool = False  # of a broken connection, since the last frame
    pause: float = limits.RETRY_FIRST_S
    deaths: int = 0  # of reading workers, since the last frame
    clock: ProgressClock | None = None  # of a call that does not follow
    appears_until: float = 0.0  # monotonic clock: until then the host may not know the run, which is just starting
    wait: Wait = threading.Event.wait

    def read(self) -> None:
        """Read in this thread. Put an end into the inbox in every case: without it the loop would wait for ever."""
        end = _Ended(self.host, InternalFault("its reader was ended", host=self.host))
        try:
            end = self._read()
        except Exception as error:  # an error here must not end the other readers
            end = _Ended(self.host, to_ddpctl_error(error, self.host))
            log.debug("%s: its output cannot be read on", self.host, exc_info=error)
        finally:
            self.out.put(end)

    def _read(self) -> _Ended:
        """Call `tail` until the run is over. Raises every error after which another call does not help."""
        if self.host not in self.fleet.hosts:
            raise not_listed(self.host)
        self.offset = self.selection.offsets.get(self.host)
        while True:
            try:
                return _Ended(self.host, state=self._call())
            except (ConnectError, RemoteError) as error:
                self._wait_after(error)

    def _wait_after(self, error: ConnectError | RemoteError) -> None:
        """Wait before the next try; raise ``error`` where a next try does not help."""
        if is_no_such_run(error) and time.monotonic() < self.appears_until:
            if self.wait(self.cancelled, RUN_APPEARS_POLL_S):
                raise error
            return
        if isinstance(error, RemoteError):
            self.deaths += 1
            if not has_ended(error) or self.deaths > WORKER_DEATHS:
                raise error
        if not self.follow:
            raise error
        if not self.warned:
            self.out.put(_Cut(self.host, error))
            self.warned = True
        if self.wait(self.cancelled, self.pause):
            raise error
        self.pause = min(limits.RETRY_MOST_S, self.pause * 2)

    def _call(self) -> str:
        """Read to the end; return the state of the node's part of the run then."""
        request: dict[str, Any] = {"run": self.run, "follow": self.follow}
        if self.offset is None:
            request |= self.selection.of(self.host)
        else:
            request |= {"offset": self.offset, **self.selection.always}
        self.clock = None if self.follow else ProgressClock(TAIL_LINES_S)
        answer = self.fleet.transport(self.host).call(
            "tail",
            request,
            on_frame=self._frame,
            timeout=None,
            cancel=self.cancelled.is_set,
            clock=self.clock,
        )
        return str(answer["state"])

    def _frame(self, frame: Frame) -> None:
        self.warned, self.pause, self.deaths = False, limits.RETRY_FIRST_S, 0
        if frame.data.get("state") == contract.STALE:
            self.out.put(_Stale(self.host, frame.data.get("heartbeat_age_s")))
        elif "state" in frame.data:
            self.out.put(_Alive(self.host))
        if "stuck" in frame.data:
            self.out.put(_RunNote(self.host, _about(frame.data["stuck"])))
        if "lag" in frame.data:
            lag = frame.data["lag"]
            self.out.put(_RunNote(self.host, Note(lag_line(lag), "warning" if lag.late else "info", self.host)))
        if "lines" in frame.data:
            self.out.put(_Batch(self.host, lines_of(self.host, frame), frame.data["more"]))
            self.offset = frame.data["offset"]
            if self.clock is not None:
                self.clock.resume()


def lines_of(host: str, frame: Frame) -> list[Line]:
    """Return the lines of a frame; an empty list for a frame without lines."""
    columns = frame.data.get("lines")
    if columns is None:
        return []
    names = ("rank", "stream", "time", "text", "end", "offset", "attempt")
    return list(map(Line._make, zip(itertools.repeat(host), *(columns[name] for name in names), strict=False)))


def follow(
    run: str,
    hosts: Sequence[str],
    fleet: Fleet,
    tell: Tell,
    show: Show,
    *,
    selection: Selection | None = None,
    folded: bool = True,
    held: bool = True,
    noise: Held | None = None,
    save: Save | None = None,
    follow: bool = True,
    interrupted: Callable[[], bool] | None = None,
    restarts: bool = False,
    starts: bool = False,
    wait: Wait = threading.Event.wait,
) -> dict[str, DdpctlError]:
    """Show every line of ``run`` until the run is over on every host; without ``follow`` up to the present end.

    Args:
        show: prints lines in the order of time.
        folded: show equal lines of several ranks as a group.
        held: let new lines wait a moment for lines of other hosts.
        noise: takes the lines that are not shown.
        save: gets the offsets up to which all lines have been shown.
        interrupted: is polled, and ends the following when it returns True.
        restarts: the run continues without a failed host.
        starts: the run may not be on every host yet.
        wait: how a reader pauses before it tries again.

    Returns:
        The error of each host that could not be read: Unreachable for a host without a connection.

    Raises:
        Interrupted: after ``interrupted`` or Ctrl-C. The run on the nodes is not changed.
    """
    selection = selection or Selection()
    cancelled = threading.Event()
    out = _Inbox(hosts, cancelled)
    last = selection.lines or None  # with 0 lines each host begins at its next line
    flow = Flow(hosts, time.monotonic(), live=follow, folded=folded, last=last, held=held)
    until = time.monotonic() + RUN_APPEARS_S if follow and starts else 0.0
    streams = [
        _Stream(fleet, host, run, selection, follow, out, cancelled, appears_until=until, wait=wait) for host in hosts
    ]
    threads = [threading.Thread(target=stream.read, name=f"tail-{stream.host}", daemon=True) for stream in streams]
    for thread in threads:
        thread.start()
    try:
        offsets = dict(selection.offsets)

        def give(out: Out | None) -> None:
            if out is not None:
                show(out.groups)
                offsets.update(out.offsets)
                if save is not None:
                    save(offsets)

        losses = _Losses(run, len(hosts), tell) if follow and restarts else None
        errors = _drain(out, flow, set(hosts), tell, give, noise, interrupted, follow=follow, losses=losses)
        give(flow.rest(time.monotonic()))
        return errors
    finally:
        cancelled.set()
        _join(threads)


class _Losses:
    """Warns of each host that a run with restarts has lost, and of a lost majority."""

    def __init__(self, run: str, hosts: int, tell: Tell) -> None:
        self._run, self._hosts, self._tell = run, hosts, tell
        self._lost: set[str] = set()
        self._warned = False

    def add(self, host: str) -> None:
        self._lost.add(host)
        self._tell(Note(LOST_FOR_RUN, "warning", host))

    def tell_majority(self) -> None:
        """Warn that the remaining hosts are too few; only the first call warns."""
        left = self._hosts - len(self._lost)
        if left < majority_of(self._hosts) and not self._warned:
            self._warned = True
            self._tell(Note(f"{no_majority(left, self._hosts)}; {end_and_continue(self._run)}", "warning"))


def _drain(
    out: _Inbox,
    flow: Flow,
    waiting: set[str],
    tell: Tell,
    give: Callable[[Out | None], None],
    noise: Held | None,
    interrupted: Callable[[], bool] | None,
    *,
    follow: bool,
    losses: _Losses | None,
) -> dict[str, DdpctlError]:
    """Show the readers' lines until every host has ended or is given up; return the errors by host."""
    errors: dict[str, DdpctlError] = {}
    broken: dict[str, _Cut | _Stale] = {}
    total = len(waiting)
    last_news, patience = time.monotonic(), GIVE_UP_S
    while waiting:
        if interrupted is not None and interrupted():
            raise Interrupted("following was interrupted")
        items = out.get(TURN_S if flow.waits else IDLE_S)
        if not items:
            # Every remaining host is unreachable or hangs. If the rest of the run is over, do not wait for ever.
            left = waiting <= set(broken) and (
                len(waiting) < total or any(isinstance(broken[host], _Cut) for host in waiting)
            )
            if left and time.monotonic() - last_news > patience:
                return errors | {host: _unreachable(broken[host]) for host in waiting}
            if losses is not None and not waiting <= set(broken):
                losses.tell_majority()
        else:
            last_news = time.monotonic()
        for item in items:
            if isinstance(item, (_Cut, _Stale)):
                broken[item.host] = item
                flow.skip(item.host)
                tell(item.note)
            elif isinstance(item, _RunNote):
                tell(item.note)
            elif isinstance(item, _Alive):
                broken.pop(item.host, None)
            elif isinstance(item, _Ended):
                waiting.discard(item.host)
                flow.skip(item.host)
                if losses is None and item.state in contract.UNSUCCESSFUL:
                    patience = GIVE_UP_FAILED_S
                if losses is not None and item.lost:
                    losses.add(item.host)
                if item.error is not None:
                    errors[item.host] = item.error
                    if follow and waiting and not is_no_such_run(item.error):  # the remaining hosts may run for weeks
                        tell(Note(f"{item.error}; its output is no longer followed", "warning", item.host))
            else:
                broken.pop(item.host, None)
                flow.add(item.host, _without(noise, item.lines), item.more, time.monotonic())
        give(flow.take(time.monotonic()))
        out.taken(items, flow)
    return errors


def _without(noise: Held | None, lines: list[Line]) -> list[Line]:
    if noise is None:
        return lines
    return [line for line in lines if (line.rank is not None and line.text[:2] != "[W") or not noise.takes(line)]


def _about(diagnosis: StuckRun | None) -> Note:
    """Return a note about a stuck run; without a diagnosis, that the run moves again."""
    if diagnosis is None:
        return Note("the job moves again")
    begun, judged = datetime.fromisoformat(diagnosis.since), datetime.fromisoformat(diagnosis.time)
    return Note(f"stuck for {(judged - begun).total_seconds():.0f} s: {diagnosis.verdict}", "warning")


def _unreachable(broken: _Cut | _Stale) -> DdpctlError:
    """Return the error of a host that is given up: Unreachable where a try to connect would cost seconds."""
    if isinstance(broken, _Stale):
        return ConnectError(broken.note.message, host=broken.host)
    if isinstance(broken.error, RemoteError):
        return broken.error
    return Unreachable(broken.error.message, hint=broken.error.hint, host=broken.host)


def _join(threads: Sequence[threading.Thread]) -> None:
    deadline = time.monotonic() + READERS_END_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
