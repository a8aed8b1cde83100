"""The thread of an agent that talks to the others: asks the leader, looks for one, stands for election."""

from __future__ import annotations

import contextlib
import errno
import threading
from typing import Any, Callable, Dict, List, Optional

from ddpctl_worker import notes
from ddpctl_worker.agent.quorum import Voter
from ddpctl_worker.agent.talk import ASK_S, PeerLine, Unanswered, at_once
from ddpctl_worker.system import CLOCK, HostClock

POLL_S = 1.0
MOST_POLL_S = 2.0  # a lease lasts for some polls
HOSTS_A_POLL = 64  # with more hosts than this the leader is asked less often
LOST_S = 3.0  # a leader that has not answered for so long is looked for elsewhere
WORD_S = 1.0  # for the leader to take the word of a kill
STILL_S = 30.0  # an agent whose own loop has not turned for so long does not lead
LEAST_PAUSE_S = 0.2
PATIENT_S, PATIENT_PAUSE_S = 600.0, 10.0  # one that has been alone for so long asks around less often
ROUND_S = ASK_S + 0.5  # for all to answer
Heard = Callable[[str, Dict[str, Any], float], None]  # whose answer, what it is, and when it was asked for


class Caller:
    """``report`` gives what the leader is told; ``renew`` is given the lease; ``keep`` puts on disk what must not be
    forgotten. All are called with the lock held."""

    def __init__(
        self,
        voter: Voter,
        line: PeerLine,
        lock: threading.RLock,
        keep: Callable[[Dict[str, Any]], None],
        report: Callable[[], Dict[str, Any]],
        renew: Callable[[float], None],
        clock: HostClock = CLOCK,
    ) -> None:
        self._voter, self._line, self.lock, self._keep, self._clock = voter, line, lock, keep, clock
        self._report, self._renew = report, renew
        self._every = min(MOST_POLL_S, max(POLL_S, len(voter.hosts) / HOSTS_A_POLL))
        self._stopped = threading.Event()
        self._hurry = threading.Event()
        self._enough = threading.Event()  # what is being waited for need not be waited for any longer
        self._following: Optional[Dict[str, Any]] = None  # the next request for votes, once it can be made
        self.changed = threading.Event()  # for the agent: there may be something to do
        self.turned = self._heard = self._clock.boot()  # the agent's own loop; the leader
        self._answered: Dict[str, float] = {}  # when each host last did, whether it leads or not
        self._near: Dict[str, float] = {}  # as the leader: when each host asked last
        self._told: Dict[str, Any] = {}  # ... and which paper it knows to be everybody's
        self.reports: Dict[str, Dict[str, Any]] = {}
        self._thread = clock.thread(self._run, "caller")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._hurry.set()

    def hurry(self) -> None:
        """There is something new to say, or to hear."""
        self._hurry.set()
        self._enough.set()

    def _run(self) -> None:
        faults = notes.Faults(float("inf"), self._clock)
        while not self._stopped.is_set():
            faults.survive(self._turn)
            self._clock.wait(self._hurry, self._pause())
            self._hurry.clear()

    def _pause(self) -> float:
        """Until the next turn; an election begins in time."""
        with self.lock:
            if self.alone_for() > PATIENT_S:
                return PATIENT_PAUSE_S
            left = self._every if self._voter.leads else self._voter.stand_at - self._clock.boot()
        return max(LEAST_PAUSE_S, min(self._every, left))

    def _turn(self) -> None:
        now = self._clock.boot()
        with self.lock:
            voter = self._voter
            leader = voter.leader
            if voter.leads:
                if now - self.turned < STILL_S:
                    voter.renew(now)
                self._renew(voter.lease)
                if voter.authority(now) < now:
                    leader = None
        if leader is None:
            self._look_around()
        elif leader != voter.host:
            while self._poll(leader) and not self._stopped.is_set():
                pass
        with self.lock:
            if not voter.leads and self._clock.boot() - self._heard > LOST_S:
                voter.lost_leader()
            self._following = self._following or voter.stand(self._clock.boot())
            self.save()
        while self._following is not None:
            self._campaign()

    def _poll(self, host: str) -> bool:
        """Ask the leader; True: something new came, so that it should hear at once that it did."""
        with self.lock:
            before = self._voter.known
            question = self._question()
            asked = self._clock.boot()
        try:
            answer = self._line.ask(host, question)
        except Unanswered:
            return False
        with self.lock:
            self._hear(host, answer, asked)
            self._renew(self._voter.lease)
            return self._voter.known != before

    def _hear(self, host: str, answer: Dict[str, Any], asked: float) -> None:
        before = self._voter.known
        self._answered[host] = self._clock.boot()
        self._voter.told(answer, asked, self._clock.boot())
        self.save()
        if answer.get("stamp") is not None and self._voter.leader == host:
            self._heard = self._clock.boot()
        if self._voter.known != before:
            self.changed.set()

    def _question(self) -> Dict[str, Any]:
        """A poll. It says which paper this host has, so that is on disk first; with the lock held."""
        self.save()
        return dict(self._voter.poll(), report=self._report())

    def _look_around(self) -> None:
        """Ask everybody who leads; until one does, or it is time to stand."""
        with self.lock:
            voter, question = self._voter, self._question()
            enough = self._enough = threading.Event()
            left = ROUND_S if voter.leads else max(0.0, voter.stand_at - self._clock.boot())

        def hear(host: str, answer: Dict[str, Any], asked: float) -> None:
            self._hear(host, answer, asked)
            if voter.leader == host:
                self.hurry()

        self._ask_all(question, hear, min(ROUND_S, left), enough)

    def _campaign(self) -> None:
        """Ask for votes, until there are enough of them; hosts that are off do not answer, and are not waited for."""
        with self.lock:
            voter, request, self._following = self._voter, self._following, None
            enough = threading.Event()
        assert request is not None

        def count(host: str, answer: Dict[str, Any], _: float) -> None:
            led = voter.leads
            following = voter.counted(host, request, answer, self._clock.boot())
            self.save()
            if following is not None:
                self._following = following
            if voter.leads and not led:
                notes.note("agent: this host leads the run now (term %d)" % voter.term)
                self.nudge()
                self.changed.set()
            if following is not None or voter.leads:
                enough.set()
                self._hurry.set()

        self._ask_all(request, count, ROUND_S, enough)

    def nudge(self) -> None:
        """Have the others ask at once. Does not wait for them."""
        self._ask_all({"k": "hurry"}, lambda host, answer, asked: None, 0.0, threading.Event())

    def _ask_all(self, question: Dict[str, Any], hear: Heard, seconds: float, enough: threading.Event) -> None:
        """``hear`` is given each answer when it comes, with the lock held; those that come after ``seconds``, or after
        ``enough``, too."""

        def ask(host: str) -> None:
            asked = self._clock.boot()
            try:
                answer = self._line.ask(host, question)
            except Unanswered:
                return
            with self.lock:
                hear(host, answer, asked)

        others = [host for host in self._voter.hosts if host != self._voter.host]
        at_once(ask, others, seconds, enough, self._clock)

    def save(self) -> None:
        """What must not be forgotten, before anybody hears of it. Raises OSError, and then nobody does."""
        if self._voter.unsaved:
            self._keep(self._voter.durable())
            self._voter.unsaved = False

    # --- for the agent, with the lock held where it says so

    def answer(self, host: str, question: Dict[str, Any]) -> Dict[str, Any]:
        """To a poll or a request for a vote."""
        with self.lock:
            now, voter = self._clock.boot(), self._voter
            if voter.leads and now - self.turned > STILL_S:
                raise OSError(errno.EBUSY, "this agent is stuck, and cannot lead")
            before = voter.committed
            answer = voter.answer(question, now)
            self.save()
            if question["k"] == "poll" and voter.leads:
                self._near[host] = now
                self.reports[host] = question["report"]
                if tuple(question["have"]) == voter.committed:
                    self._told[host] = voter.committed
            if voter.committed != before:
                self.changed.set()
            return answer

    def near(self, seconds: float) -> List[str]:
        """The hosts that have asked lately, this one included; with the lock held."""
        since = self._clock.boot() - max(seconds, 3 * self._every)
        return [one for one in self._voter.hosts if one == self._voter.host or self._near.get(one, 0.0) >= since]

    def answering(self, seconds: float) -> List[str]:
        """The hosts that have answered lately, this one included, even where none leads; with the lock held."""
        since, me = self._clock.boot() - seconds, self._voter.host
        return [one for one in self._voter.hosts if one == me or self._answered.get(one, 0.0) >= since]

    def all_know(self) -> bool:
        """Whether every host that is near knows that the newest paper is everybody's."""
        with self.lock:
            others = [one for one in self.near(5.0) if one != self._voter.host]
            return all(self._told.get(one) == self._voter.paper.mark for one in others)

    def alone_for(self) -> float:
        """For how many seconds nothing could be agreed on with the others; with the lock held."""
        now, voter = self._clock.boot(), self._voter
        if voter.leads and voter.agreed and len(self.near(10.0)) >= voter.majority:
            self._heard = now
        return now - self._heard

    def spread(self, over: Dict[str, Any]) -> None:
        """The run is over: write it as the leader, or tell the leader. Nobody waits until the others know: each of them
        is ended by itself, and one that was out of reach hears of it from here or from the command that ends them."""
        with self.lock:
            leader = self._voter.leader
            if self._voter.leads and self._voter.paper.value["over"] is None:
                self._voter.write(dict(self._voter.paper.value, live=False, over=over))
                self.save()
        if leader is not None and leader != self._voter.host:
            with contextlib.suppress(Unanswered):
                self._line.ask(leader, {"k": "over", "over": over}, WORD_S)
