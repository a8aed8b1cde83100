"""Decides as the hub which failure came first, and when all nodes stop. Pure.

The hub feeds it events with their times (monotonic seconds). The first report is not always the first failure: a rank
fails too when its peer dies, and its launcher may be quicker. So:
- The hub waits a moment, prefers a failure that does not look like the death of a peer, and then takes the earliest.
- While only victims have reported, it waits longer for a node without a report, since the culprit may take its time.
- It also waits for a node with missing heartbeats, until that node is lost.
- If a rank ended too early with exit code 0, it waits less once no rank of the run lives.
- If a collective timed out on every node, the node that was the furthest behind is the cause, or the only rank without
  a time-out.
- A node that falls silent is a failure of its own.
- A kill by the user is the verdict at once.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from ddpctl_worker.gang.cuts import Cuts
from ddpctl_worker.gang.limits import (
    CULPRIT_S,
    EARLY_S,
    ENDED_S,
    LATE_S,
    MUTE_S,
    REJOIN_S,
    SILENT_S,
    SLACK_S,
    STILL_S,
    VICTIMS_S,
)
from ddpctl_worker.gang.timeouts import compare_timeouts
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.record.outcome import Blame, Outcome
from ddpctl_worker.wire.contract import KILLED, NODE_LOST, SUPERVISOR_LOST


class Candidate(NamedTuple):
    """A failure that was reported: when it happened, and when the report came."""

    outcome: Outcome
    happened: float
    heard: float


class NodeView:
    """The hub's knowledge of a node."""

    def __init__(self) -> None:
        self.joined = False
        self.heard = 0.0
        self.steady = 0.0  # since when its messages come without a pause
        self.gone: Optional[float] = None  # since when its connection is closed
        self.output = 0.0  # when it last had output
        self.living: Optional[int] = None  # ranks that live, as last reported
        self.finished = False  # it has said goodbye, or is lost
        self.has_verdict = False


class FailureJudge:
    """The state of a run as the hub sees it, and its verdict once the cause is clear."""

    def __init__(self, hosts: Sequence[str], hub: str) -> None:
        self._hub = hub
        self.nodes: Dict[str, NodeView] = {host: NodeView() for host in hosts}
        self._candidates: List[Candidate] = []
        self._done: List[Candidate] = []  # nodes that have succeeded, perhaps too early for the other nodes
        self.cuts = Cuts(hosts, hub)
        self._cut = False  # a cut link is among the candidates
        self._slept = 0.0  # the longest time in which the hub did not run
        self.verdict: Optional[Outcome] = None

    def heard(self, host: str, now: float, output_age: Optional[float] = None, living: Optional[int] = None) -> None:
        """Note a message of a node. ``living``: its ranks that live, if the message has their number."""
        node = self.nodes[host]
        node.living = node.living if living is None else living
        if output_age is not None:
            node.output = now - output_age
        elif not node.joined:
            node.output = now  # the silence of a node without output begins when it joins
        if not self._is_steady(host, now):
            node.steady = now
        node.joined, node.heard, node.gone = True, now, None

    def turned(self, host: str, age: float, now: float) -> None:
        """Give up a node if its supervisor's loop turned too long ago.

        The other threads of such a supervisor may still send heartbeats.
        """
        node = self.nodes[host]
        if age > STILL_S and not node.finished:
            text = "the supervisor on %s is stuck: its loop has not run for %d s" % (host, age)
            self._give_up(node, outcomes.cause(host, SUPERVISOR_LOST, text), now - age, now)

    def closed(self, host: str, now: float) -> None:
        """Note that a member's connection ended."""
        node = self.nodes[host]
        if not node.finished and node.gone is None:
            node.gone = now

    def goodbye(self, host: str, done: Optional[Outcome] = None, now: float = 0.0) -> None:
        """Note that a node has ended. ``done``: it succeeded, and this would be the cause if it ended too early."""
        node = self.nodes[host]
        if done is not None and not node.finished:
            self._done.append(Candidate(done, now, now))
        node.finished = True

    def report(self, outcome: Outcome, age: float, now: float) -> None:
        """Take in a failure that happened ``age`` seconds ago, or a kill."""
        if self.verdict is not None:
            return
        if outcome.state == KILLED:
            self.verdict = outcome
        else:
            self._candidates.append(Candidate(outcome, now - max(0.0, age), now))

    def missing(self) -> List[str]:
        """Return the nodes that never joined."""
        return [host for host, node in self.nodes.items() if not node.joined and host != self._hub]

    def quiet(self, now: float) -> float:
        """Return for how long no running node has had output."""
        outputs = [node.output for node in self.nodes.values() if node.joined and not node.finished]
        return min([now - output for output in outputs] or [0.0])

    def slept(self, seconds: float) -> None:
        """Move all times on, because the hub did not run for this long (a suspended or starved machine).

        No silence in that time counts, because the hub could not hear anything.
        """
        self._slept = max(self._slept, seconds)
        for node in self.nodes.values():
            node.heard += seconds
            node.output += seconds
            node.gone = None if node.gone is None else node.gone + seconds
        self._candidates = [known._replace(heard=known.heard + seconds) for known in self._candidates]

    def tick(self, now: float) -> Optional[Outcome]:
        """Look for lost nodes, and decide when it is time. Return the verdict, if any."""
        self._find_lost(now)
        self._find_cut(now)
        if self.verdict is None and self._candidates and now >= self._decide_at(now):
            self.verdict = self._choose()
        return self.verdict

    def settled(self) -> bool:
        """Return whether every node that ever joined has said goodbye or is lost."""
        return all(node.finished or not node.joined for host, node in self.nodes.items() if host != self._hub)

    @property
    def undecided(self) -> bool:
        """Return whether a failure was reported and the verdict is still open."""
        return self.verdict is None and bool(self._candidates)

    def causes(self) -> List[Dict[str, Any]]:
        """Return the reported causes, the likeliest first."""
        return [candidate.outcome.cause for candidate in self._by_blame() if candidate.outcome.cause is not None]

    def _choose(self) -> Outcome:
        chosen = self._by_blame()[0]
        failures = [known.outcome for known in self._by_blame() if known.outcome.cause is not None]
        late = compare_timeouts(failures, [host for host, node in self.nodes.items() if node.joined])
        return self._timed(chosen) if late is None else chosen.outcome._replace(cause=late, victim=False)

    def _by_blame(self) -> List[Candidate]:
        first = self._first_victim()
        suspects = self._candidates + [known for known in self._done if first is not None and known.happened < first]

        def blame(known: Candidate) -> Blame:
            outcome = known.outcome
            late = outcome.early and first is not None and known.happened > first + EARLY_S
            return Blame(outcome.victim or late, outcome.suspect, outcome.early, known.happened)

        return sorted(suspects, key=blame)

    def _first_victim(self) -> Optional[float]:
        return min((candidate.happened for candidate in self._candidates if candidate.outcome.victim), default=None)

    def _timed(self, chosen: Candidate) -> Outcome:
        """Return the outcome. For a node or rank that ended too early it says how long before the victims' failure."""
        outcome, why, first = chosen.outcome, chosen.outcome.cause, self._first_victim()
        if not outcome.early or why is None or first is None:
            return outcome
        why = outcomes.ended_early(why["host"], why["rank"], why["time"], first - chosen.happened)
        return outcome._replace(cause=why)

    def _decide_at(self, now: float) -> float:
        plain = [_due(known) for known in self._candidates if not known.outcome.victim and not known.outcome.suspect]
        if plain:
            return min(plain)
        first = min(known.heard for known in self._candidates)
        due = max([first + VICTIMS_S, *(self._worth_waiting(host, first, now) for host in self.nodes)])
        ended = self._find_last_end()
        return due if ended is None else min(due, ended + ENDED_S)

    def _find_last_end(self) -> Optional[float]:
        """Return when the last rank of the run ended, if a rank that ended early is the likeliest cause.

        ``None``: a rank lives, or a node has not reported its failure. It may still report the culprit.
        """
        best, first = self._by_blame()[0], self._first_victim()
        if not best.outcome.early or first is None or best.happened > first + EARLY_S:
            return None
        reported = {(known.outcome.cause or {}).get("host") for known in self._candidates}
        open_nodes = [host for host, node in self.nodes.items() if node.joined and not node.finished]
        if any(host not in reported or self.nodes[host].living != 0 for host in open_nodes):
            return None
        return max(known.happened for known in self._candidates + self._done)

    def _worth_waiting(self, host: str, first: float, now: float) -> float:
        """Return until when a report of ``host`` may come that says more than the victims' reports since ``first``."""
        node = self.nodes[host]
        if node.finished or not node.joined:
            return first
        if node.gone is not None:
            return node.gone + REJOIN_S + SLACK_S
        if now - node.heard > LATE_S and host != self._hub:
            return node.heard + SILENT_S + SLACK_S
        reported = any(
            (known.outcome.suspect and not known.outcome.early) or (known.outcome.cause or {}).get("host") == host
            for known in self._candidates
        )
        return first if reported else first + MUTE_S

    def _find_lost(self, now: float) -> None:
        for host, node in self.nodes.items():
            if host == self._hub or node.finished or not node.joined:
                continue
            if node.gone is not None and now - node.gone > REJOIN_S:
                self._give_up(node, self._why_gone(host), node.gone, now)
            elif now - node.heard > SILENT_S:
                text = "nothing was heard from %s for %d s: it is down or cut off" % (host, SILENT_S)
                self._give_up(node, outcomes.cause(host, NODE_LOST, text), node.heard, now)

    def _find_cut(self, now: float) -> None:
        found = self.cuts.decide(
            now, lambda host, since: self._is_steady(host, now) and self.nodes[host].steady <= since
        )
        if found is not None and not self._cut and self.verdict is None:
            self._cut = True
            self._candidates.append(Candidate(outcomes.failed(found[1]), found[0], now))

    def _is_steady(self, host: str, now: float) -> bool:
        node = self.nodes[host]
        return node.joined and not node.finished and node.gone is None and now - node.heard <= LATE_S

    def _why_gone(self, host: str) -> Dict[str, Any]:
        if self._slept >= SILENT_S:
            text = "%s did not run for %d s (suspended, or starved of CPU): the other nodes declared it lost"
            return outcomes.cause(self._hub, NODE_LOST, text % (self._hub, self._slept))
        text = "the supervisor on %s is gone; the host itself still answers" % host
        return outcomes.cause(host, SUPERVISOR_LOST, text)

    def _give_up(self, node: NodeView, why: Dict[str, Any], since: float, now: float) -> None:
        node.finished = True
        if self.verdict is None:
            self._candidates.append(Candidate(outcomes.failed(why), since, now))


def _due(plain: Candidate) -> float:
    """Return until when an earlier cause may still be reported.

    After the loss of a node hardly any time is left: failures before it were reported long ago.
    """
    lost = plain.outcome.cause is not None and plain.outcome.cause["reason"] == NODE_LOST
    return plain.heard + (SLACK_S if lost else CULPRIT_S)
