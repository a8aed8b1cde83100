"""Which rank is odd, from one look at every rank of a run. Pure: the hub's watcher and ``ddpctl doctor`` both use it.

A collective that some ranks wait in is held up by those that have not reached it. Which those are follows from the
numbers of the collectives (``flight.py``), and without such a record from the stacks alone. Where the ones that are
waited for wait themselves, elsewhere, the search follows them. A rank that works, or sleeps for a known time, is not
stuck yet: it is excused until the others have waited much longer.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ddpctl_worker.rules import families, seen, sequences, words
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
from ddpctl_worker.rules.seen import DEFAULT_GROUPS, SeenRank
from ddpctl_worker.rules.sequences import Difference, Side
from ddpctl_worker.rules.words import numbers

__all__ = ["Diagnosis", "diagnose", "numbers"]


class Diagnosis(NamedTuple):
    """``verdict`` is one sentence. ``stuck``: nothing moves, and that will not end by itself. ``suspects``: ranks."""

    verdict: str
    stuck: bool
    suspects: List[Dict[str, Any]]  # host, rank
    groups: List[Dict[str, Any]]  # ranks, where: by where they are
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
    """The verdict over the looks of all nodes, each with its ``host``; ``absent``: hosts that gave none.

    ``expected``: every rank of the run, and its host; one that its host did not see any more has ended.
    ``asked``: a person asks, so that a rank which is blocked for good is named before ``stall`` seconds are over.
    """
    ranks = [seen.read(one) for one in looks]
    there = {one.rank for one in ranks}
    for rank, host in (expected or {}).items():
        if rank not in there and host not in absent:
            ranks.append(seen.read({"rank": rank, "host": host, "state": "ended"}))
    ranks = sorted(seen.present(ranks), key=lambda one: (one.rank, one.host))
    world = max(len(ranks), len(expected or ()))
    found = _Judge(ranks, world, list(absent), stall, asked).verdict()
    missing = ["%s did not answer" % host for host in absent]
    missing += words.same_words((one.rank, str(what)) for one in ranks for what in one.look.get("missing") or ())
    return found._replace(missing=missing)


class _Judge:
    """One judgement. Ranks that are excused are kept apart: with them nothing is wrong, only slow."""

    def __init__(self, ranks: List[SeenRank], world: int, absent: List[str], stall: float, asked: bool) -> None:
        self._ranks, self._world, self._absent, self._stall, self._asked = ranks, world, absent, stall, asked
        self._by_rank = {one.rank: one for one in ranks}
        self._heads = {one.rank: one.head for one in ranks}
        self._places = {one.rank: one.place for one in ranks}
        places = Counter(place for place in self._places.values() if place).most_common(1)
        self._crowded = places[0][0] if places else None  # where most are
        self._elsewhere: Optional[Set[int]] = None  # who is not there
        self._not_there: Dict[Tuple[str, int, Tuple[int, ...]], Set[int]] = {}
        self._waiting = [one for one in ranks if one.operation is not None]
        self._waited = max([one.waited for one in self._waiting] or [0.0])
        self._timed = any(one.pending is not None for one in self._waiting)

    @property
    def _late(self) -> bool:
        """Whether they wait for so long that it counts. Where no time is known, that they do not move is all there
        is."""
        if self._timed:
            return self._waited >= (BLOCKED_S if self._asked else self._stall)
        return all(self._still(one) for one in self._waiting)

    def _still(self, one: SeenRank) -> bool:
        """Whether it stood on one line for all of the look. For the watcher, which has waited, one stack is enough."""
        return bool(one.look.get("still", not self._asked))

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

    # --- one question after the other ------------------------------------------------------------------------------
    def _moving(self) -> Optional[Diagnosis]:
        """Collectives are entered or left: nobody is stuck, though everybody may be slow."""
        moving = [one for one in self._ranks if one.look.get("moved")]
        if not moving or any(one.state in ("stopped", "traced") for one in self._ranks):
            return None
        return self._say("nobody is stuck: %s entered or left a collective within the last second" % words.who(moving))

    def _ended(self) -> Optional[Diagnosis]:
        """Ranks without a process. That is no fault while the others work: at the end of a run they end one by one."""
        gone = [one for one in self._ranks if one.state == "ended"]
        left = [one for one in self._ranks if one.state != "ended"]
        if not gone:
            return None
        if not left:
            return self._say("every rank has ended" if not self._absent else self._with_absent("all others have ended"))
        text = "%s; %s ended" % (self._where_they_are(left), words.have(gone))
        works = not self._waiting and any(self._works(one) or _sleeps(one) for one in left)
        just = min(float(one.look.get("ended_s", BLOCKED_S)) for one in gone) < BLOCKED_S
        if works or just or not self._late:
            return self._say("nobody is stuck yet: %s" % text, waiting_for=gone)
        return self._say(text, gone, stuck=True)

    def _differ(self) -> Optional[Diagnosis]:
        """Different operations, or sizes, at one number of one group."""
        if self._waited < min(BLOCKED_S, self._stall):
            return None
        found = sequences.first_difference(self._ranks)
        if found is None:
            return None
        others = found.sides[1:]
        odd = [one for side in (others if found.clear else found.sides) for one in side.ranks]
        return self._say(_parted(found), odd, stuck=True)

    def _stopped(self) -> Optional[Diagnosis]:
        odd = [one for one in self._ranks if one.state in ("stopped", "traced")]
        if not odd:
            return None
        place = odd[0].place if len(odd) == 1 else ""
        text = "%s stopped%s, by SIGSTOP or a debugger" % (words.are(odd), " at %s" % place if place else "")
        return self._say(self._with_waiting(text, odd), odd, stuck=True)

    def _behind(self) -> Optional[Diagnosis]:
        """Ranks that others wait for and that do not wait themselves."""
        odd = [self._by_rank[rank] for rank in sorted(self._roots())]
        if not odd:
            return None
        held = [one for one in odd if self._excuse(one) is None]
        if not held:
            reasons = ["%s %s" % (words.are([one]), self._excuse(one)) for one in odd[:3]]
            more = "" if len(odd) <= 3 else " and %d more" % (len(odd) - 3)
            text = self._with_waiting("; ".join(reasons) + more, odd)
            return self._say("nobody is stuck yet: %s" % text, waiting_for=odd)
        return self._say(self._with_waiting(words.standing(held), odd), held, stuck=True)

    def _nobody_behind(self) -> Optional[Diagnosis]:
        """Everybody who was seen waits: for each other, for a GPU, for a host that did not answer, or the network."""
        if not self._waiting or len(self._waiting) < len(self._ranks):
            return None
        cycle = self._cycle()
        if cycle:
            text = "%s wait for each other: %s" % (words.who(cycle), words.standing(cycle))
            return self._say(text, _minority(cycle) if self._late else [], stuck=self._late)
        where, late = self._where_they_are(self._waiting), self._waited >= self._stall
        if not late and not (self._asked and self._waited >= BLOCKED_S):
            return self._say("nobody is stuck: %s" % where)
        busy = [one for one in self._waiting if self._transfers(one)]
        if busy and self._waited < self._stall * MOVING_FACTOR:
            return self._say("nobody is stuck yet: %s; %s at work" % (where, words.are(busy)))
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
                words.who(idle),
                "has" if len(idle) == 1 else "have",
            )
            return self._say(text, idle, stuck=True)
        if not late:
            return self._say("nobody is stuck: %s" % where)
        text = "%s, and none is missing: their data does not get through" % where
        hosts = {one.host for one in self._ranks}
        more = "; check the network between the nodes" if len(hosts) > 1 else " on %s itself" % hosts.pop()
        return self._say(text + more, stuck=True)

    def _families(self) -> Optional[Diagnosis]:
        """No rank waits in a collective, but processes that ranks have started do."""
        found = [family for family in map(families.family_of, self._ranks) if family is not None]
        if not found or self._waiting:
            return None
        text = "; ".join(family.sentence() for family in found[:NAMED_RANKS])
        busy = [family for family in found if self._works(family.rank)]
        moving = [family for family in found if not family.stands]
        sleeping = [one for family in found for one in family.rest if _sleeps_on(one, self._stall)]
        if busy or moving or sleeping:
            return self._say(self._with_absent("nobody is stuck yet: %s" % text))
        odd = [family.rank for family in found if family.odd]
        made = self._say(self._with_absent(text), odd, stuck=True)
        return made._replace(evidence=made.evidence + [line for family in found[:4] for line in family.evidence()])

    def _outside(self) -> Diagnosis:
        """Nobody waits for anybody, as far as can be seen."""
        unseen = families.unseen(self._ranks)
        if unseen:
            text = "%s; %d processes that ranks have started could not be looked at"
            return self._say(self._with_absent(text % (self._where_they_are(self._ranks), unseen)))
        if all(one.state == "blocked" for one in self._ranks):
            many, place = words.count(len(self._ranks), self._world), self._ranks[0].place
            verb = "waits" if len(self._ranks) == 1 else "wait"
            text = "%s %s in the kernel for a disk or a network file system%s" % (many, verb, words.in_brackets(place))
            return self._say(self._with_absent(text))
        if self._waiting:
            return self._say(self._with_absent("nobody is stuck: %s" % self._where_they_are(self._ranks)))
        return self._say(self._with_absent("nobody waits in a collective: %s" % self._where_they_are(self._ranks)))

    # --- who waits for whom ----------------------------------------------------------------------------------------
    def _roots(self) -> Set[int]:
        """Ranks that hold up others, directly or through others, and do not wait themselves."""
        found: Set[int] = set()
        known: Set[int] = set()
        todo = [one.rank for one in self._waiting]
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

    def _blockers(self, one: SeenRank) -> Set[int]:
        """The ranks that have not come where this one waits."""
        if one.pending is None:
            return self._blockers_by_stack(one)
        key = one.pending.group, one.pending.seq, one.pending.members
        if key not in self._not_there:
            self._not_there[key] = self._who_is_not_there(*key)
        return self._not_there[key] - {one.rank}

    def _who_is_not_there(self, group: str, seq: int, listed: Tuple[int, ...]) -> Set[int]:
        """The members of a group, ``listed`` where they are known, that have not come to a collective."""
        among = set(listed)
        members = [
            other
            for other in self._ranks
            if (other.rank in among if listed else group in DEFAULT_GROUPS or group in self._heads[other.rank])
        ]
        found = {other.rank for other in members if other.known and self._heads[other.rank].get(group, -1) < seq}
        found |= {other.rank for other in members if other.outside}
        if not found and group not in DEFAULT_GROUPS and not listed:  # members that never came are not known as such
            found = {other.rank for other in self._ranks if other.operation is None}
        return found

    def _blockers_by_stack(self, one: SeenRank) -> Set[int]:
        peer = self._peer(one)
        if peer is not None:
            return set() if self._meets(one, peer) else {peer.rank}
        if one.known:  # a send or receive whose other end is not known, a monitored barrier
            return {other.rank for other in self._ranks if other.operation is None}
        if self._places[one.rank] != self._crowded:
            return set()
        if self._elsewhere is None:
            self._elsewhere = {rank for rank, place in self._places.items() if place not in ("", self._crowded)}
        return self._elsewhere - {one.rank}

    def _peer(self, one: SeenRank) -> Optional[SeenRank]:
        """The other end of the send or receive that it is in."""
        peers = one.look.get("peers") or {}
        found = self._by_rank.get(peers.get("src", peers.get("dst", -1)))
        return None if found is one else found

    def _meets(self, one: SeenRank, peer: SeenRank) -> bool:
        """Whether the other end is in the matching call: then the data is on its way."""
        mine, other = one.look.get("peers") or {}, peer.look.get("peers") or {}
        if peer.pending is not None or peer.operation is None:
            return False
        return bool(other.get("dst") == one.rank if "src" in mine else other.get("src") == one.rank)

    def _cycle(self) -> List[SeenRank]:
        """Ranks that all wait for each other, directly or through others of them; empty when there are none."""
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

    def _all_around(self, rank: int) -> List[SeenRank]:
        """All ranks of the cycles through this one: it waits for each of them, and each of them for it."""
        ahead: Dict[int, Set[int]] = {}
        todo = [rank]
        while todo:
            one = todo.pop()
            if one not in ahead:
                ahead[one] = self._blockers(self._by_rank[one])
                todo += ahead[one]
        back = {rank}
        more = True
        while more:
            found = {one for one in ahead if one not in back and not back.isdisjoint(ahead[one])}
            back |= found
            more = bool(found)
        return [self._by_rank[one] for one in sorted(back)]

    def _apart(self) -> Optional[Diagnosis]:
        """Some wait in a group whose members are not known, the others elsewhere: one of those belongs there."""
        groups = {one.pending.group for one in self._waiting if one.pending is not None and not one.pending.members}
        for group in sorted(groups - DEFAULT_GROUPS):
            here = [one for one in self._waiting if one.pending is not None and one.pending.group == group]
            rest = [one for one in self._waiting if one not in here]
            if rest:
                text = "%s; %s" % (self._where_they_are(here), words.standing(rest))
                return self._say(text, rest if len(rest) == 1 else [], stuck=True)
        return None

    def _gpus_behind(self) -> List[SeenRank]:
        """Ranks whose GPU has not begun the collective in which all wait, while those of others have."""
        pending = [one.pending for one in self._waiting if one.pending is not None]
        if len(pending) < len(self._waiting) or len({(one.group, one.seq) for one in pending}) > 1:
            return []
        behind = [one for one in self._waiting if one.pending is not None and not one.pending.started]
        return behind if len(behind) < len(pending) else []

    # --- what excuses a rank -----------------------------------------------------------------------------------------
    def _excuse(self, one: SeenRank) -> Optional[str]:
        """Why a rank that others wait for need not be stuck; None when it is."""
        waited = self._waited if self._timed else self._stall
        at = " at %s" % one.place if one.place else ""
        if not self._timed and not self._still(one):
            return "at work%s" % at
        if one.sleep is not None and _sleeps(one) and waited + one.sleep < self._stall * BUSY_FACTOR:
            return "asleep for another %d s%s" % (round(one.sleep), at)
        if one.spins and self._asked and waited >= SPIN_S:
            return None
        if self._works(one):
            loops = one.spins and one.bytes < BUSY_BYTES
            if waited < self._stall * (BUSY_FACTOR if loops else MOVING_FACTOR):
                return "at work%s (%d %% of a core)" % (at, round(one.cpu))
            return None
        if waited >= (BLOCKED_S if self._asked else self._stall):
            return None
        return at.strip() or "elsewhere"

    def _works(self, one: SeenRank) -> bool:
        return one.cpu >= BUSY_CPU or one.bytes >= BUSY_BYTES or bool(one.look.get("wants_cpu"))

    def _transfers(self, one: SeenRank) -> bool:
        """Whether the collective that it waits in is at work. With NCCL a rank may use a core to wait; of its groups
        the members are known."""
        gloo = one.pending is not None and not one.pending.members
        return one.bytes >= BUSY_BYTES or (gloo and self._works(one))

    # --- words -----------------------------------------------------------------------------------------------------
    def _with_waiting(self, text: str, odd: Sequence[SeenRank]) -> str:
        rest = [one for one in self._waiting if one not in odd]
        return "%s; %s" % (self._where_they_are(rest), text) if rest else text

    def _with_absent(self, text: str) -> str:
        return "%s; %s did not answer" % (text, ", ".join(self._absent)) if self._absent else text

    def _where_they_are(self, ranks: Sequence[SeenRank]) -> str:
        """``15 of 16 ranks wait in all_reduce #1203 (train.py:88 in step) for 40 s``: most of them."""
        waiting = [one for one in ranks if one.operation is not None]
        if not waiting:
            where, some = Counter(words.where(one) for one in ranks).most_common(1)[0]
            verb, where = "is" if some == 1 else "are", words.of(range(some), where)
            return "%s %s %s" % (words.count(some, self._world), verb, where)
        label, some = Counter(words.label(one) for one in waiting).most_common(1)[0]
        first = next(one for one in waiting if words.label(one) == label)
        since = " for %d s" % round(first.waited) if first.waited >= 1 else ""
        verb = "waits" if some == 1 else "wait"
        return "%s %s in %s%s%s" % (words.count(some, self._world), verb, label, words.in_brackets(first.place), since)

    def _say(
        self,
        text: str,
        suspects: Sequence[SeenRank] = (),
        *,
        stuck: bool = False,
        waiting_for: Sequence[SeenRank] = (),
    ) -> Diagnosis:
        shown = [*suspects, *(one for one in waiting_for if one not in suspects)]
        return Diagnosis(
            verdict=text,
            stuck=stuck,
            suspects=[{"host": one.host, "rank": one.rank} for one in suspects],
            groups=words.grouped(self._ranks),
            evidence=[line for one in shown[:4] for line in words.evidence(one)],
            missing=[],
            waited_s=round(self._waited, 1),
        )


def _sleeps(one: SeenRank) -> bool:
    """Whether it sleeps for a known time. A rank that polls does not: what it waits for may never come."""
    return one.sleep is not None and not one.polls


def _sleeps_on(child: Mapping[str, Any], stall: float) -> bool:
    """The same of a process that a rank has started, of which no time is known."""
    sleep = child.get("sleep_s")
    return sleep is not None and not child.get("polls") and stall + float(sleep) < stall * BUSY_FACTOR


NOBODY = "no rank was seen"


def _minority(cycle: List[SeenRank]) -> List[SeenRank]:
    """Those who are where the fewest are, if that is clear: they went elsewhere. All of them otherwise."""
    count = Counter(words.label(one) for one in cycle)
    few = [label for label in count if count[label] == min(count.values())]
    return [one for one in cycle if words.label(one) == few[0]] if len(few) == 1 < len(count) else cycle


def _parted(found: Difference) -> str:
    """Who called what where the others called something else."""
    most, others = found.sides[0], found.sides[1:]
    if not found.clear:
        return "%s: they do not match" % " and ".join(_in(found, side) for side in found.sides)
    return "; ".join(_odd(found, side, most) for side in others)


def _odd(found: Difference, side: Side, most: Side) -> str:
    how, seq, theirs = found.how(side), found.seq, _op(most)
    if how == sequences.SKIPPED:
        place = _line(found, most)
        skipped = words.called(theirs, seq, found.group)
        text = "%s skipped %s, which %s called%s" % (
            words.have(side.ranks),
            skipped,
            words.who(most.ranks),
            " at %s" % place if place else "",
        )
        return "%s; %s" % (text, _now(side))
    if how in (sequences.REPEATED, sequences.EITHER):
        skipped = "skipped %s or " % words.called(theirs, seq, found.group) if how == sequences.EITHER else ""
        twice = words.called(_op(side), seq - 1, found.group)
        text = "%s %scalled %s twice" % (words.have(side.ranks), skipped, twice)
        return "%s; %s, %s" % (text, _now(side), _in(found, most))
    if how == sequences.SIZE:
        mine, other = side.signature.partition(" ")[2], most.signature.partition(" ")[2]
        verb = "calls" if len(side.ranks) == 1 else "call"
        place = words.in_brackets(_line(found, side))
        text = "%s %s %s%s" % (words.who(side.ranks), verb, words.called(theirs, seq, found.group), place)
        return "%s with %s, %s with %s" % (text, _elements(mine), words.who(most.ranks), other)
    return "%s, %s: they do not match" % (_in(found, side), _in(found, most))


def _now(side: Side) -> str:
    return "it is %s" % words.where(side.ranks[0]) if len(side.ranks) == 1 else words.standing(side.ranks)


def _op(side: Side) -> str:
    return side.signature.partition(" ")[0]


def _elements(text: str) -> str:
    return "1 element" if text == "1" else "%s elements" % text


def _in(found: Difference, side: Side) -> str:
    """``ranks 0-1 are in broadcast #7 (train.py:18)``."""
    label = words.called(_op(side), found.seq, found.group)
    return "%s in %s%s" % (words.are(side.ranks), label, words.in_brackets(_line(found, side)))


def _line(found: Difference, side: Side) -> str:
    """Where a rank of this side is that waits there still; the others have come further since."""
    for one in side.ranks:
        if one.pending is not None and (one.pending.group, one.pending.seq) == (found.group, found.seq):
            return one.place
    return ""
