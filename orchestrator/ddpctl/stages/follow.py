"""Follow a run's output on all its nodes until it is over.

One thread a host reads the worker's stream from an absolute offset; one loop hands the lines on in the order of time
(spec/flow.py). A broken connection is opened again at the offset that came last, so no line is lost or doubled.
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
    as_fault,
)
from ddpctl.spec.checkpoints import lag_line
from ddpctl.spec.event import Line, Note, Tell
from ddpctl.spec.flow import FULL, MOST, Flow, Out
from ddpctl.spec.lines import Group
from ddpctl.spec.noise import Held
from ddpctl.spec.outcome import LOST_FOR_RUN, end_and_continue, majority_of, no_majority
from ddpctl.stages.limits import (
    GIVE_UP_FAILED_S,
    GIVE_UP_S,
    IDLE_S,
    NOISE_LINES,
    READERS_END_S,
    ROOM_S,
    RUN_APPEARS_POLL_S,
    RUN_APPEARS_S,
    TAIL_CALL_S,
    TURN_S,
    WORKER_DEATHS,
)
from ddpctl.stages.status import is_no_such_run, not_listed
from ddpctl.transport import limits
from ddpctl.transport.base import Fleet, Frame
from ddpctl.transport.conversation import has_ended
from ddpctl_worker.wire import contract

log = logging.getLogger(__name__)

FAILURES = frozenset({contract.FAILED, contract.KILLED, contract.LOST})


Show = Callable[[Sequence[Group]], None]
Save = Callable[[Mapping[str, int]], None]
Wait = Callable[[threading.Event, float], bool]  # waits for the event, for this many seconds at most


@dataclass(frozen=True)
class _Batch:
    host: str
    lines: list[Line]
    more: bool  # another one is on the way

    @property
    def size(self) -> int:
        return FULL if self.more else 1


@dataclass(frozen=True)
class _Cut:
    """No connection; it is tried again."""

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
class _Well:
    """The host answers, and its supervisor lives."""

    host: str


@dataclass(frozen=True)
class _Word:
    """What the nodes say of the run itself."""

    host: str
    note: Note


@dataclass(frozen=True)
class _Ended:
    host: str
    error: DdpctlError | None = None
    state: str | None = None  # of the run there

    @property
    def lost(self) -> bool:
        """Its part of the run is gone: its agent is, or its record."""
        return self.state == contract.LOST or (self.error is not None and is_no_such_run(self.error))


_Item = _Batch | _Cut | _Stale | _Well | _Word | _Ended


class _Inbox:
    """From the readers to the loop. A reader waits while enough of its host is in here or held by the loop."""

    def __init__(self, hosts: Sequence[str], cancelled: threading.Event) -> None:
        self._items: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._room = threading.Condition()
        self._sizes = dict.fromkeys(hosts, 0)  # of what is in here
        self._full = dict.fromkeys(hosts, False)  # as the loop says
        self._cancelled = cancelled

    def put(self, item: _Item) -> None:
        if isinstance(item, _Batch):
            with self._room:
                while (self._full[item.host] or self._sizes[item.host] >= MOST) and not self._cancelled.is_set():
                    self._room.wait(ROOM_S)
                self._sizes[item.host] += item.size
        self._items.put(item)

    def get(self, timeout: float) -> list[_Item]:
        """All that is there; empty when nothing came."""
        found: list[_Item] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._items.get(timeout=timeout))
            while True:
                found.append(self._items.get_nowait())
        return found

    def taken(self, items: Sequence[_Item], flow: Flow) -> None:
        """These are the loop's now: how much of each host it holds decides who may send."""
        with self._room:
            for item in items:
                if isinstance(item, _Batch):
                    self._sizes[item.host] -= item.size
            self._full = {host: flow.full(host) for host in self._full}
            self._room.notify_all()


@dataclass
class Selection:
    """Which lines: of which ranks (None: all), with which pattern in them, starting where: ``offsets``, or the last
    ``lines`` of all hosts together, the time ``since`` (Unix seconds), ``ago`` seconds before now."""

    ranks: frozenset[int] | None = None
    lines: int | None = None
    offsets: Mapping[str, int] = field(default_factory=dict)
    since: float | None = None
    ago: float | None = None
    grep: str | None = None

    def of(self, host: str) -> dict[str, Any]:
        """What the host is asked for at first."""
        lines = self.lines and self.lines + NOISE_LINES
        return {"offset": self.offsets.get(host), "lines": lines, "since": self.since, "ago": self.ago, **self.always}

    @property
    def always(self) -> dict[str, Any]:
        """... and also after a broken connection."""
        return {"ranks": None if self.ranks is None else sorted(self.ranks), "grep": self.grep}


@dataclass
class _Stream:
    """One host's reader: calls `tail` until the run is over there, through broken connections and workers that die."""

    fleet: Fleet
    host: str
    run: str
    selection: Selection
    follow: bool
    out: _Inbox
    cancelled: threading.Event
    offset: int | None = None
    warned: bool = False  # of a broken connection, since the last one that was whole
    pause: float = limits.RETRY_FIRST_S
    deaths: int = 0  # of workers that were to read it, since one that brought something
    came: bool = False  # something, in this call
    comes_until: float = 0.0  # by the monotonic clock: how long the host may be without the run, which starts just now
    wait: Wait = threading.Event.wait

    def read(self) -> None:
        """In a thread of its own. However it ends, an end comes out: without one the host would be waited for."""
        end = _Ended(self.host, InternalFault("its reader was ended", host=self.host))
        try:
            end = self._read()
        except Exception as error:  # whatever it is, it is this host's alone
            end = _Ended(self.host, as_fault(error, self.host))
            log.debug("%s: its output cannot be read on", self.host, exc_info=error)
        finally:
            self.out.put(end)

    def _read(self) -> _Ended:
        """Raises what ends the reading, a broken connection apart: it is opened again where the run is followed."""
        if self.host not in self.fleet.hosts:
            raise not_listed(self.host)
        self.offset = self.selection.offsets.get(self.host)
        while True:
            try:
                return _Ended(self.host, state=self._call())
            except (ConnectError, RemoteError) as error:
                self._wait_after(error)

    def _wait_after(self, error: ConnectError | RemoteError) -> None:
        """Before the next try; raises ``error`` where no other one helps."""
        if is_no_such_run(error) and time.monotonic() < self.comes_until:
            if self.wait(self.cancelled, RUN_APPEARS_POLL_S):
                raise error
            return
        if isinstance(error, RemoteError):
            if error.kind == contract.TIMEOUT and self.came:
                return  # much is read, or somebody reads it in a pager: the next call reads on
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
        """Read to the end; returns the state that the node's part of the run is in then."""
        request: dict[str, Any] = {"run": self.run, "follow": self.follow}
        if self.offset is None:
            request |= self.selection.of(self.host)
        else:
            request |= {"offset": self.offset, **self.selection.always}
        timeout = None if self.follow else TAIL_CALL_S
        self.came = False
        transport = self.fleet.transport(self.host)
        answer = transport.call("tail", request, on_frame=self._frame, timeout=timeout, cancel=self.cancelled.is_set)
        return str(answer["state"])

    def _frame(self, frame: Frame) -> None:
        self.warned, self.pause, self.deaths = False, limits.RETRY_FIRST_S, 0
        if frame.data.get("state") == contract.STALE:
            self.out.put(_Stale(self.host, frame.data.get("heartbeat_age_s")))
        elif "state" in frame.data:
            self.out.put(_Well(self.host))
        if "stuck" in frame.data:
            self.out.put(_Word(self.host, _about(frame.data["stuck"])))
        if "lag" in frame.data:
            lag = frame.data["lag"]
            self.out.put(_Word(self.host, Note(lag_line(lag), "warning" if lag["late"] else "info", self.host)))
        if "lines" in frame.data:
            self.out.put(_Batch(self.host, lines_of(self.host, frame), frame.data["more"]))
            self.offset, self.came = frame.data["offset"], True


def lines_of(host: str, frame: Frame) -> list[Line]:
    """The lines that a frame brings; none where it brings something else."""
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
    """Show every line of ``run`` until it is over on every host (or, without ``follow``, until its present end).

    ``show`` prints lines in the order of time, equal ones of several ranks together if ``folded``; after that ``save``
    gets the offsets up to which everything has been shown. ``held``: new lines wait a moment for those of other hosts.
    ``noise`` takes the lines that are not shown. ``interrupted`` is polled; True ends the following.
    ``restarts``: the run continues without a host that has failed. ``starts``: it may not be on every host yet.
    ``wait``: how the readers pause before they try again.
    Returns the hosts that could not be read, each with its error: Unreachable for those without a connection.

    Raises:
        Interrupted: ``interrupted`` said so, or Ctrl-C; nothing on the nodes was touched.
    """
    selection = selection or Selection()
    cancelled = threading.Event()
    out = _Inbox(hosts, cancelled)
    last = selection.lines or None  # of no lines each host begins with the next one
    flow = Flow(hosts, time.monotonic(), live=follow, folded=folded, last=last, held=held)
    until = time.monotonic() + RUN_APPEARS_S if follow and starts else 0.0
    streams = [
        _Stream(fleet, host, run, selection, follow, out, cancelled, comes_until=until, wait=wait) for host in hosts
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

        told = _Losses(run, len(hosts), tell) if follow and restarts else None
        errors = _drain(out, flow, set(hosts), tell, give, noise, interrupted, follow=follow, losses=told)
        give(flow.rest(time.monotonic()))
        return errors
    finally:
        cancelled.set()
        _join(threads)


class _Losses:
    """The warnings about hosts that a run with restarts has lost."""

    def __init__(self, run: str, hosts: int, tell: Tell) -> None:
        self._run, self._hosts, self._tell = run, hosts, tell
        self._lost: set[str] = set()
        self._told = False

    def add(self, host: str) -> None:
        self._lost.add(host)
        self._tell(Note(LOST_FOR_RUN, "warning", host))

    def tell_majority(self) -> None:
        """Once, while others live: they are too few."""
        left = self._hosts - len(self._lost)
        if left < majority_of(self._hosts) and not self._told:
            self._told = True
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
    """``losses``: of a run that continues without a host that has failed."""
    errors: dict[str, DdpctlError] = {}
    broken: dict[str, _Cut | _Stale] = {}
    total = len(waiting)
    last_news, patience = time.monotonic(), GIVE_UP_S
    while waiting:
        if interrupted is not None and interrupted():
            raise Interrupted("following was interrupted")
        items = out.get(TURN_S if flow.waits else IDLE_S)
        if not items:
            # Every host that is left is out of reach or hangs, the others are over: do not wait for ever.
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
            elif isinstance(item, _Word):
                tell(item.note)
            elif isinstance(item, _Well):
                broken.pop(item.host, None)
            elif isinstance(item, _Ended):
                waiting.discard(item.host)
                flow.skip(item.host)
                if losses is None and item.state in FAILURES:
                    patience = GIVE_UP_FAILED_S
                if losses is not None and item.lost:
                    losses.add(item.host)
                if item.error is not None:
                    errors[item.host] = item.error
                    if follow and waiting and not is_no_such_run(item.error):  # the others may go on for weeks
                        tell(Note(f"{item.error}; its output is no longer followed", "warning", item.host))
            else:
                broken.pop(item.host, None)
                flow.add(item.host, _without(noise, item.lines), item.more, time.monotonic())
        give(flow.take(time.monotonic()))
        out.taken(items, flow)
    return errors


def _without(noise: Held | None, lines: list[Line]) -> list[Line]:
    return lines if noise is None else [line for line in lines if line.rank is not None or not noise.takes(line)]


def _about(diagnosis: Mapping[str, Any] | None) -> Note:
    """The words for a run that is stuck, or moves again (None)."""
    if diagnosis is None:
        return Note("the job moves again")
    begun, told = (datetime.fromisoformat(diagnosis[name]) for name in ("since", "time"))
    return Note(f"stuck for {(told - begun).total_seconds():.0f} s: {diagnosis['verdict']}", "warning")


def _unreachable(broken: _Cut | _Stale) -> DdpctlError:
    """Unreachable without a connection: another try would cost seconds. Else it is the supervisor that says nothing."""
    if isinstance(broken, _Stale):
        return ConnectError(broken.note.message, host=broken.host)
    if isinstance(broken.error, RemoteError):
        return broken.error
    return Unreachable(broken.error.message, hint=broken.error.hint, host=broken.host)


def _join(threads: Sequence[threading.Thread]) -> None:
    deadline = time.monotonic() + READERS_END_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
