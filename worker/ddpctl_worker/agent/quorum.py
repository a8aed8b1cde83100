"""How the agents of a run agree: one leads, and what it writes counts once a majority of the hosts has it. Pure.

This is Raft (Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm", 2014; pre-votes as in section
9.6 of Ongaro's thesis), made smaller: the log is one document that is replaced as a whole, followers ask the leader
instead of being called by it, and no host joins or leaves. Times are seconds of the caller's own clock.

Leases (section 6.4.1 of the thesis): a host that has heard the leader votes for nobody else for ELECTION_S. So a leader
that was heard by enough hosts to prevent a majority without it knows for how long there can be no other one: that is
its authority. It passes this time on, and a host may run processes until GRACE_S after it. Hence, once a new leader has
been elected and GRACE_S and the time to kill have passed, nothing runs on any host that it has not heard of.
"""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, NamedTuple, Optional, Sequence, Set, Tuple

ELECTION_S = 8.0
AUTHORITY_S = 7.5  # less than ELECTION_S: two clocks need not run equally fast
GRACE_S = 6.0  # long enough to elect another leader: its loss alone stops no job
KILL_S = 3.0  # from the end of a lease until the processes are gone
TURN_S = 0.6  # a host stands for so much later than the one before it in the list
LAST_TURN_S = 6.0
AGAIN_S = 2.0  # a candidate that was not elected tries again
_NEVER = float("-inf")
_LONG_AGO = -1e9  # that JSON can carry

Mark = Tuple[int, int]  # term and version of a paper: the greater one is the newer one


class Paper(NamedTuple):
    """The document that all agree on, as one leader has written it."""

    term: int
    version: int
    value: Dict[str, Any]

    @property
    def mark(self) -> Mark:
        return self.term, self.version


class Voter:
    """One host's part. ``saved`` is what ``durable`` gave; it has to be on disk before an answer leaves the host."""

    def __init__(self, host: str, hosts: Sequence[str], saved: Dict[str, Any], now: float) -> None:
        self.host, self.hosts = host, list(hosts)
        self.term = int(saved["term"])
        self._voted: Optional[str] = saved["voted"]
        self.paper = Paper(int(saved["paper"][0]), int(saved["paper"][1]), saved["paper"][2])
        self.committed: Mark = (0, 0)  # the newest paper that is known to be everybody's
        self.leader: Optional[str] = None
        self.lease = _NEVER  # until when this host's processes may run
        self.unsaved = False
        self._promised = _NEVER  # as the leader: until when it has let others rely on there being no other one
        self._heard = now  # the leader; or the beginning: what was promised before that is not known any more
        self.stand_at = now + ELECTION_S + self._turn()  # when it asks for votes
        self._stamp: Optional[Tuple[int, float]] = None  # the leader's term, and its clock when it last answered
        self._votes: Set[str] = set()
        self._asking: Optional[str] = None  # "pre" or "vote": what is being asked for
        self._lead_since: Optional[float] = None
        self._stamps: Dict[str, float] = {}  # of mine, the newest that each host has heard
        self._have: Dict[str, Mark] = {}
        self._granted: Dict[str, float] = {}
        self.withheld: FrozenSet[str] = frozenset()  # as the leader: the hosts whose lease is to run out

    @staticmethod
    def first(leader: str, value: Dict[str, Any]) -> Dict[str, Any]:
        """What every host has saved before anything happens: all have voted for ``leader`` in term 1."""
        return {"term": 1, "voted": leader, "paper": [1, 1, value]}

    def durable(self) -> Dict[str, Any]:
        return {"term": self.term, "voted": self._voted, "paper": list(self.paper)}

    @property
    def majority(self) -> int:
        return len(self.hosts) // 2 + 1

    @property
    def leads(self) -> bool:
        return self._lead_since is not None

    @property
    def known(self) -> Tuple[Any, ...]:
        """What the leader is to hear at once when it changes."""
        return self.paper.mark, self.committed, self._stamp is not None and self._stamp[0] == self.term

    def begin(self, now: float) -> None:
        """For the host that ``first`` names, and only while nothing has happened: it leads."""
        if self._voted == self.host and self.term == 1 and self.paper.mark == (1, 1):
            self._lead(now)
        elif self.term == 1:
            self.leader = self._voted

    # --- as a follower

    def poll(self) -> Dict[str, Any]:
        """What to ask the leader, or one who may know it."""
        return {"k": "poll", "host": self.host, "term": self.term, "stamp": self._stamp, "have": self.paper.mark}

    def told(self, answer: Dict[str, Any], asked: float, now: float) -> None:
        """The answer to a poll that was sent at ``asked``."""
        self._learn(int(answer["term"]))
        if int(answer["term"]) < self.term or self.leads:
            return
        if answer.get("stamp") is None:
            return  # not the leader's
        self.leader = answer["leader"]
        self._heard, self._stamp = now, (self.term, float(answer["stamp"]))
        self._asking = None
        self.stand_at = now + ELECTION_S + self._turn()
        paper = answer.get("paper")
        if paper is not None:
            self._adopt(Paper(int(paper[0]), int(paper[1]), paper[2]))
        committed = (int(answer["committed"][0]), int(answer["committed"][1]))
        if committed == self.paper.mark:
            self.committed = committed
        if self.paper.mark == tuple(answer["mark"]):
            self.lease = max(self.lease, asked + float(answer["remaining"]) + GRACE_S)

    def lost_leader(self) -> None:
        """The leader does not answer: ask around."""
        self.leader = None

    # --- as one who answers

    def answer(self, request: Dict[str, Any], now: float) -> Dict[str, Any]:
        """The answer to another host's poll or request for a vote. It must not leave before ``durable`` is saved."""
        if request["k"] == "poll":
            return self._answer_poll(request, now)
        return self._answer_vote(request, now)

    def _answer_poll(self, request: Dict[str, Any], now: float) -> Dict[str, Any]:
        self._learn(int(request["term"]))
        if not self.leads:
            return {"term": self.term}  # not whom it takes for the leader: rumours outlive a leader
        host, have = str(request["host"]), (int(request["have"][0]), int(request["have"][1]))
        stamp = request.get("stamp")
        if stamp is not None and int(stamp[0]) == self.term:
            self._stamps[host] = max(self._stamps.get(host, _NEVER), float(stamp[1]))
        self._have[host] = have
        self._count()
        until = self.authority(now)
        self._promised = max(self._promised, until)
        if host in self.withheld:
            until = _LONG_AGO
        else:
            self._granted[host] = max(self._granted.get(host, _NEVER), until)
        return {
            "term": self.term,
            "leader": self.host,
            "stamp": now,
            "remaining": max(_LONG_AGO, until - now),  # below 0: it has none any more
            "mark": self.paper.mark,
            "paper": None if have == self.paper.mark else list(self.paper),
            "committed": self.committed,
        }

    def _answer_vote(self, request: Dict[str, Any], now: float) -> Dict[str, Any]:
        term, host = int(request["term"]), str(request["host"])
        newest = (int(request["have"][0]), int(request["have"][1])) >= self.paper.mark
        bound = now < (self.authority(now) if self.leads else max(self._heard + ELECTION_S, self._promised))
        if bound or term < self.term or not newest:
            return {"term": 0 if bound else self.term, "granted": False}
        if request["k"] == "pre":
            return {"term": self.term, "granted": term > self.term}
        self._learn(term)
        granted = self._voted in (None, host) and not self.leads
        if granted:
            self.unsaved = self.unsaved or self._voted != host
            self._voted = host
            self.stand_at = now + ELECTION_S + self._turn()
        return {"term": self.term, "granted": granted}

    # --- as a candidate

    def stand(self, now: float) -> Optional[Dict[str, Any]]:
        """The request to send to every other host, where it is time to ask for votes; ``counted`` hears the answers.

        First whether there would be enough of them, so that a host that is cut off does not disturb the others.
        """
        if self.leads or now < self.stand_at:
            return None
        self.stand_at = now + AGAIN_S + self._turn()
        return self._ask("pre", now)

    def counted(
        self, host: str, request: Dict[str, Any], answer: Dict[str, Any], now: float
    ) -> Optional[Dict[str, Any]]:
        """An answer to ``request``; returns the next request to send to all, where there is one."""
        self._learn(int(answer["term"]))
        asked = request["k"], int(request["term"])
        if not answer.get("granted") or asked != (self._asking, self.term + (1 if self._asking == "pre" else 0)):
            return None
        self._votes.add(host)
        return self._won(now)

    def _ask(self, kind: str, now: float) -> Optional[Dict[str, Any]]:
        self._asking, self._votes = kind, {self.host}
        if kind == "vote":
            self.term += 1
            self._voted, self.leader, self.unsaved = self.host, None, True
        term = self.term + (1 if kind == "pre" else 0)
        request = {"k": kind, "host": self.host, "term": term, "have": self.paper.mark}
        return self._won(now) or request

    def _won(self, now: float) -> Optional[Dict[str, Any]]:
        """What a majority of answers leads to: the vote itself after a pre-vote, then the lead."""
        if len(self._votes) < self.majority:
            return None
        if self._asking == "pre":
            return self._ask("vote", now)
        self._lead(now)
        return None

    def _lead(self, now: float) -> None:
        self._asking, self._lead_since, self.leader = None, now, self.host
        self._stamps, self._have, self._granted, self.withheld = {}, {}, {}, frozenset()
        if self.paper.term != self.term:
            self.write(self.paper.value)
        self._count()

    # --- as the leader

    def write(self, value: Dict[str, Any]) -> None:
        """A new paper; it counts once it is ``committed``."""
        assert self.leads
        self._adopt(Paper(self.term, self.paper.version + 1, value))
        self._count()

    def authority(self, now: float) -> float:
        """Until when there can be no other leader."""
        needed = len(self.hosts) - self.majority + 1  # where they hear this leader, nobody else has a majority
        others = [self._stamps.get(host, _NEVER) for host in self.hosts if host != self.host]
        return sorted([now, *others], reverse=True)[needed - 1] + AUTHORITY_S

    def renew(self, now: float) -> None:
        """The leader's own lease."""
        if self.leads and self.host not in self.withheld:
            self._promised = max(self._promised, self.authority(now))
            self._granted[self.host] = self._promised
            self.lease = max(self.lease, self._promised + GRACE_S)

    def quiet_at(self, host: str) -> float:
        """When nothing runs on ``host`` any more, should it not be heard of again, or its lease be ``withheld``."""
        assert self._lead_since is not None
        return max(self._lead_since, self._granted.get(host, _NEVER)) + GRACE_S + KILL_S

    @property
    def agreed(self) -> bool:
        """Whether the newest paper that this host has is everybody's."""
        return self.committed == self.paper.mark

    def _count(self) -> None:
        if not self.leads or self.paper.term != self.term:
            return
        have = 1 + sum(mark == self.paper.mark for host, mark in self._have.items() if host != self.host)
        if have >= self.majority:
            self.committed = self.paper.mark

    # --- always

    def _adopt(self, paper: Paper) -> None:
        if paper.mark > self.paper.mark:
            self.paper, self.unsaved = paper, True

    def _learn(self, term: int) -> None:
        """Somebody is in a later term, so the leader of this one leads no more."""
        if term > self.term:
            if self.leads:  # should it be elected again, what it has granted in this term must have run out
                self.stand_at = max(self.stand_at, self._promised + self._turn())
            self.term, self._voted, self.leader, self.unsaved = term, None, None, True
            self._asking, self._lead_since = None, None

    def _turn(self) -> float:
        """The first of the living is to lead: the others give it time to stand."""
        return min(LAST_TURN_S, TURN_S * self.hosts.index(self.host))
