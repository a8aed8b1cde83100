"""Which links between two nodes are cut while both still reach the hub. Pure: the hub feeds it what the nodes found.

A link is cut when data of a rank on one end was not acknowledged for UNACKED_S, or a connection that it opens was not
answered, neither end answers a new connection of the other, and the hub has heard both all the while: a node that was
asleep or cut off itself is another matter.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ddpctl_worker.gang.limits import FRESH_S, SETTLE_S, UNACKED_S
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.wire.contract import LINK_LOST

Steady = Callable[[str, float], bool]
Pair = Tuple[str, str]


class LinkReport(NamedTuple):
    """What one end found of the link to the other."""

    seconds: float  # for how long data was not acknowledged
    silent: bool  # it did not answer
    heard: float
    end: Optional[Tuple[str, int]]  # which address of this end, and which port, the other end is to dial
    opening: bool = False  # it is a connection that was never answered


class Cuts:
    """The links of one run."""

    def __init__(self, hosts: Sequence[str], hub: str) -> None:
        self._hosts, self._hub = list(hosts), hub
        self._found: Dict[Pair, LinkReport] = {}
        self._asked: Dict[Pair, float] = {}
        self._first: Optional[float] = None  # when a cut was found

    def told(self, origin: str, message: Dict[str, Any], now: float) -> None:
        """``origin`` reports on its link to another node."""
        to = message.get("to")
        if to in self._hosts and to != origin:
            seconds, end = float(message.get("for") or 0.0), message.get("end")
            to_dial = (str(end[0]), int(end[1])) if end else None
            silent, opening = message.get("silent") is True, message.get("opening") is True
            self._found[origin, str(to)] = LinkReport(seconds, silent, now, to_dial, opening)

    def questions(self, now: float) -> List[Tuple[str, str, Tuple[str, int]]]:
        """(host, other, end): who is to dial whom, now."""
        found = []
        for (one, other), finding in self._waiting(now).items():
            answer = self._found.get((other, one))
            asked = self._asked.get((other, one))
            fresh = any(at is not None and now - at <= FRESH_S for at in (answer and answer.heard, asked))
            if finding.end and not fresh:
                self._asked[other, one] = now
                found.append((other, one, finding.end))
        return found

    def decide(self, now: float, steady: Steady) -> Optional[Tuple[float, Dict[str, Any]]]:
        """Since when there was no way (monotonic), and the cause; None while nothing is clear. ``steady(host, since)``:
        the hub has heard that node ever since, and hears it now."""
        cut: Dict[Pair, float] = {}
        open_ones = 0
        for (one, other), finding in self._waiting(now).items():
            answer = self._found.get((other, one))
            if answer is None or now - answer.heard > FRESH_S:
                open_ones += 1
            elif answer.silent and all(steady(host, now - finding.seconds) for host in (one, other)):
                cut[one, other] = finding.seconds + now - finding.heard
        if not cut:
            self._first = None
            return None
        self._first = now if self._first is None else self._first
        if open_ones and now - self._first < SETTLE_S:
            return None
        return now - max(cut.values()), self._why(cut)

    def _waiting(self, now: float) -> Dict[Pair, LinkReport]:
        """What is known of ends whose data waits and that get no answer."""
        return {
            pair: one
            for pair, one in self._found.items()
            if one.silent and one.seconds >= UNACKED_S and now - one.heard <= FRESH_S
        }

    def _why(self, cut: Dict[Pair, float]) -> Dict[str, Any]:
        links = {tuple(sorted(pair, key=self._hosts.index)) for pair in cut}
        # The node with most of the links that are cut; else the higher node rank.
        host = max(self._hosts, key=lambda one: (sum(one in link for link in links), self._hosts.index(one)))
        others = sorted({one for link in links if host in link for one in link} - {host}, key=self._hosts.index)
        (source, to), seconds = max(cut.items(), key=lambda item: (host in item[0], item[1]))
        several = len(others) > 1
        first, second = sorted((host, *others), key=self._hosts.index)[:2]
        if several:
            first, second = host, "each of " + ", ".join(others)
        way = "%s still reach %s" % ("all" if several else "both", self._hub)
        if self._hub in (host, *others):
            way = "they still reach each other on the port where the nodes watch each other"
        what = (
            "connections of ranks from %s to %s were not answered"
            if self._found[source, to].opening
            else ("data from %s to %s was not acknowledged")
        )
        text = (
            "%s and %s cannot reach each other: %s for %d s, and neither answered a new connection of the other; %s: "
            "check the switch, cable and firewall between them"
        ) % (first, second, what % (source, to), seconds, way)
        return outcomes.cause(host, LINK_LOST, text, peer=others[0])
