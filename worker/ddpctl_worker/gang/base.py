"""What hub and members have in common: a thread that talks, beside the supervisor's loop."""

from __future__ import annotations

import contextlib
import json
import math
import threading
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from ddpctl_worker import outcome as outcomes
from ddpctl_worker.clocks import Offset
from ddpctl_worker.contract import SUPERVISOR_LOST
from ddpctl_worker.gang.council import SILENT_S, STILL_S
from ddpctl_worker.gang.cutwatch import CutWatch, Told
from ddpctl_worker.gang.wire import MAX_LINE
from ddpctl_worker.notes import note, trace
from ddpctl_worker.outcome import Outcome
from ddpctl_worker.system import CLOCK, SOCKETS, HostClock, Sockets

BEAT_S = 1.0
IDLE_S = 0.25  # between two turns of a loop that nothing wakes
LEAVE_S = 5.0  # how long a goodbye waits for its answer
STEADY_S = 30.0  # a loop that ran for so long had got over its fault
FAULTS_S = 10.0  # a loop that fails again and again for so long will not
NAP_S = 4.0  # a loop that turns four times a second and did not for this long was asleep
MAX_WORDS = 200  # of the doctor, that wait
MAX_WORD = MAX_LINE - 1024  # bytes: with what a line holds beside it
Wake = Callable[[], None]


class Gang:
    """What a supervisor sees of the gang; a thread of its own does the talking."""

    is_hub = False

    def __init__(
        self,
        run: Dict[str, Any],
        key: bytes,
        wake: Wake,
        clock: HostClock = CLOCK,
        sockets: Sockets = SOCKETS,
        cuts: Callable[[int, Told, Callable[[], bool]], CutWatch] = CutWatch,
    ) -> None:
        self._clock, self._sockets = clock, sockets
        self.run_id: str = run["run"]
        self.host: str = run["host"]
        self.hosts: List[str] = list(run["hosts"])
        place = run["gang"]
        self.hub_host: str = place["hub_host"]
        self.address: Tuple[str, int] = (place["hub_addr"], int(place["port"]))
        self.bind_address: str = place["bind_addr"]
        self.key = key
        self._wake_supervisor = wake
        self._inbox: List[Tuple[Outcome, float]] = []  # failures to report, with their boot time
        self._words: List[Dict[str, Any]] = []  # to be said
        self._too_long: Set[str] = set()  # kinds of words that were noted as such
        self._hearers: List[Callable[[str, Dict[str, Any]], None]] = []
        self._links: List[Dict[str, Any]] = []  # what was found of the links to other nodes, to be told
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
        self._stood = 0.0  # for how long the thread has been stuck since
        self.stuck = False  # the thread that talks does not run
        self._leaving: Optional[Outcome] = None
        self.verdict: Optional[Outcome] = None
        self.asked = False  # some node has failed: what this one knows counts, even if nothing has failed here
        self.unanswered = False  # this node has never joined, and the hub's host gives no sign at all
        self.trouble = ""  # why nobody can join at the moment, where this node knows
        self._thread = clock.thread(self._guarded, "gang")

    def start(self) -> None:
        self._thread.start()
        self._cuts.start()

    def turned(self, last_output: Optional[float], living: int) -> None:
        """The supervisor's loop has turned; ``last_output`` in seconds since boot, ``living`` ranks."""
        self._output, self._living = last_output, living
        self._supervised = self._clock.now()
        self._check()

    def down(self, outcome: Outcome) -> None:
        """This node has failed (or was killed): the gang is to agree on the cause."""
        age = max(0.0, self._clock.wall() - outcome.when) if outcome.when else 0.0
        with self._lock:
            self._inbox.append((outcome, self._clock.boot() - age))
        self._pipe.wake()

    def say(self, word: Dict[str, Any]) -> None:
        """A word to the hub or, from there, to all members: the doctor's, or of a save. From any thread; what cannot
        be sent now is lost."""
        with self._lock:
            self._words = [*self._words[-MAX_WORDS:], word]
        self._pipe.wake()

    def on_word(self, hear: Callable[[str, Dict[str, Any]], None]) -> None:
        """``hear`` is called with every word of another node, and its host; it must not wait."""
        self._hearers.append(hear)

    def _hear_word(self, host: str, word: Dict[str, Any]) -> None:
        for hear in self._hearers:
            hear(host, word)

    def serve_checkpoints(self, port: Optional[int]) -> None:
        """The other nodes get this one's checkpoints at ``port``."""
        if port != self._serves:
            self._serves = port
            self._pipe.wake()

    def _here(self) -> Dict[str, Any]:
        """By which addresses the others may know this node, and where it serves."""
        return {"k": "here", "at": self._cuts.here, "serves": self._serves}

    def _meet(self, host: str, addresses: List[str], serves: Optional[int]) -> None:
        """Another node has said so."""
        self._cuts.meet(host, addresses)
        if serves is not None:
            self.servers = {**self.servers, host: (addresses, serves)}

    def offset(self, host: str) -> Optional[Offset]:
        """How far the clock of ``host`` is ahead of this node's; None: not known (the hub only)."""
        return Offset(0.0, 0.0) if host == self.host else None

    def leave(self, outcome: Outcome) -> None:
        """This node has ended: say so. The thread ends by itself; the hub's once every node has."""
        if self._leaving is None:
            self._leaving = outcome
            self._cuts.stop()
            self._pipe.wake()

    @property
    def talking(self) -> bool:
        """Whether the thread that talks is at work."""
        return self._thread.is_alive() and not self.stuck

    def _check(self) -> None:
        """See whether that thread has stopped turning. Only the turns of the supervisor's own loop count: when the
        machine wakes up, that may be the first to run."""
        now = self._clock.now()
        passed, self._checked = min(now - self._checked, BEAT_S), now
        if self._turned != self._turned_before or not self._thread.is_alive():
            self._turned_before, self._stood = self._turned, 0.0
        else:
            self._stood += passed
        self.stuck = self._stood > STILL_S

    def missing(self) -> List[str]:
        """Nodes that never joined, as far as this node knows."""
        raise NotImplementedError

    def quiet(self) -> float:
        """For how many seconds no node has had output (the hub only)."""
        return 0.0

    def patience(self) -> float:
        """How many seconds longer than usual a node should wait for a verdict: the hub may have to wait for a node
        that has fallen silent."""
        return SILENT_S if self.talking else -math.inf

    def candidates(self) -> List[Dict[str, Any]]:
        """The causes that the nodes have reported (the hub only)."""
        return []

    def _loop(self) -> None:
        raise NotImplementedError

    def _close_all(self) -> None:
        """Drop every connection: the loop begins again, or has ended."""
        raise NotImplementedError

    def _guarded(self) -> None:
        """The loop, begun again after a fault. A node that nobody can watch for long ends, and is named itself."""
        since, pause = 0.0, 0.1
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
            if now - begun > STEADY_S:
                since, pause = 0.0, 0.1
            since = since or now
            with contextlib.suppress(Exception):
                self._close_all()
            if now - since > FAULTS_S and self.verdict is None:
                text = "the thread on %s that watches the other nodes keeps failing: %s" % (self.host, fault)
                self._decided(outcomes.failed(outcomes.cause(self.host, SUPERVISOR_LOST, text)))
            if self._leaving is not None:
                return
            self._clock.sleep(pause)
            pause = min(2.0, pause * 2)

    def _ask(self) -> None:
        self.asked = True
        self._wake_supervisor()

    def _decided(self, verdict: Outcome) -> None:
        self.verdict = verdict
        self._wake_supervisor()

    def _reports(self) -> List[Tuple[Outcome, float]]:
        """Failures to report, each with its age in seconds."""
        with self._lock:
            found, self._inbox = self._inbox, []
        return [(one, max(0.0, self._clock.boot() - happened)) for one, happened in found]

    def _said_words(self) -> List[Dict[str, Any]]:
        with self._lock:
            found, self._words = self._words, []
        return [word for word in found if self._fits(word)]

    def _fits(self, word: Dict[str, Any]) -> bool:
        """Whether a line takes it: the other side closes the connection where one is too long."""
        size, what = len(json.dumps(word)), str(word.get("what"))
        if size > MAX_WORD and what not in self._too_long:
            self._too_long.add(what)
            note(
                "gang: a word of the doctor was not sent: %r has %d bytes, and a line takes %d" % (what, size, MAX_WORD)
            )
        return size <= MAX_WORD

    def _found(self, link: Dict[str, Any]) -> None:
        with self._lock:
            self._links.append(link)
        self._pipe.wake()

    def _found_links(self) -> List[Dict[str, Any]]:
        """What was found of the links to other nodes since the last call."""
        with self._lock:
            found, self._links = self._links, []
        return found

    def _nap(self, now: float) -> float:
        """How long this loop was stuck since it was last asked (monotonic seconds); 0.0 for an ordinary turn."""
        before, self._turned = self._turned, now
        nap = now - before if before is not None and now - before > NAP_S else 0.0
        self._supervised += nap
        return nap

    def _beat(self) -> Dict[str, Any]:
        """What this node says of itself: not that this thread lives, but when the supervisor's loop last turned."""
        return {"k": "beat", "out": self._output_age(), "loop": self._loop_age(), "ranks": self._living}

    def _loop_age(self) -> float:
        return max(0.0, self._clock.now() - self._supervised)

    def _output_age(self) -> Optional[float]:
        return None if self._output is None else max(0.0, self._clock.boot() - self._output)
