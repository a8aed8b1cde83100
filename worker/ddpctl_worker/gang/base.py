"""The common part of hub and members: a thread that talks to other nodes, beside the supervisor's loop."""

from __future__ import annotations

import contextlib
import json
import math
import threading
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from ddpctl_worker.gang.cutwatch import CutWatch, OnFinding
from ddpctl_worker.gang.limits import (
    BEAT_S,
    FAULT_PAUSE_S,
    FAULTS_S,
    MAX_MESSAGE,
    MAX_MESSAGES,
    MOST_FAULT_PAUSE_S,
    NAP_S,
    RECOVERED_S,
    SILENT_S,
    STILL_S,
)
from ddpctl_worker.machine.clocks import Offset
from ddpctl_worker.machine.notes import note, trace
from ddpctl_worker.machine.system import CLOCK, SOCKETS, HostClock, Sockets
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.record.outcome import Outcome
from ddpctl_worker.record.runrecord import RunRecord
from ddpctl_worker.wire.contract import SUPERVISOR_LOST

Wake = Callable[[], None]


class Gang:
    """A supervisor's view of the gang; a thread of its own talks to the other nodes."""

    is_hub = False

    def __init__(
        self,
        run: RunRecord,
        key: bytes,
        wake: Wake,
        clock: HostClock = CLOCK,
        sockets: Sockets = SOCKETS,
        cuts: Callable[[int, OnFinding, Callable[[], bool]], CutWatch] = CutWatch,
    ) -> None:
        self._clock, self._sockets = clock, sockets
        self.run_id: str = run["run"]
        self.host: str = run["host"]
        self.hosts: List[str] = list(run["hosts"])
        place = run["gang"]
        assert place is not None  # a run without it has no gang
        self.hub_host: str = place["hub_host"]
        self.address: Tuple[str, int] = (place["hub_addr"], int(place["port"]))
        self.bind_address: str = place["bind_addr"]
        self.key = key
        self._wake_supervisor = wake
        self._inbox: List[Tuple[Outcome, float]] = []  # failures to report, with their boot time
        self._words: List[Dict[str, Any]] = []  # to be sent
        self._too_long: Set[str] = set()  # kinds of words that were too long, each noted once
        self._hearers: List[Callable[[str, Dict[str, Any]], None]] = []
        self._links: List[Dict[str, Any]] = []  # findings about links to other nodes, to be sent
        self._cuts = cuts(self.address[1], self._found, lambda: self._living > 0 and self.verdict is None)
        self._serves: Optional[int] = None  # the port where this node serves its checkpoints
        self.servers: Dict[str, Tuple[List[str], int]] = {}  # the other nodes: their addresses and ports
        self._lock = threading.Lock()
        self._pipe = sockets.pipe()
        self._output: Optional[float] = None  # seconds since boot
        self._living = 0  # ranks
        self._supervised = self._clock.now()  # when the supervisor's loop last turned
        self._turned: Optional[float] = None  # when this thread's loop last came around (monotonic)
        self._turned_before: Optional[float] = None  # at the last check; when that was (monotonic)
        self._checked = self._clock.now()
        self._stood = 0.0  # for how long the thread has not turned since
        self.stuck = False  # the gang's thread does not turn
        self._leaving: Optional[Outcome] = None
        self.verdict: Optional[Outcome] = None
        self.asked = False  # a node has failed: this node reports its findings, even if nothing has failed here
        self.unanswered = False  # this node has never joined, and the hub's host gives no sign at all
        self.trouble = ""  # why this node, or on the hub every node, cannot join at the moment, if this node knows
        self._thread = clock.thread(self._guarded, "gang")

    def start(self) -> None:
        self._thread.start()
        self._cuts.start()

    def note_turn(self, last_output: Optional[float], living: int) -> None:
        """Note that the supervisor's loop has turned. ``last_output``: seconds since boot. ``living``: ranks."""
        self._output, self._living = last_output, living
        self._supervised = self._clock.now()
        self._check()

    def report_failure(self, outcome: Outcome) -> None:
        """Report that this node has failed or was killed; the gang agrees on the cause."""
        age = max(0.0, self._clock.wall() - outcome.when) if outcome.when else 0.0
        with self._lock:
            self._inbox.append((outcome, self._clock.boot() - age))
        self._pipe.wake()

    def broadcast(self, word: Dict[str, Any]) -> None:
        """Send a message of the doctor, or about a save, to the hub, and from the hub to all members.

        Any thread may call this. A message that cannot be sent now is lost.
        """
        with self._lock:
            self._words = [*self._words[-MAX_MESSAGES:], word]
        self._pipe.wake()

    def on_message(self, hear: Callable[[str, Dict[str, Any]], None]) -> None:
        """Have ``hear`` called with the host and each such message of another node; it must not block."""
        self._hearers.append(hear)

    def _hear_word(self, host: str, word: Dict[str, Any]) -> None:
        for hear in self._hearers:
            hear(host, word)

    def serve_checkpoints(self, port: Optional[int]) -> None:
        """Announce the port at which this node serves its checkpoints."""
        if port != self._serves:
            self._serves = port
            self._pipe.wake()

    def _here(self) -> Dict[str, Any]:
        return {"k": "here", "at": self._cuts.here, "serves": self._serves}

    def _meet(self, host: str, addresses: List[str], serves: Optional[int]) -> None:
        """Take in the addresses of another node, and the port of its checkpoints."""
        self._cuts.meet(host, addresses)
        if serves is not None:
            self.servers = {**self.servers, host: (addresses, serves)}

    def offset(self, host: str) -> Optional[Offset]:
        """Return how far the clock of ``host`` is ahead of this node's; ``None`` except on the hub."""
        return Offset(0.0, 0.0) if host == self.host else None

    def leave(self, outcome: Outcome) -> None:
        """Say goodbye, because this node has ended.

        The thread ends by itself; the hub's thread ends once every node has left.
        """
        if self._leaving is None:
            self._leaving = outcome
            self._cuts.stop()
            self._pipe.wake()

    @property
    def talking(self) -> bool:
        """Return whether the gang's thread works."""
        return self._thread.is_alive() and not self.stuck

    def _check(self) -> None:
        """See whether the gang's thread has stopped turning.

        The time is counted in turns of the supervisor's loop: after a sleep of the machine this loop may be the first
        to run.
        """
        now = self._clock.now()
        passed, self._checked = min(now - self._checked, BEAT_S), now
        if self._turned != self._turned_before or not self._thread.is_alive():
            self._turned_before, self._stood = self._turned, 0.0
        else:
            self._stood += passed
        self.stuck = self._stood > STILL_S

    def missing(self) -> List[str]:
        """Return the nodes that never joined, as far as this node knows."""
        raise NotImplementedError

    def quiet(self) -> float:
        """Return for how many seconds no node has had output (the hub only)."""
        return 0.0

    def patience(self) -> float:
        """Return how many seconds longer than usual a node should wait for a verdict.

        The hub may have to wait for a node that has fallen silent.
        """
        return SILENT_S if self.talking else -math.inf

    def candidates(self) -> List[Dict[str, Any]]:
        """Return the causes that the nodes have reported (the hub only)."""
        return []

    def _loop(self) -> None:
        raise NotImplementedError

    def _close_all(self) -> None:
        """Close every connection: the loop starts again, or has ended."""
        raise NotImplementedError

    def _guarded(self) -> None:
        """Run the loop, and start it again after a fault.

        A node that cannot watch the other nodes for long ends, and is the cause itself.
        """
        since, pause = 0.0, FAULT_PAUSE_S
        while True:
            begun = self._clock.now()
            try:
                self._loop()
                self._close_all()
                return
            except Exception as error:
                note("gang: %s" % trace(error))
                fault = repr(error)
            now = self._clock.now()
            if now - begun > RECOVERED_S:
                since, pause = 0.0, FAULT_PAUSE_S
            since = since or now
            with contextlib.suppress(Exception):
                self._close_all()
            if now - since > FAULTS_S and self.verdict is None:
                text = "the thread on %s that watches the other nodes keeps failing: %s" % (self.host, fault)
                self._decided(outcomes.failed(outcomes.cause(self.host, SUPERVISOR_LOST, text)))
            if self._leaving is not None:
                return
            self._clock.sleep(pause)
            pause = min(MOST_FAULT_PAUSE_S, pause * 2)

    def _ask(self) -> None:
        self.asked = True
        self._wake_supervisor()

    def _decided(self, verdict: Outcome) -> None:
        self.verdict = verdict
        self._wake_supervisor()

    def _reports(self) -> List[Tuple[Outcome, float]]:
        """Return the failures to report, each with its age in seconds."""
        with self._lock:
            reports, self._inbox = self._inbox, []
        return [(outcome, max(0.0, self._clock.boot() - happened)) for outcome, happened in reports]

    def _said_words(self) -> List[Dict[str, Any]]:
        with self._lock:
            words, self._words = self._words, []
        return [word for word in words if self._fits(word)]

    def _fits(self, word: Dict[str, Any]) -> bool:
        """Return whether the word fits into a line: the other side closes the connection after a longer line."""
        size, what = len(json.dumps(word)), str(word.get("what"))
        if size > MAX_MESSAGE and what not in self._too_long:
            self._too_long.add(what)
            note(
                "gang: a word of the doctor was not sent: %r has %d bytes, and a line takes %d"
                % (what, size, MAX_MESSAGE)
            )
        return size <= MAX_MESSAGE

    def _found(self, link: Dict[str, Any]) -> None:
        with self._lock:
            self._links.append(link)
        self._pipe.wake()

    def _found_links(self) -> List[Dict[str, Any]]:
        with self._lock:
            links, self._links = self._links, []
        return links

    def _nap(self, now: float) -> float:
        """Return for how long this loop did not turn (monotonic seconds); 0.0 for an ordinary turn."""
        before, self._turned = self._turned, now
        nap = now - before if before is not None and now - before > NAP_S else 0.0
        self._supervised += nap
        return nap

    def _beat(self) -> Dict[str, Any]:
        """Return the heartbeat.

        It has the age of the supervisor's last turn, since this thread may live while the supervisor hangs.
        """
        return {"k": "beat", "out": self._output_age(), "loop": self._loop_age(), "ranks": self._living}

    def _loop_age(self) -> float:
        return max(0.0, self._clock.now() - self._supervised)

    def _output_age(self) -> Optional[float]:
        return None if self._output is None else max(0.0, self._clock.boot() - self._output)
