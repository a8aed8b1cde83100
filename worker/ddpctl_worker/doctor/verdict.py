"""Which rank is odd, from one look at every rank of a run. Pure: the hub's watcher and ``ddpctl doctor`` both use it.

A collective that some ranks wait in is held up by those that have not reached it. Which those are follows from the
numbers of the collectives (``flight.py``), and without such a record from the stacks alone. Where the ones that are
waited for wait themselves, elsewhere, the search follows them. A rank that works, or sleeps for a known time, is not
stuck yet: it is excused until the others have waited much longer.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

from ddpctl_worker.doctor import flight, frames

STALL_S = 30.0  # a wait this long is worth a word, unless the job says otherwise
SOON_S = 5.0  # a rank that is blocked for good may be named after so short a wait, where a person asks
SPIN_S = 10.0  # the same for a loop of pure Python that never leaves its function
BUSY_FACTOR = 3  # a rank that works at one place is excused for this many times the stall
MOVING_FACTOR = 20  # one whose place changes, or that reads and writes, for this many times
BUSY_CPU = 10.0  # percent of a core
BUSY_BYTES = 64 << 10  # in a second
DEFAULT_GROUP = "0"


class Rank(NamedTuple):
    """What a look says of one rank, read once."""

    host: str
    rank: int
    look: Dict[str, Any]
    entries: List[flight.Entry]
    pending: Optional[flight.Entry]  # the collective that it is in

    @property
    def known(self) -> bool:
        """Whether its collectives are known."""
        return self.look.get("groups") is not None

    @property
    def state(self) -> str:
        return str(self.look.get("state"))

    @property
    def stack(self) -> Optional[List[Any]]:
        return self.look.get("stack")

    @property
    def waited(self) -> float:
        """For how many seconds it has been in its collective."""
        now = self.look.get("now")
        return max(0.0, float(now) - self.pending.at) if now and self.pending else 0.0

    @property
    def operation(self) -> Optional[str]:
        """The operation that it waits in, by its record or, where that has none of it, by its stack."""
        if self.pending is not None:
            return self.pending.op
        found = frames.operation(self.stack)
        return None if self.known and found not in frames.UNRECORDED else found

    @property
    def outside(self) -> bool:
        """Whether it is in no collective, although it has no record: by its stack, or because it does not run."""
        idle = self.state in ("stopped", "blocked")
        return not self.known and self.operation is None and (idle or bool(self.stack))

    @property
    def head(self) -> Dict[str, int]:
        """group -> the highest number that it has entered."""
        found: Dict[str, int] = {}
        for one in self.entries:
            found[one.group] = max(found.get(one.group, 0), one.seq)
        return found


class Diagnosis(NamedTuple):
    """``verdict`` is one sentence. ``stuck``: nothing moves, and that will not end by itself. ``suspects``: ranks."""

    verdict: str
    stuck: bool
    suspects: List[Dict[str, Any]]  # host, rank
    groups: List[Dict[str, Any]]  # ranks, where: by where they stand
    evidence: List[str]
    missing: List[str]
    waited_s: float

    def to_json(self) -> Dict[str, Any]:
        return dict(self._asdict())


def diagnose(
    looks: Iterable[Dict[str, Any]], *, absent: Sequence[str] = (), stall: float = STALL_S, asked: bool = True
) -> Diagnosis:
    """The verdict over the looks of all nodes, each with its ``host``; ``absent``: hosts that gave none.

    ``asked``: a person asks, so that a rank which is blocked for good is named before ``stall`` seconds are over.
    """
    ranks = sorted((_read(one) for one in looks), key=lambda one: one.rank)
    found = _Judge(ranks, stall, asked).verdict()
    missing = ["%s did not answer" % host for host in absent]
    missing += _same_words((one.rank, str(what)) for one in ranks for what in one.look.get("missing") or ())
    return found._replace(missing=missing)


def where(look: Dict[str, Any]) -> str:
    """Where one rank stands: its collective or what it does, and the line."""
    return str(_grouped([_read(dict(look, host=look.get("host")))])[0]["where"])


def _read(look: Dict[str, Any]) -> Rank:
    groups = look.get("groups")
    entries = flight.from_json(groups) if groups else []
    return Rank(str(look.get("host")), int(look["rank"]), look, entries, _pending(entries))


def _pending(entries: List[flight.Entry]) -> Optional[flight.Entry]:
    """The oldest unfinished collective of the group of the newest one, if that is unfinished."""
    if not entries or entries[-1].done:
        return None
    group = entries[-1].group
    return next(one for one in entries if one.group == group and not one.done)


class _Judge:
    """One judgement. Ranks that are excused are kept apart: with them nothing is wrong, only slow."""

    def __init__(self, ranks: List[Rank], stall: float, asked: bool) -> None:
        self._ranks, self._stall, self._asked = ranks, stall, asked
        self._by_rank = {one.rank: one for one in ranks}
        self._waiting = [one for one in ranks if one.operation is not None]
        self._waited = max([one.waited for one in self._waiting] or [0.0])

    def verdict(self) -> Diagnosis:
        if not self._ranks:
            return self._say("no rank could be looked at")
        for judge in (self._ended, self._moving, self._differ, self._stopped, self._behind, self._nobody_behind):
            found = judge()
            if found is not None:
                return found
        return self._outside()

    # --- one question after the other ------------------------------------------------------------------------------
    def _ended(self) -> Optional[Diagnosis]:
        gone = [one for one in self._ranks if one.state == "ended"]
        if not gone:
            return None
        left = [one for one in self._ranks if one.state != "ended"]
        if not left:
            return self._say("every rank has ended")
        since = min(float(one.look.get("ended_s") or 0.0) for one in gone)
        enough = since >= (SOON_S if self._asked else self._stall)
        if not enough or any(one.look.get("moved") or self._works(one) or _sleep(one) is not None for one in left):
            return None
        text = "%s ended, and %s" % (_have(gone), self._where_they_are(left))
        return self._say(text, gone, stuck=True)

    def _moving(self) -> Optional[Diagnosis]:
        """Collectives are entered or left: nobody is stuck, though everybody may be slow."""
        moving = [one for one in self._ranks if one.look.get("moved")]
        if not moving or any(one.state == "stopped" for one in self._ranks):
            return None
        return self._say("nobody is stuck: %s entered or left a collective within the last second" % _who(moving))

    def _differ(self) -> Optional[Diagnosis]:
        """Different operations, or sizes, at one number of one group."""
        if self._waited < min(SOON_S, self._stall):
            return None
        found = _first_difference(self._ranks)
        if found is None:
            return None
        seq, sides = found
        sides.sort(key=lambda side: (-len(side[1]), side[1][0].rank))
        most = sides[0]
        clear = len(most[1]) > max(len(side[1]) for side in sides[1:])
        odd = [one for side in (sides[1:] if clear else sides) for one in side[1]]
        others = ["%s in %s" % (_are(side[1]), self._at(side[1], side[0], seq)) for side in sides[1:]]
        text = "ranks differ at collective #%d: %s, %s: a collective was skipped, repeated or called with another size"
        return self._say(
            text % (seq, ", ".join(others), "%s in %s" % (_are(most[1]), self._at(most[1], most[0], seq))),
            odd,
            stuck=True,
        )

    def _stopped(self) -> Optional[Diagnosis]:
        odd = [one for one in self._ranks if one.state in ("stopped", "traced")]
        if not odd:
            return None
        text = "%s (by SIGSTOP, or in a debugger)" % _are(odd, "stopped")
        return self._say(self._with_waiting(text, odd), odd, stuck=True)

    def _behind(self) -> Optional[Diagnosis]:
        """Ranks that others wait for and that do not wait themselves."""
        odd = [self._by_rank[rank] for rank in sorted(self._roots())]
        if not odd:
            return None
        held = [one for one in odd if self._excuse(one) is None]
        if not held:
            text = "nobody is stuck yet: %s"
            reasons = ["%s %s" % (_are([one]), self._excuse(one)) for one in odd[:3]]
            more = "" if len(odd) <= 3 else " and %d more" % (len(odd) - 3)
            return self._say(text % self._with_waiting("; ".join(reasons) + more, odd), waiting_for=odd)
        return self._say(self._with_waiting(_standing(held), odd), held, stuck=True)

    def _nobody_behind(self) -> Optional[Diagnosis]:
        """Everybody who counts waits: for each other, or for the network."""
        if not self._waiting or len(self._waiting) < len(self._ranks):
            return None
        cycle = self._cycle()
        late = self._waited >= (SOON_S if self._asked else self._stall)
        if cycle and not self._known_times():  # sends and receives: there is no record of how long
            late = all(one.look.get("still", not self._asked) for one in cycle)
        if cycle:
            text = "%s wait for each other: %s" % (_who(cycle), "; ".join(_doing(one) for one in cycle[:8]))
            return self._say(text, _minority(cycle) if late else [], stuck=late)
        where = self._where_they_are(self._waiting)
        if self._waited < self._stall:
            return self._say("nobody is stuck: %s" % where)
        text = "%s, and none is missing: their data does not get through; check the network between the nodes" % where
        return self._say(text, stuck=True)

    def _outside(self) -> Diagnosis:
        """Nobody waits for anybody, as far as can be seen."""
        blocked = [one for one in self._ranks if one.state == "blocked"]
        if len(blocked) == len(self._ranks):
            return self._say(
                "every rank waits in the kernel, for a disk or a network file system: %s" % _place(blocked[0])
            )
        if self._waiting:
            return self._say("nobody is stuck: %s" % self._where_they_are(self._ranks))
        return self._say("nobody waits in a collective: %s" % self._where_they_are(self._ranks))

    # --- who waits for whom ----------------------------------------------------------------------------------------
    def _roots(self) -> Set[int]:
        """Ranks that hold up others, directly or through others, and do not wait themselves."""
        found: Set[int] = set()
        seen: Set[int] = set()
        todo = [one.rank for one in self._waiting]
        while todo:
            rank = todo.pop()
            if rank in seen:
                continue
            seen.add(rank)
            for other in self._blockers(self._by_rank[rank]):
                if self._by_rank[other].operation is None:
                    found.add(other)
                else:
                    todo.append(other)
        return found

    def _blockers(self, one: Rank) -> Set[int]:
        """The ranks that have not come where this one waits."""
        if one.pending is None:
            peer = self._peer(one)
            if peer is not None:
                return {peer} if self._comes_not(self._by_rank[peer]) else set()
            if one.known:  # a send or receive whose other end is not known, a monitored barrier
                return {other.rank for other in self._ranks if other.operation is None}
            return self._elsewhere(one)
        group, seq = one.pending.group, one.pending.seq
        members = [other for other in self._ranks if group == DEFAULT_GROUP or group in other.head]
        found = {other.rank for other in members if other.known and other.head.get(group, 0) < seq}
        found |= {other.rank for other in members if other.outside}
        if not found and group != DEFAULT_GROUP:  # members that never came, so that they are not known as such
            found = {other.rank for other in self._ranks if other.operation is None}
        return found - {one.rank}

    def _elsewhere(self, one: Rank) -> Set[int]:
        """Without records: those who stand at another place than this one, where most others stand as well."""
        places = Counter(frames.place(other.stack) for other in self._ranks if other.stack)
        mine = frames.place(one.stack)
        if not places or places.most_common(1)[0][0] != mine:
            return set()
        return {other.rank for other in self._ranks if other.stack and frames.place(other.stack) != mine}

    def _peer(self, one: Rank) -> Optional[int]:
        peers = one.look.get("peers") or {}
        found = peers.get("src", peers.get("dst"))
        return found if found in self._by_rank and found != one.rank else None

    def _comes_not(self, peer: Rank) -> bool:
        return peer.state != "ended"

    def _cycle(self) -> List[Rank]:
        """Ranks that all wait for each other; empty when there are none."""
        reach = {one.rank: self._reach(one.rank) for one in self._waiting}
        for rank in sorted(reach):
            found = [other for other in sorted(reach) if other in reach[rank] and rank in reach[other]]
            if found:
                return [self._by_rank[other] for other in found]
        return []

    def _reach(self, rank: int) -> Set[int]:
        """Those that this one waits for, directly or through others."""
        found: Set[int] = set()
        todo = [rank]
        while todo:
            new = self._blockers(self._by_rank[todo.pop()]) - found
            found |= new
            todo.extend(new)
        return found

    def _known_times(self) -> bool:
        return any(one.pending is not None for one in self._waiting)

    # --- what excuses a rank -----------------------------------------------------------------------------------------
    def _excuse(self, one: Rank) -> Optional[str]:
        """Why a rank that others wait for need not be stuck; None when it is."""
        waited = self._waited if self._known_times() else self._stall
        if not self._known_times() and not one.look.get("still", not self._asked):
            return "at work at %s" % _place(one)
        sleep = _sleep(one)
        if sleep is not None and waited + sleep < self._stall * BUSY_FACTOR:
            return "asleep for another %d s at %s" % (round(sleep), _place(one))
        spins = one.look.get("spins") and frames.busy_in_own_code(one.stack)
        if spins and self._asked and waited >= SPIN_S:
            return None
        if self._works(one):
            moving = int(one.look.get("bytes") or 0) >= BUSY_BYTES or not one.look.get("stack")
            if waited < self._stall * (MOVING_FACTOR if moving else BUSY_FACTOR):
                cpu = float(one.look.get("cpu") or 0.0) + float(one.look.get("below") or 0.0)
                return "at work at %s (%d %% of a core)" % (_place(one), round(cpu))
            return None
        if waited >= (SOON_S if self._asked else self._stall):
            return None
        return "at %s" % _place(one)

    def _works(self, one: Rank) -> bool:
        cpu = float(one.look.get("cpu") or 0.0) + float(one.look.get("below") or 0.0)
        return cpu >= BUSY_CPU or int(one.look.get("bytes") or 0) >= BUSY_BYTES

    # --- words -----------------------------------------------------------------------------------------------------
    def _with_waiting(self, text: str, odd: Sequence[Rank]) -> str:
        rest = [one for one in self._waiting if one not in odd]
        return "%s; %s" % (self._where_they_are(rest), text) if rest else text

    def _where_they_are(self, ranks: Sequence[Rank]) -> str:
        """``15 of 16 ranks wait in all_reduce #1203 (train.py:88 in step)``."""
        waiting = [one for one in ranks if one.operation is not None]
        if not waiting:
            place, count = Counter(_place(one) for one in ranks).most_common(1)[0]
            most = "%d of %d ranks" % (count, len(self._ranks)) if count < len(self._ranks) else "all %d ranks" % count
            return "%s %s at %s" % (most, "is" if count == 1 else "are", place)
        labels = Counter(_label(one) for one in waiting)
        label, count = labels.most_common(1)[0]
        first = next(one for one in waiting if _label(one) == label)
        where = frames.place(first.stack)
        since = " for %d s" % round(first.waited) if first.waited >= 1 else ""
        many = "%d of %d ranks" % (count, len(self._ranks)) if count < len(self._ranks) else "all %d ranks" % count
        verb = "waits" if count == 1 else "wait"
        return "%s %s in %s%s%s" % (many, verb, label, " (%s)" % where if where else "", since)

    def _at(self, side: Sequence[Rank], signature: str, seq: int) -> str:
        where = frames.place(side[0].stack)
        return "%s #%d%s" % (signature, seq, " (%s)" % where if where else "")

    def _say(
        self,
        text: str,
        suspects: Sequence[Rank] = (),
        *,
        stuck: bool = False,
        waiting_for: Sequence[Rank] = (),
    ) -> Diagnosis:
        shown = [*suspects, *(one for one in waiting_for if one not in suspects)]
        return Diagnosis(
            verdict=text,
            stuck=stuck,
            suspects=[{"host": one.host, "rank": one.rank} for one in suspects],
            groups=_grouped(self._ranks),
            evidence=[line for one in shown[:4] for line in _evidence(one)],
            missing=[],
            waited_s=round(self._waited, 1),
        )


def _first_difference(ranks: Sequence[Rank]) -> Optional[Tuple[int, List[Tuple[str, List[Rank]]]]]:
    """The first number of a group at which ranks are in different operations, and who is in which."""
    for group in sorted({name for one in ranks for name in one.head}):
        by_seq: Dict[int, Dict[str, List[Rank]]] = {}
        for one in ranks:
            for entry in one.entries:
                if entry.group == group:
                    by_seq.setdefault(entry.seq, {}).setdefault(entry.signature, []).append(one)
        for seq in sorted(by_seq):
            if len(by_seq[seq]) > 1:
                return seq, list(by_seq[seq].items())
    return None


def _minority(cycle: List[Rank]) -> List[Rank]:
    """Those who are where the fewest are, if that is clear: they went elsewhere. All of them otherwise."""
    count = Counter(_label(one) for one in cycle)
    least = min(count.values())
    few = [label for label in count if count[label] == least]
    return [one for one in cycle if _label(one) == few[0]] if len(few) == 1 and len(count) > 1 else cycle


def _sleep(one: Rank) -> Optional[float]:
    """Until when it, or one that it waits for below it, sleeps for a known time."""
    if one.look.get("sleep_s") is not None:
        return float(one.look["sleep_s"])
    times = [float(child["sleep_s"]) for child in one.look.get("children") or () if child.get("sleep_s") is not None]
    return max(times) if times else None


def _place(one: Rank) -> str:
    return frames.place(one.stack) or "an unknown place"


def _label(one: Rank) -> str:
    """What it is in: ``all_reduce #1203``, of a group that is not the default one with its name."""
    if one.pending is None:
        peers = one.look.get("peers") or {}
        if "src" in peers:
            return "%s from rank %d" % (one.operation, peers["src"])
        return "%s to rank %d" % (one.operation, peers["dst"]) if "dst" in peers else str(one.operation)
    where = one.pending
    group = "" if where.group == DEFAULT_GROUP else " of group %s" % where.group
    return "%s #%d%s" % (where.op, where.seq, group)


def _standing(ranks: Sequence[Rank]) -> str:
    """``rank 13 on node6 is in blocked_read (data.py:41), waiting for its data loader``."""
    first = ranks[0]
    words = [_reason(first)] if _reason(first) else []
    child = next((one for one in first.look.get("children") or () if frames.place(one.get("stack"))), None)
    if child is not None and "loader" in _reason(first):
        words.append("whose worker is at %s" % frames.place(child["stack"]))
    same = all(_place(one) == _place(first) for one in ranks)
    text = (
        "%s at %s" % (_are(ranks), _place(first))
        if same
        else "; ".join("%s at %s" % (_are([one]), _place(one)) for one in ranks[:4])
    )
    return ", ".join([text, *words]) if same else text


def _reason(one: Rank) -> str:
    """What keeps it, by its stack or by the kernel."""
    if one.state == "blocked":
        return "waiting for a disk or a network file system"
    if one.look.get("spins") and frames.busy_in_own_code(one.stack):
        return "in a loop that takes a whole core"
    if one.look.get("sleep_s") is not None:
        return "asleep for another %d s" % round(float(one.look["sleep_s"]))
    found = frames.reason(one.stack)
    if found:
        return found
    waits = str(one.look.get("waits_in") or "")
    if "pipe" in waits or "fifo" in waits or waits == "wait_for_partner":
        return "reading from a pipe"
    return "waiting for a lock" if waits.startswith("futex") else ""


def _doing(one: Rank) -> str:
    return "rank %d is in %s at %s" % (one.rank, _label(one), _place(one))


def _grouped(ranks: Sequence[Rank]) -> List[Dict[str, Any]]:
    """By where they stand, the largest group first."""
    found: Dict[str, List[int]] = {}
    for one in ranks:
        where = frames.place(one.stack)
        if one.operation is not None:
            text = _label(one) + (" (%s)" % where if where else "")
        else:
            text = ", ".join(word for word in (where, _reason(one) or ("" if where else one.state)) if word)
        found.setdefault(text, []).append(one.rank)
    return [{"ranks": found[text], "where": text} for text in sorted(found, key=lambda text: (-len(found[text]), text))]


def _evidence(one: Rank) -> List[str]:
    """What was seen of a suspect."""
    look = one.look
    words = [one.state]
    if look.get("cpu") is not None:
        words.append("%d %% of a core" % round(float(look["cpu"])))
    if look.get("below"):
        words.append("its children %d %%" % round(float(look["below"])))
    if look.get("waits_in"):
        words.append("in the kernel at %s" % look["waits_in"])
    if look.get("swap_mb"):
        words.append("%d MB in swap" % round(float(look["swap_mb"])))
    lines = ["rank %d on %s, pid %s: %s" % (one.rank, one.host, look.get("pid"), ", ".join(words))]
    lines += ["    %s:%s in %s" % tuple(frame) for frame in (one.stack or [])[:8]]
    for child in (look.get("children") or [])[:2]:
        lines.append("  its child %s: %s" % (child.get("pid"), child.get("state")))
        lines += ["    %s:%s in %s" % tuple(frame) for frame in (child.get("stack") or [])[:4]]
    return lines


def _who(ranks: Sequence[Rank]) -> str:
    """``rank 3 on node1``, ``ranks 0-2, 5``."""
    if len(ranks) == 1:
        return "rank %d on %s" % (ranks[0].rank, ranks[0].host)
    return "ranks %s" % numbers([one.rank for one in ranks])


def _are(ranks: Sequence[Rank], word: str = "") -> str:
    text = "%s %s" % (_who(ranks), "is" if len(ranks) == 1 else "are")
    return "%s %s" % (text, word) if word else text


def _have(ranks: Sequence[Rank]) -> str:
    return "%s %s" % (_who(ranks), "has" if len(ranks) == 1 else "have")


def numbers(ranks: Sequence[int]) -> str:
    """``0-2, 5`` for [0, 1, 2, 5]."""
    found: List[List[int]] = []
    for rank in sorted(ranks):
        if found and found[-1][1] == rank - 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return ", ".join(str(first) if first == last else "%d-%d" % (first, last) for first, last in found)


def _same_words(pairs: Iterable[Tuple[int, str]]) -> List[str]:
    """Each sentence once, with the ranks that it is about."""
    found: Dict[str, List[int]] = {}
    for rank, text in pairs:
        found.setdefault(text, []).append(rank)
    return ["rank%s %s: %s" % ("" if len(who) == 1 else "s", numbers(who), text) for text, who in found.items()]
