"""A member of a gang: every supervisor except the hub's."""

from __future__ import annotations

import math
import socket
from typing import Any, Dict, List, Optional, Set, Tuple

from ddpctl_worker.gang.base import Gang, Wake
from ddpctl_worker.gang.cutwatch import SILENT
from ddpctl_worker.gang.limits import (
    ALONE_S,
    BEAT_S,
    CONNECT_S,
    ENDING_LOOP_S,
    GOODBYE_S,
    LOOP_S,
    MEET_S,
    RECONNECT_S,
    REJOIN_S,
    RETRY_S,
    SILENT_S,
)
from ddpctl_worker.gang.wire import MemberWire, from_wire, to_wire
from ddpctl_worker.machine.notes import note
from ddpctl_worker.machine.strangers import Stranger
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.record.outcome import Outcome
from ddpctl_worker.record.runrecord import RunRecord
from ddpctl_worker.wire.contract import NODE_LOST, SUCCEEDED, SUPERVISOR_LOST


class MemberGang(Gang):
    """Keeps a connection to the hub."""

    def __init__(self, run: RunRecord, key: bytes, wake: Wake, *system: Any) -> None:
        super().__init__(run, key, wake, *system)
        self._sock: Optional[socket.socket] = None
        self._wire: Optional[MemberWire] = None
        self._joined = False  # ever
        self._said_serves: Optional[int] = None  # the port that the hub knows
        self._heard = self._since = self._clock.now()  # the hub's last message; the start of this connection
        self._parked: List[socket.socket] = []
        self._refused_since: Optional[float] = None
        self._troubles: Set[str] = set()  # reasons in the log
        self._hub_done = False
        self._left = False  # the hub has acknowledged our goodbye
        self._hub_clock: Optional[Tuple[float, float]] = None  # its last message: sent (its clock), received (ours)
        self._unsaid: List[Tuple[Outcome, float]] = []  # reports with their monotonic time, not sent yet
        self._said: List[Tuple[Outcome, float]] = []  # sent on this connection; only the verdict proves their arrival

    def missing(self) -> List[str]:
        return [] if self._joined else [self.hub_host]

    def patience(self) -> float:
        """Return how long to wait: until the hub has decided or is lost. Without a hub there is no verdict."""
        if self._hub_done or not self.talking:
            return -math.inf
        return SILENT_S if self._joined else 0.0

    def _loop(self) -> None:
        leave_by: Optional[float] = None
        beat_at = retry_at = 0.0
        while not self._hub_done:
            now = self._clock.now()
            nap = self._nap(now)
            self._heard += nap
            self._refused_since = None if nap else self._refused_since
            self._unsaid += [(outcome, now - age) for outcome, age in self._reports()]
            if self._sock is None and now >= retry_at:
                self._connect()
                self._turned = self._clock.now()  # waiting for an answer is no sleep
                retry_at = self._turned + RETRY_S
            if self._wire is not None and self._wire.open:
                self._report(now)
                if now >= beat_at:
                    beat_at = now + BEAT_S
                    self._send(self._beat())
            words = self._said_words()
            if self._wire is not None and self._wire.open:
                for word in words:
                    self._send({"k": "doctor", "word": word})
            if self._wire is not None and self._wire.open and self._serves != self._said_serves:
                self._introduce()
            links = self._found_links()  # a finding that cannot be sent now comes again, or the cut is over
            if self._wire is not None and self._wire.open:
                for link in links:
                    self._send(dict(link, k="link"))
            self._miss_hub(now)
            if self._sock is not None and now - max(self._heard, self._since) > RECONNECT_S:
                self._park()
                retry_at = 0.0
            if self._leaving is not None:
                if leave_by is None:
                    leave_by = now + self._leave_within(self._leaving)
                    self._farewell()
                if self._left or now >= leave_by:
                    break
            self._receive(LOOP_S if leave_by is None else ENDING_LOOP_S)

    def _close_all(self) -> None:
        self._close()
        self._unpark()

    def _leave_within(self, outcome: Outcome) -> float:
        if self._joined:
            return GOODBYE_S
        return MEET_S if outcome.state == SUCCEEDED else ALONE_S

    def _report(self, now: float) -> None:
        while self._unsaid and self._sock is not None:
            outcome, happened = self._unsaid[0]
            if not self._send(dict(to_wire(outcome, now - happened), k="down")):
                return
            self._said.append(self._unsaid.pop(0))

    def _farewell(self) -> None:
        assert self._leaving is not None
        if self._wire is not None and self._wire.open:
            self._send(dict(to_wire(self._leaving, 0.0), k="bye"))

    def _connect(self) -> None:
        try:
            sock = self._sockets.connect(self.address, CONNECT_S)
        except ConnectionRefusedError as error:
            self._refused_since, self.unanswered = self._refused_since or self._clock.now(), False
            self._note_trouble(error)
            return
        except OSError as error:
            self._refused_since = None
            self._note_trouble(error)
            silent = isinstance(error, socket.timeout) or error.errno in SILENT
            self.unanswered = silent and not self._joined
            return
        self.unanswered = False
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(CONNECT_S)
        self._since = self._clock.now()
        self._sock, self._wire = sock, MemberWire(self.key, self.run_id, self.host, self.hub_host)
        try:
            sock.sendall(self._wire.hello())
        except OSError as error:
            self._note_trouble(error)
            self._close()

    def _receive(self, timeout: float) -> None:
        waiting: List[Any] = [self._pipe] if self._sock is None else [self._pipe, self._sock]
        ready = self._sockets.readable(waiting, timeout)
        if self._pipe in ready:
            self._pipe.clear()
        if self._sock is None or self._sock not in ready or self._wire is None:
            return
        try:
            data = self._sock.recv(1 << 16)
            fresh = not self._wire.open
            if not data:
                raise Stranger("the other side closed it")
            messages = self._wire.feed(data)
        except (OSError, Stranger) as error:
            self._note_trouble(error)
            self._close()
            return
        if self._wire.open:
            self._joined, self.trouble = True, ""
            self._heard, self._refused_since = self._clock.now(), None
            if fresh:
                self._unpark()
                self._send(self._beat())
                self._introduce()
                if self._leaving is not None:
                    self._farewell()
        for message in messages:
            self._hear(message)

    def _note_trouble(self, why: object) -> None:
        """Keep the reason why this node cannot join. Each new reason goes to the log."""
        self.trouble = "" if self._joined else str(why)
        if self.trouble and self.trouble not in self._troubles:
            self._troubles.add(self.trouble)
            note("gang: no connection to %s port %d: %s" % (self.hub_host, self.address[1], why))

    def _introduce(self) -> None:
        self._said_serves = self._serves
        self._send(self._here())

    def _beat(self) -> Dict[str, Any]:
        """Return the heartbeat, with an answer to the hub's last heartbeat.

        The answer shows the hub how far this clock is off (clocks.py).
        """
        known, self._hub_clock = self._hub_clock, None
        return dict(super()._beat(), clock=[*known, self._clock.wall()] if known else None)

    def _hear(self, message: Dict[str, Any]) -> None:
        kind = message.get("k")
        if "now" in message:
            self._hub_clock = (float(message["now"]), self._clock.wall())
        if kind == "verdict" and self.verdict is None:
            self._decided(from_wire(message))
        elif kind == "ask" and not self.asked:
            self._ask()
        elif kind == "dial":
            address, port = message["end"]
            self._cuts.dial(message["to"], (address, port))
        elif kind == "doctor":
            self._hear_word(self.hub_host, message["word"])
        elif kind == "here":
            self._meet(message["host"], message["at"], message.get("serves"))
        elif kind == "bye":
            self._left = True
            # Without a goodbye of this member it means that the hub has ended, so there is no node left to watch.
            self._hub_done = self._hub_done or self._leaving is None

    def _send(self, message: Dict[str, Any]) -> bool:
        assert self._wire is not None
        if self._sock is None:
            return False
        try:
            self._sock.sendall(self._wire.pack(message))
        except OSError:
            self._close()
            return False
        return True

    def _miss_hub(self, now: float) -> None:
        """Decide alone once the hub is lost.

        A hub that never joined is found by the deadline of the start (run/deadlines.py).
        """
        if self.verdict is not None or not self._joined:
            return
        if self._refused_since is not None and now - self._refused_since > REJOIN_S:
            text = "the supervisor on %s is gone; the host itself still answers" % self.hub_host
            self._decided(outcomes.failed(outcomes.cause(self.hub_host, SUPERVISOR_LOST, text)))
        elif now - self._heard > SILENT_S:
            text = "nothing was heard from %s for %d s: it is down or cut off" % (self.hub_host, SILENT_S)
            self._decided(outcomes.failed(outcomes.cause(self.hub_host, NODE_LOST, text)))

    def _park(self) -> None:
        """Keep the connection open, but try a new connection.

        After the end of a cut a new connection works at once, the old connection only when TCP tries again. The end of
        the old connection would mean to the hub that this supervisor is gone.
        """
        self._note_trouble("no answer within %g s" % RECONNECT_S)
        if self._sock is not None:
            self._parked.append(self._sock)
        self._sock = None
        self._close()

    def _unpark(self) -> None:
        while self._parked:
            self._parked.pop().close()

    def _close(self) -> None:
        if self._sock is not None:
            self._sock.close()
        self._sock = self._wire = None
        if self.verdict is None:
            self._unsaid, self._said = self._said + self._unsaid, []
