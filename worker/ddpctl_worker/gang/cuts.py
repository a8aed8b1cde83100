"""Decides as the hub which links between two nodes are cut although both nodes reach the hub. Pure.

The hub feeds it the findings of the nodes. A link is cut when all of this holds:
- Data of a rank on one end was not acknowledged for UNACKED_S, or its new connection was not answered.
- Neither end answers a new connection of the other end.
- The hub has heard both ends all the time. A node that was asleep or cut off itself is another matter.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ddpctl_worker.gang.limits import FRESH_S, SETTLE_S, UNACKED_S
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.wire.contract import LINK_LOST

Steady = Callable[[str, float], bool]
Pair = Tuple[str, str]


class LinkReport(NamedTuple):
    """The finding of one end about its link to the other end."""

    seconds: float  # for how long data was not acknowledged
    silent: bool  # the other end did not answer
    heard: float
    end: Optional[Tuple[str, int]]  # address and port of this end that the other end should dial
    opening: bool = False  # the connection was never answered


class Cuts:
    """The links of a run."""

    def __init__(self, hosts: Sequence[str], hub: str) -> None:
        self._hosts, self._hub = list(hosts), hub
        self._found: Dict[Pair, LinkReport] = {}
        self._asked: Dict[Pair, float] = {}
        self._first: Optional[float] = None  # when a cut was found

    def report(self, origin: str, message: Dict[str, Any], now: float) -> None:
        """Take in the finding of ``origin`` about its link to another node."""
        to = message.get("to")
        if to in self._hosts and to != origin:
            seconds, end = float(message.get("for") or 0.0), message.get("end")
            to_dial = (str(end[0]), int(end[1])) if end else None
            silent, opening = message.get("silent") is True, message.get("opening") is True
            self._found[origin, str(to)] = LinkReport(seconds, silent, now, to_dial, opening)

    def questions(self, now: float) -> List[Tuple[str, str, Tuple[str, int]]]:
        """Return (host, other, end): ``host`` should dial the address and port ``end`` of ``other`` now."""
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
        """Return since when a link is cut (monotonic) and the cause; ``None`` while that is not certain.

        ``steady(host, since)``: the hub has heard this node ever since, and hears it now.
        """
        cut: Dict[Pair, float] = {}
        open_findings = 0
        for (one, other), finding in self._waiting(now).items():
            answer = self._found.get((other, one))
            if answer is None or now - answer.heard > FRESH_S:
                open_findings += 1
            elif answer.silent and all(steady(host, now - finding.seconds) for host in (one, other)):
                cut[one, other] = finding.seconds + now - finding.heard
        if not cut:
            self._first = None
            return None
        self._first = now if self._first is None else self._first
        if open_findings and now - self._first < SETTLE_S:
            return None
        return now - max(cut.values()), self._why(cut)

    def _waiting(self, now: float) -> Dict[Pair, LinkReport]:
        """Return the fresh findings of ends with data that waits and without an answer of the other end."""
        return {
            pair: finding
            for pair, finding in self._found.items()
            if finding.silent and finding.seconds >= UNACKED_S and now - finding.heard <= FRESH_S
        }

    def _why(self, cut: Dict[Pair, float]) -> Dict[str, Any]:
        links = {tuple(sorted(pair, key=self._hosts.index)) for pair in cut}
        # The node with most cut links; of two such nodes the higher node rank.
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
