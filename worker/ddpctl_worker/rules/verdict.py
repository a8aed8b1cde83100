"""Finds the rank that holds up a run, from one look at every rank. Pure.

The hub's watcher and ``ddpctl doctor`` call it.

Ranks that wait in a collective are held up by the ranks that have not reached it. The numbers of the collectives show
which ranks these are (flight.py); without a record, the stacks show it. If such a rank waits elsewhere itself, the
search continues with the ranks that hold it up. A rank that works, or sleeps for a known time, is excused: it counts as
stuck only when the other ranks have waited much longer.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ddpctl_worker.rules import families, phrases, rank_view, sequences
from ddpctl_worker.rules.limits import (
    BLOCKED_S,
    BUSY_BYTES,
    BUSY_CPU,
    BUSY_FACTOR,
    MOVING_FACTOR,
    NAMED_RANKS,
    SPIN_S,
    STALL_S,
)
from ddpctl_worker.rules.phrases import numbers
from ddpctl_worker.rules.rank_view import DEFAULT_GROUPS, RankView

__all__ = ["Diagnosis", "diagnose", "numbers"]


class Diagnosis(NamedTuple):
    """``verdict`` is a sentence. ``stuck``: nothing moves, and nothing will change that. ``suspects``: ranks."""

    verdict: str
    stuck: bool
    suspects: List[Dict[str, Any]]  # host, rank
    groups: List[Dict[str, Any]]  # ranks, where: a row for each place
    evidence: List[str]
    missing: List[str]
    waited_s: float

    def to_json(self) -> Dict[str, Any]:
        return dict(self._asdict())


def diagnose(
    looks: Iterable[Dict[str, Any]],
    *,
    absent: Sequence[str] = (),
    expected: Optional[Mapping[int, str]] = None,
    stall: float = STALL_S,
    asked: bool = True,
) -> Diagnosis:
    """Return the verdict over the looks of all nodes, each with its ``host``. ``absent``: hosts without a look.

    ``expected``: every rank of the run, and its host. A rank that its host no longer sees has ended.
    ``asked``: a person asks, so a rank that is blocked for good is named before ``stall`` seconds are over.
    """
    ranks = [rank_view.read_looks(look) for look in looks]
    there = {rank.rank for rank in ranks}
    for rank, host in (expected or {}).items():
        if rank not in there and host not in absent:
            ranks.append(rank_view.read_looks({"rank": rank, "host": host, "state": "ended"}))
    ranks = sorted(rank_view.present_ranks(ranks), key=lambda rank: (rank.rank, rank.host))
    world = max(len(ranks), len(expected or ()))
    found = _Judge(ranks, world, list(absent), stall, asked).verdict()
    missing = ["%s did not answer" % host for host in absent]
    missing += phrases.same_words((rank.rank, str(what)) for rank in ranks for what in rank.look.get("missing") or ())
    return found._replace(missing=missing)


class _Judge:
    """A judgement. Excused ranks are handled separately: if only such ranks are odd, the run is slow, not stuck."""

    def __init__(self, ranks: List[RankView], world: int, absent: List[str], stall: float, asked: bool) -> None:
        self._ranks, self._world, self._absent, self._stall, self._asked = ranks, world, absent, stall, asked
        self._by_rank = {rank.rank: rank for rank in ranks}
        self._heads = {rank.rank: rank.head for rank in ranks}
        self._places = {rank.rank: rank.place for rank in ranks}
        places = Counter(place for place in self._places.values() if place).most_common(1)
        self._crowded = places[0][0] if places else None  # the place of most ranks
        self._elsewhere: Optional[Set[int]] = None  # ranks at another place
        self._not_there: Dict[Tuple[str, int, Tuple[int, ...]], Set[int]] = {}
        self._waiting = [rank for rank in ranks if rank.operation is not None]
        self._waited = max([rank.waited for rank in self._waiting] or [0.0])
        self._timed = any(rank.pending is not None for rank in self._waiting)

    @property
    def _late(self) -> bool:
        """Return whether the ranks have waited long enough.

        If no time is known, no rank may have moved during the look.
        """
        if self._timed:
            return self._waited >= (BLOCKED_S if self._asked else self._stall)
        return all(self._still(rank) for rank in self._waiting)

    def _still(self, rank: RankView) -> bool:
        """Return whether the rank stayed on one line during the look.

        The watcher has waited before it looks, so a single stack is enough there.
        """
        return bool(rank.look.get("still", not self._asked))

    def verdict(self) -> Diagnosis:
        if not self._ranks:
            return self._say(
                "no rank was seen: %s did not answer" % ", ".join(self._absent) if self._absent else NOBODY
            )
        judges = (self._moving, self._ended, self._differ, self._stopped, self._behind, self._nobody_behind)
        for judge in (*judges, self._families):
            found = judge()
            if found is not None:
                return found
        return self._outside()

    # --- the questions, in this order -------------------------------------------------------------------------------
    def _moving(self) -> Optional[Diagnosis]:
        """Collectives are entered or left: no rank is stuck, although all may be slow."""
        moving = [rank for rank in self._ranks if rank.look.get("moved")]
        if not moving or any(rank.state in ("stopped", "traced") for rank in self._ranks):
            return None
        return self._say(
            "nobody is stuck: %s entered or left a collective within the last second" % phrases.who(moving)
        )

    def _ended(self) -> Optional[Diagnosis]:
        """Some ranks have no process.

        While other ranks work this is no fault: at the end of a run they end one by one.
        """
        gone = [rank for rank in self._ranks if rank.state == "ended"]
        left = [rank for rank in self._ranks if rank.state != "ended"]
        if not gone:
            return None
        if not left:
            return self._say("every rank has ended" if not self._absent else self._with_absent("all others have ended"))
        text = "%s; %s ended" % (self._where_they_are(left), phrases.have(gone))
        works = not self._waiting and any(self._works(rank) or _sleeps(rank) for rank in left)
        just = min(float(rank.look.get("ended_s", BLOCKED_S)) for rank in gone) < BLOCKED_S
        if works or just or not self._late:
            return self._say("nobody is stuck yet: %s" % text, waiting_for=gone)
        return self._say(text, gone, stuck=True)

    def _differ(self) -> Optional[Diagnosis]:
        """Ranks have different operations or sizes at the same number of a group."""
        if self._waited < min(BLOCKED_S, self._stall):
            return None
        found = sequences.first_difference(self._ranks)
        if found is None:
            return None
        others = found.sides[1:]
        odd = [rank for side in (others if found.has_majority else found.sides) for rank in side.ranks]
        return self._say(sequences.difference_text(found), odd, stuck=True)

    def _stopped(self) -> Optional[Diagnosis]:
        odd = [rank for rank in self._ranks if rank.state in ("stopped", "traced")]
        if not odd:
            return None
        place = odd[0].place if len(odd) == 1 else ""
        text = "%s stopped%s, by SIGSTOP or a debugger" % (phrases.are(odd), " at %s" % place if place else "")
        return self._say(self._with_waiting(text, odd), odd, stuck=True)

    def _behind(self) -> Optional[Diagnosis]:
        """Some ranks hold up other ranks and do not wait themselves."""
        odd = [self._by_rank[rank] for rank in sorted(self._roots())]
        if not odd:
            return None
        held = [other for other in odd if self._excuse(other) is None]
        if not held:
            reasons = ["%s %s" % (phrases.are([other]), self._excuse(other)) for other in odd[:3]]
            more = "" if len(odd) <= 3 else " and %d more" % (len(odd) - 3)
            text = self._with_waiting("; ".join(reasons) + more, odd)
            return self._say("nobody is stuck yet: %s" % text, waiting_for=odd)
        return self._say(self._with_waiting(phrases.standing_text(held), odd), held, stuck=True)

    def _nobody_behind(self) -> Optional[Diagnosis]:
        """Every rank that was seen waits: for another rank, a GPU, a host that did not answer, or the network."""
        if not self._waiting or len(self._waiting) < len(self._ranks):
            return None
        cycle = self._cycle()
        if cycle:
            text = "%s wait for each other: %s" % (phrases.who(cycle), phrases.standing_text(cycle))
            return self._say(text, _minority(cycle) if self._late else [], stuck=self._late)
        where, late = self._where_they_are(self._waiting), self._waited >= self._stall
        if not late and not (self._asked and self._waited >= BLOCKED_S):
            return self._say("nobody is stuck: %s" % where)
        busy = [rank for rank in self._waiting if self._transfers(rank)]
        if busy and self._waited < self._stall * MOVING_FACTOR:
            return self._say("nobody is stuck yet: %s; %s at work" % (where, phrases.are(busy)))
        if self._absent:
            return self._say(self._with_absent(where), stuck=late)
        apart = self._apart()
        if apart is not None:
            return apart
        idle = self._gpus_behind()
        if idle:
            text = "%s; the GPU%s of %s %s not begun it" % (
                where,
                "" if len(idle) == 1 else "s",
                phrases.who(idle),
                "has" if len(idle) == 1 else "have",
            )
            return self._say(text, idle, stuck=True)
        if not late:
            return self._say("nobody is stuck: %s" % where)
        text = "%s, and none is missing: their data does not get through" % where
        return self._say(text + self._why_not_through(), stuck=True)

    def _why_not_through(self) -> str:
        """Return the rest of the sentence about ranks whose data does not get through."""
        for rank in self._ranks:
            for local, remote, times in rank.look.get("unanswered") or ():
                return (
                    "; %s has sent data from %s to %s %d times without an answer: a firewall or NAT between the nodes "
                    "has forgotten this connection, or drops its packets" % (phrases.who([rank]), local, remote, times)
                )
        hosts = {rank.host for rank in self._ranks}
        return "; check the network between the nodes" if len(hosts) > 1 else " on %s itself" % hosts.pop()

    def _families(self) -> Optional[Diagnosis]:
        """No rank waits in a collective, but child processes of ranks do."""
        found = [family for family in map(families.family_of, self._ranks) if family is not None]
        if not found or self._waiting:
            return None
        text = "; ".join(family.sentence() for family in found[:NAMED_RANKS])
        busy = [family for family in found if self._works(family.rank)]
        moving = [family for family in found if not family.stands]
        sleeping = [child for family in found for child in family.rest if _sleeps_on(child, self._stall)]
        if busy or moving or sleeping:
            return self._say(self._with_absent("nobody is stuck yet: %s" % text))
        odd = [family.rank for family in found if family.odd]
        made = self._say(self._with_absent(text), odd, stuck=True)
        return made._replace(evidence=made.evidence + [line for family in found[:4] for line in family.evidence()])

    def _outside(self) -> Diagnosis:
        """No rank waits for another, as far as the looks show."""
        unseen = families.unseen(self._ranks)
        if unseen:
            text = "%s; %d processes that ranks have started could not be looked at"
            return self._say(self._with_absent(text % (self._where_they_are(self._ranks), unseen)))
        if all(rank.state == "blocked" for rank in self._ranks):
            many, place = phrases.count(len(self._ranks), self._world), self._ranks[0].place
            verb = "waits" if len(self._ranks) == 1 else "wait"
            text = "%s %s in the kernel for a disk or a network file system%s" % (
                many,
                verb,
                phrases.in_brackets(place),
            )
            return self._say(self._with_absent(text))
        if self._waiting:
            return self._say(self._with_absent("nobody is stuck: %s" % self._where_they_are(self._ranks)))
        return self._say(self._with_absent("nobody waits in a collective: %s" % self._where_they_are(self._ranks)))

    # --- which rank waits for which --------------------------------------------------------------------------------
    def _roots(self) -> Set[int]:
        """Return the ranks that hold up other ranks, directly or through other ranks, and do not wait themselves."""
        found: Set[int] = set()
        known: Set[int] = set()
        todo = [rank.rank for rank in self._waiting]
        while todo:
            rank = todo.pop()
            if rank in known:
                continue
            known.add(rank)
            for other in self._blockers(self._by_rank[rank]):
                if self._by_rank[other].operation is None:
                    found.add(other)
                else:
                    todo.append(other)
        return found

    def _blockers(self, rank: RankView) -> Set[int]:
        """Return the ranks that have not reached the operation in which this rank waits."""
        if rank.pending is None:
            return self._blockers_by_stack(rank)
        key = rank.pending.group, rank.pending.seq, rank.pending.members
        if key not in self._not_there:
            self._not_there[key] = self._missing_from(*key)
        return self._not_there[key] - {rank.rank}

    def _missing_from(self, group: str, seq: int, listed: Tuple[int, ...]) -> Set[int]:
        """Return the members of a group that have not reached a collective. ``listed``: the members, if they are
        known.
        """
        among = set(listed)
        members = [
            other
            for other in self._ranks
            if (other.rank in among if listed else group in DEFAULT_GROUPS or group in self._heads[other.rank])
        ]
        found = {other.rank for other in members if other.known and self._heads[other.rank].get(group, -1) < seq}
        found |= {other.rank for other in members if other.outside}
        if not found and group not in DEFAULT_GROUPS and not listed:  # a member that never came is not in its heads
            found = {other.rank for other in self._ranks if other.operation is None}
        return found

    def _blockers_by_stack(self, rank: RankView) -> Set[int]:
        peer = self._peer(rank)
        if peer is not None:
            return set() if self._meets(rank, peer) else {peer.rank}
        if rank.known:  # a send or receive with an unknown other end, or a monitored barrier
            return {missing.rank for missing in self._ranks if missing.operation is None}
        if self._places[rank.rank] != self._crowded:
            return set()
        if self._elsewhere is None:
            self._elsewhere = {who for who, place in self._places.items() if place not in ("", self._crowded)}
        return self._elsewhere - {rank.rank}

    def _peer(self, rank: RankView) -> Optional[RankView]:
        peers = rank.look.get("peers") or {}
        found = self._by_rank.get(peers.get("src", peers.get("dst", -1)))
        return None if found is rank else found

    def _meets(self, rank: RankView, peer: RankView) -> bool:
        """Return whether the other end is in the matching call; then the data is on its way."""
        mine, other = rank.look.get("peers") or {}, peer.look.get("peers") or {}
        if peer.pending is not None or peer.operation is None:
            return False
        return bool(other.get("dst") == rank.rank if "src" in mine else other.get("src") == rank.rank)

    def _cycle(self) -> List[RankView]:
        """Return ranks that all wait for each other, directly or through other ranks; empty without such a cycle."""
        done: Set[int] = set()
        for start in self._waiting:
            path, ahead = [start.rank], [iter(sorted(self._blockers(start)))]
            while path:
                rank = next(ahead[-1], None)
                if rank is None:
                    ahead.pop()
                    done.add(path.pop())
                elif rank in path:
                    return self._all_around(rank)
                elif rank not in done:
                    path.append(rank)
                    ahead.append(iter(sorted(self._blockers(self._by_rank[rank]))))
        return []

    def _all_around(self, rank: int) -> List[RankView]:
        """Return all ranks on the cycles through this rank: it waits for each such rank, and each such rank for it."""
        ahead: Dict[int, Set[int]] = {}
        todo = [rank]
        while todo:
            waiting = todo.pop()
            if waiting not in ahead:
                ahead[waiting] = self._blockers(self._by_rank[waiting])
                todo += ahead[waiting]
        back = {rank}
        more = True
        while more:
            found = {waiting for waiting in ahead if waiting not in back and not back.isdisjoint(ahead[waiting])}
            back |= found
            more = bool(found)
        return [self._by_rank[waiting] for waiting in sorted(back)]

    def _apart(self) -> Optional[Diagnosis]:
        """Some ranks wait in a group with unknown members, the rest elsewhere: one of the rest belongs to the group."""
        groups = {rank.pending.group for rank in self._waiting if rank.pending is not None and not rank.pending.members}
        for group in sorted(groups - DEFAULT_GROUPS):
            here = [rank for rank in self._waiting if rank.pending is not None and rank.pending.group == group]
            rest = [rank for rank in self._waiting if rank not in here]
            if rest:
                text = "%s; %s" % (self._where_they_are(here), phrases.standing_text(rest))
                return self._say(text, rest if len(rest) == 1 else [], stuck=True)
        return None

    def _gpus_behind(self) -> List[RankView]:
        """Return the ranks whose GPU has not begun the collective in which all wait, while other GPUs have begun it."""
        pending = [rank.pending for rank in self._waiting if rank.pending is not None]
        if len(pending) < len(self._waiting) or len({(rank.group, rank.seq) for rank in pending}) > 1:
            return []
        behind = [rank for rank in self._waiting if rank.pending is not None and not rank.pending.started]
        return behind if len(behind) < len(pending) else []

    # --- excuses of a rank -------------------------------------------------------------------------------------------
    def _excuse(self, rank: RankView) -> Optional[str]:
        """Return why a rank that holds up other ranks may not be stuck; ``None`` if it is stuck."""
        waited = self._waited if self._timed else self._stall
        at = " at %s" % rank.place if rank.place else ""
        if not self._timed and not self._still(rank):
            return "at work%s" % at
        if rank.sleep is not None and _sleeps(rank) and waited + rank.sleep < self._stall * BUSY_FACTOR:
            return "asleep for another %d s%s" % (round(rank.sleep), at)
        if rank.spins and self._asked and waited >= SPIN_S:
            return None
        if self._works(rank):
            loops = rank.spins and rank.bytes < BUSY_BYTES
            if waited < self._stall * (BUSY_FACTOR if loops else MOVING_FACTOR):
                return "at work%s (%d %% of a core)" % (at, round(rank.cpu))
            return None
        if waited >= (BLOCKED_S if self._asked else self._stall):
            return None
        return at.strip() or "elsewhere"

    def _works(self, rank: RankView) -> bool:
        return rank.cpu >= BUSY_CPU or rank.bytes >= BUSY_BYTES or bool(rank.look.get("wants_cpu"))

    def _transfers(self, rank: RankView) -> bool:
        """Return whether the rank's collective moves data.

        With NCCL a rank may use a core to wait, so its use of the processor shows nothing; NCCL's groups have known
        members.
        """
        gloo = rank.pending is not None and not rank.pending.members
        return rank.bytes >= BUSY_BYTES or (gloo and self._works(rank))

    # --- words -----------------------------------------------------------------------------------------------------
    def _with_waiting(self, text: str, odd: Sequence[RankView]) -> str:
        rest = [rank for rank in self._waiting if rank not in odd]
        return "%s; %s" % (self._where_they_are(rest), text) if rest else text

    def _with_absent(self, text: str) -> str:
        return "%s; %s did not answer" % (text, ", ".join(self._absent)) if self._absent else text

    def _where_they_are(self, ranks: Sequence[RankView]) -> str:
        """Return the place of most ranks.

        For example ``15 of 16 ranks wait in all_reduce #1203 (train.py:88 in step) for 40 s``.
        """
        waiting = [rank for rank in ranks if rank.operation is not None]
        if not waiting:
            where, some = Counter(phrases.place_text(rank) for rank in ranks).most_common(1)[0]
            verb, where = "is" if some == 1 else "are", phrases.of(range(some), where)
            return "%s %s %s" % (phrases.count(some, self._world), verb, where)
        label, some = Counter(phrases.rank_label(rank) for rank in waiting).most_common(1)[0]
        first = next(rank for rank in waiting if phrases.rank_label(rank) == label)
        since = " for %d s" % round(first.waited) if first.waited >= 1 else ""
        verb = "waits" if some == 1 else "wait"
        return "%s %s in %s%s%s" % (
            phrases.count(some, self._world),
            verb,
            label,
            phrases.in_brackets(first.place),
            since,
        )

    def _say(
        self,
        text: str,
        suspects: Sequence[RankView] = (),
        *,
        stuck: bool = False,
        waiting_for: Sequence[RankView] = (),
    ) -> Diagnosis:
        shown = [*suspects, *(rank for rank in waiting_for if rank not in suspects)]
        return Diagnosis(
            verdict=text,
            stuck=stuck,
            suspects=[{"host": rank.host, "rank": rank.rank} for rank in suspects],
            groups=phrases.group_ranks(self._ranks),
            evidence=[line for rank in shown[:4] for line in phrases.evidence_text(rank)],
            missing=[],
            waited_s=round(self._waited, 1),
        )


def _sleeps(rank: RankView) -> bool:
    """Return whether the rank sleeps for a known time. A rank that polls does not: its event may never come."""
    return rank.sleep is not None and not rank.polls


def _sleeps_on(child: Mapping[str, Any], stall: float) -> bool:
    """Return whether a child process wakes from its sleep before BUSY_FACTOR times the stall is over."""
    sleep = child.get("sleep_s")
    return sleep is not None and not child.get("polls") and stall + float(sleep) < stall * BUSY_FACTOR


NOBODY = "no rank was seen"


def _minority(cycle: List[RankView]) -> List[RankView]:
    """Return the ranks at the place with the fewest ranks, if there is exactly one such place; otherwise all ranks."""
    count = Counter(phrases.rank_label(rank) for rank in cycle)
    few = [label for label in count if count[label] == min(count.values())]
    return [rank for rank in cycle if phrases.rank_label(rank) == few[0]] if len(few) == 1 < len(count) else cycle
