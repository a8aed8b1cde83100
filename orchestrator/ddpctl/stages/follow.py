"""Follow a run's output on all its nodes until it is over.

One thread a host reads the worker's stream from an absolute offset; one loop hands the lines on in order of arrival.
A broken connection is opened again at the offset that was handed on last, so no line is lost or doubled.
"""

from __future__ import annotations

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
from ddpctl.spec.event import Line, Note, Tell
from ddpctl.stages.rejoin import TAKES_PART, cannot
from ddpctl.stages.status import is_no_such_run
from ddpctl.transport import limits
from ddpctl.transport.base import Fleet, Frame
from ddpctl_worker import contract

log = logging.getLogger(__name__)

# How long a host that cannot be reached is waited for once all others are over.
GIVE_UP_S = 30.0
# ... and when one of those has failed: without restarts that is the end, and its last words can be read later.
GIVE_UP_FAILED_S = 2.0
BACK_MOST_S = 60.0  # between two times that a host takes part again
BACK_TRIES = 6  # ... twice as long each time
JOIN_S = 1.0  # for the readers to end; one that is connecting cannot be called back
FAILURES = frozenset({contract.FAILED, contract.KILLED, contract.LOST})

Save = Callable[[Mapping[str, int]], None]
Back = Callable[[str], bool]  # have a host take part again: whether it does


@dataclass(frozen=True)
class _Batch:
    host: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class _Cut:
    """No connection; it is tried again."""

    host: str
    error: ConnectError

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
    failed: bool = False


_Item = _Batch | _Cut | _Stale | _Well | _Word | _Ended


@dataclass
class Selection:
    """Which lines: of which ranks (None: all), starting where (``offsets``, or the last ``lines`` of each host)."""

    ranks: frozenset[int] | None = None
    lines: int | None = None
    offsets: Mapping[str, int] = field(default_factory=dict)


@dataclass
class _Stream:
    """One host's reader: calls `tail` until the run is over there, through any number of broken connections."""

    fleet: Fleet
    host: str
    run: str
    selection: Selection
    follow: bool
    out: queue.Queue[_Item]
    cancelled: threading.Event
    offset: int | None = None
    warned: bool = False  # of a broken connection, since the last one that was whole
    pause: float = limits.RETRY_FIRST_S
    back: Back | None = None
    returns: int = 0  # how often the host took part again

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
        self.offset = self.selection.offsets.get(self.host)
        while True:
            try:
                state = self._call()
                if state != contract.LOST or self.back is None or not self._take_part_again():
                    return _Ended(self.host, failed=state in FAILURES)
            except ConnectError as error:
                if not self.follow:
                    raise
                if not self.warned:
                    self.out.put(_Cut(self.host, error))
                    self.warned = True
                if self.cancelled.wait(self.pause):
                    raise
                self.pause = min(limits.RETRY_MOST_S, self.pause * 2)
            except RemoteError as error:
                if self.back is not None and is_no_such_run(error):
                    self.out.put(_Word(self.host, cannot(error, self.host)))
                raise

    def _take_part_again(self) -> bool:
        """A host whose part is lost while the run is live is asked to take part again, until somebody answers."""
        assert self.back is not None
        tries, taken = self.returns, False
        while not taken:
            if self.cancelled.wait(min(BACK_MOST_S, 2.0**tries) if tries else 0.0):
                return False
            tries = min(tries + 1, BACK_TRIES)
            try:
                if not self.back(self.host):
                    return False
                taken = True
            except RemoteError as error:
                self.out.put(_Word(self.host, cannot(error, self.host)))
                return False
            except ConnectError as error:
                if not self.warned:  # once: what is said again and again would keep others from being given up
                    self.out.put(_Cut(self.host, error))
                    self.warned = True
        self.returns = min(self.returns + 1, BACK_TRIES)
        self.out.put(_Word(self.host, Note(TAKES_PART, host=self.host)))
        return True

    def _call(self) -> str:
        """Read to the end; returns the state that the node's part of the run is in then."""
        request: dict[str, Any] = {"run": self.run, "follow": self.follow, "offset": self.offset}
        if self.offset is None:
            request["lines"] = self.selection.lines
        if self.selection.ranks is not None:
            request["ranks"] = sorted(self.selection.ranks)
        timeout = None if self.follow else 600.0
        transport = self.fleet.transport(self.host)
        answer = transport.call("tail", request, on_frame=self._frame, timeout=timeout, cancel=self.cancelled.is_set)
        return str(answer["state"])

    def _frame(self, frame: Frame) -> None:
        self.warned, self.pause = False, limits.RETRY_FIRST_S
        if frame.data.get("state") == contract.STALE:
            self.out.put(_Stale(self.host, frame.data.get("heartbeat_age_s")))
        elif "state" in frame.data:
            self.out.put(_Well(self.host))
        if "stuck" in frame.data:
            self.out.put(_Word(self.host, _about(frame.data["stuck"])))
        data = frame.data.get("lines")
        if not data:
            return
        lines = tuple(Line(self.host, **one) for one in data)
        self.offset = lines[-1].offset
        self.out.put(_Batch(self.host, lines))


def follow(
    run: str,
    hosts: Sequence[str],
    fleet: Fleet,
    tell: Tell,
    *,
    selection: Selection | None = None,
    save: Save | None = None,
    follow: bool = True,
    interrupted: Callable[[], bool] | None = None,
    back: Back | None = None,
    restarts: bool = False,
) -> dict[str, DdpctlError]:
    """Hand on every line of ``run`` until it is over on every host (or, without ``follow``, until its present end).

    ``save`` gets the offsets handed on so far, after each batch. ``interrupted`` is polled; True ends the following.
    ``back`` has a host that is lost take part again, once it answers; None: it stays out.
    ``restarts``: the run continues without a host that has failed.
    Returns the hosts that could not be read, each with its error: Unreachable for those without a connection.

    Raises:
        Interrupted: ``interrupted`` said so, or Ctrl-C; nothing on the nodes was touched.
    """
    selection = selection or Selection()
    out: queue.Queue[_Item] = queue.Queue(maxsize=1000)
    cancelled = threading.Event()
    streams = [_Stream(fleet, host, run, selection, follow, out, cancelled, back=back) for host in hosts]
    threads = [threading.Thread(target=stream.read, name=f"tail-{stream.host}", daemon=True) for stream in streams]
    for thread in threads:
        thread.start()
    try:
        patience = GIVE_UP_S if restarts else GIVE_UP_FAILED_S
        offsets = dict(selection.offsets)
        return _drain(out, set(hosts), offsets, tell, save, interrupted, follow=follow, when_failed=patience)
    finally:
        cancelled.set()
        _join(threads, out)


def _drain(
    out: queue.Queue[_Item],
    waiting: set[str],
    offsets: dict[str, int],
    tell: Tell,
    save: Save | None,
    interrupted: Callable[[], bool] | None,
    *,
    follow: bool,
    when_failed: float,
) -> dict[str, DdpctlError]:
    """``when_failed``: the patience with the others once a host has failed."""
    errors: dict[str, DdpctlError] = {}
    broken: dict[str, _Cut | _Stale] = {}
    total = len(waiting)
    last_news, patience = time.monotonic(), GIVE_UP_S
    while waiting:
        if interrupted is not None and interrupted():
            raise Interrupted("following was interrupted")
        try:
            item = out.get(timeout=0.2)
        except queue.Empty:
            # Every host that is left is out of reach or hangs, the others are over: do not wait for ever.
            left = waiting <= set(broken) and (
                len(waiting) < total or any(isinstance(broken[host], _Cut) for host in waiting)
            )
            if left and time.monotonic() - last_news > patience:
                return errors | {host: _unreachable(broken[host]) for host in waiting}
            continue
        last_news = time.monotonic()
        if isinstance(item, (_Cut, _Stale)):
            broken[item.host] = item
            tell(item.note)
        elif isinstance(item, _Word):
            tell(item.note)
        elif isinstance(item, _Well):
            broken.pop(item.host, None)
        elif isinstance(item, _Ended):
            waiting.discard(item.host)
            patience = when_failed if item.failed else patience
            if item.error is not None:
                errors[item.host] = item.error
                if follow and waiting and not is_no_such_run(item.error):  # the others may go on for weeks
                    tell(Note(f"{item.error}; its output is no longer followed", "warning", item.host))
        else:
            broken.pop(item.host, None)
            for line in item.lines:
                tell(line)
            offsets[item.host] = item.lines[-1].offset
            if save is not None:
                save(offsets)
    return errors


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
    return Unreachable(broken.error.message, hint=broken.error.hint, host=broken.host)


def _join(threads: Sequence[threading.Thread], out: queue.Queue[_Item]) -> None:
    """Let the readers go: empty the queue so that none is stuck on it."""
    deadline = time.monotonic() + JOIN_S
    for thread in threads:
        while thread.is_alive() and time.monotonic() < deadline:
            try:
                while True:
                    out.get_nowait()
            except queue.Empty:
                thread.join(0.05)
