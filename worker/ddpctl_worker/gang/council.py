"""How the hub decides which failure came first and when all nodes stop. Pure: the hub feeds it events and their times
(monotonic seconds).

Which node failed first is not simply which one says so first: a rank whose peer died fails too, and its launcher may
be the quicker one. So the hub waits a moment, prefers a failure that does not look like a peer's death, and then the
earliest. While it knows only of victims it waits longer for a node that has reported no failure, and for one whose
beats have stopped until that is given up: the culprit may take its time to die. A node that falls silent is a failure
of its own; a kill by the user ends the matter at once.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ddpctl_worker.gang.cuts import Cuts
from ddpctl_worker.gang.limits import (
    CULPRIT_S,
    EARLY_S,
    LATE_S,
    MUTE_S,
    REJOIN_S,
    SILENT_S,
    SLACK_S,
    STILL_S,
    VICTIMS_S,
)
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.record.outcome import Outcome
from ddpctl_worker.wire.contract import KILLED, NODE_LOST, SUPERVISOR_LOST


class Candidate(NamedTuple):
    """A failure that was reported: when it happened and when it was heard of."""

    outcome: Outcome
    happened: float
    heard: float


class Seat:
    """What the hub knows of one node."""

    def __init__(self) -> None:
        self.joined = False
        self.heard = 0.0
        self.steady = 0.0  # since when it was heard without a pause
        self.gone: Optional[float] = None  # since when its connection is closed
        self.output = 0.0  # when it last had output
        self.finished = False  # it has said goodbye, or is given up
        self.told = False  # it knows the verdict


class Council:
    """The state of a run as the hub sees it, and its verdict once there is one."""

    def __init__(self, hosts: Sequence[str], hub: str) -> None:
        self._hub = hub
        self.seats: Dict[str, Seat] = {host: Seat() for host in hosts}
        self._candidates: List[Candidate] = []
        self._done: List[Candidate] = []  # nodes that have succeeded, maybe too early for the others
        self.cuts = Cuts(hosts, hub)
        self._cut = False  # a link that is cut is among the candidates
        self._slept = 0.0  # the longest that the hub did not run
        self.verdict: Optional[Outcome] = None

    def heard(self, host: str, now: float, output_age: Optional[float] = None) -> None:
        """A sign of life."""
        seat = self.seats[host]
        if output_age is not None:
            seat.output = now - output_age
        elif not seat.joined:
            seat.output = now  # the silence of a node that has said nothing yet begins here
        if not self._is_steady(host, now):
            seat.steady = now
        seat.joined, seat.heard, seat.gone = True, now, None

    def turned(self, host: str, age: float, now: float) -> None:
        """A node says how long ago its supervisor's loop turned: its other threads talk on while that one hangs."""
        seat = self.seats[host]
        if age > STILL_S and not seat.finished:
            text = "the supervisor on %s is stuck: its loop has not run for %d s" % (host, age)
            self._give_up(seat, outcomes.cause(host, SUPERVISOR_LOST, text), now - age, now)

    def closed(self, host: str, now: float) -> None:
        """A member's connection ended."""
        seat = self.seats[host]
        if not seat.finished and seat.gone is None:
            seat.gone = now

    def goodbye(self, host: str, done: Optional[Outcome] = None, now: float = 0.0) -> None:
        """A node has ended and leaves; ``done``: it has succeeded, and this is what to say should that be the cause."""
        seat = self.seats[host]
        if done is not None and not seat.finished:
            self._done.append(Candidate(done, now, now))
        seat.finished = True

    def report(self, outcome: Outcome, age: float, now: float) -> None:
        """A node reports a failure that happened ``age`` seconds ago, or of a kill."""
        if self.verdict is not None:
            return
        if outcome.state == KILLED:
            self.verdict = outcome
        else:
            self._candidates.append(Candidate(outcome, now - max(0.0, age), now))

    def missing(self) -> List[str]:
        """Nodes that never came."""
        return [host for host, seat in self.seats.items() if not seat.joined and host != self._hub]

    def quiet(self, now: float) -> float:
        """For how long no running node has had output."""
        outputs = [seat.output for seat in self.seats.values() if seat.joined and not seat.finished]
        return min([now - one for one in outputs] or [0.0])

    def slept(self, seconds: float) -> None:
        """The hub itself did not run for this long (a suspended or starved machine): nobody's silence in that time
        counts, for nobody was listening."""
        self._slept = max(self._slept, seconds)
        for seat in self.seats.values():
            seat.heard += seconds
            seat.output += seconds
            seat.gone = None if seat.gone is None else seat.gone + seconds
        self._candidates = [one._replace(heard=one.heard + seconds) for one in self._candidates]

    def tick(self, now: float) -> Optional[Outcome]:
        """Look for lost nodes, and decide when it is time; the verdict, once there is one."""
        self._find_lost(now)
        self._find_cut(now)
        if self.verdict is None and self._candidates and now >= self._decide_at(now):
            self.verdict = self._timed(self._by_blame()[0])
        return self.verdict

    def settled(self) -> bool:
        """Every node that ever came has said goodbye or is given up."""
        return all(seat.finished or not seat.joined for host, seat in self.seats.items() if host != self._hub)

    @property
    def undecided(self) -> bool:
        """Something has failed, and it is not clear yet what."""
        return self.verdict is None and bool(self._candidates)

    def causes(self) -> List[Dict[str, Any]]:
        """What the nodes have reported, the likeliest first."""
        return [one.outcome.cause for one in self._by_blame() if one.outcome.cause is not None]

    def _by_blame(self) -> List[Candidate]:
        first = self._first_victim()
        found = self._candidates + [one for one in self._done if first is not None and one.happened < first]

        def blame(one: Candidate) -> Tuple[bool, bool, bool, float]:
            late = one.outcome.early and first is not None and one.happened > first + EARLY_S
            return one.outcome.victim or late, one.outcome.suspect, one.outcome.early, one.happened

        return sorted(found, key=blame)

    def _first_victim(self) -> Optional[float]:
        return min((one.happened for one in self._candidates if one.outcome.victim), default=None)

    def _timed(self, chosen: Candidate) -> Outcome:
        """The outcome; of a node or rank that ended too early, with how long that was before the others failed."""
        found, why, first = chosen.outcome, chosen.outcome.cause, self._first_victim()
        if not found.early or why is None or first is None:
            return found
        why = outcomes.ended_early(why["host"], why["rank"], why["time"], first - chosen.happened)
        return found._replace(cause=why)

    def _decide_at(self, now: float) -> float:
        plain = [_due(one) for one in self._candidates if not one.outcome.victim and not one.outcome.suspect]
        if plain:
            return min(plain)
        first = min(one.heard for one in self._candidates)
        return max([first + VICTIMS_S, *(self._worth_waiting(host, first, now) for host in self.seats)])

    def _worth_waiting(self, host: str, first: float, now: float) -> float:
        """Until when a word of ``host`` may still come that says more than the victims' since ``first``."""
        seat = self.seats[host]
        if seat.finished or not seat.joined:
            return first
        if seat.gone is not None:
            return seat.gone + REJOIN_S + SLACK_S
        if now - seat.heard > LATE_S and host != self._hub:
            return seat.heard + SILENT_S + SLACK_S
        told = any(
            (one.outcome.suspect and not one.outcome.early) or (one.outcome.cause or {}).get("host") == host
            for one in self._candidates
        )
        return first if told else first + MUTE_S

    def _find_lost(self, now: float) -> None:
        for host, seat in self.seats.items():
            if host == self._hub or seat.finished or not seat.joined:
                continue
            if seat.gone is not None and now - seat.gone > REJOIN_S:
                self._give_up(seat, self._why_gone(host), seat.gone, now)
            elif now - seat.heard > SILENT_S:
                text = "nothing was heard from %s for %d s: it is down or cut off" % (host, SILENT_S)
                self._give_up(seat, outcomes.cause(host, NODE_LOST, text), seat.heard, now)

    def _find_cut(self, now: float) -> None:
        found = self.cuts.decide(
            now, lambda host, since: self._is_steady(host, now) and self.seats[host].steady <= since
        )
        if found is not None and not self._cut and self.verdict is None:
            self._cut = True
            self._candidates.append(Candidate(outcomes.failed(found[1]), found[0], now))

    def _is_steady(self, host: str, now: float) -> bool:
        seat = self.seats[host]
        return seat.joined and not seat.finished and seat.gone is None and now - seat.heard <= LATE_S

    def _why_gone(self, host: str) -> Dict[str, Any]:
        if self._slept >= SILENT_S:
            text = "%s did not run for %d s (suspended, or starved of CPU): the other nodes declared it lost"
            return outcomes.cause(self._hub, NODE_LOST, text % (self._hub, self._slept))
        text = "the supervisor on %s is gone; the host itself still answers" % host
        return outcomes.cause(host, SUPERVISOR_LOST, text)

    def _give_up(self, seat: Seat, why: Dict[str, Any], since: float, now: float) -> None:
        seat.finished = True
        if self.verdict is None:
            self._candidates.append(Candidate(outcomes.failed(why), since, now))


def _due(plain: Candidate) -> float:
    """Until when an earlier cause may still be reported. What failed before a node was lost was reported long ago."""
    lost = plain.outcome.cause is not None and plain.outcome.cause["reason"] == NODE_LOST
    return plain.heard + (SLACK_S if lost else CULPRIT_S)
