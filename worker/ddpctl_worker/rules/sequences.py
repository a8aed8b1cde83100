"""Finds where the ranks' sequences of collectives differ: a rank skipped, repeated or replaced a collective. Pure."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Sequence

from ddpctl_worker.rules import phrases
from ddpctl_worker.rules.rank_view import RankView

SKIPPED, REPEATED, EITHER, SIZE, OTHER = "skipped", "repeated", "either", "size", "other"
Signatures = Dict[int, str]  # by number


class Side(NamedTuple):
    """Ranks that called the same collective."""

    signature: str
    ranks: List[RankView]


class Difference(NamedTuple):
    """The first number of a group at which ranks called different collectives. The largest side is first."""

    group: str
    seq: int
    sides: List[Side]

    @property
    def has_majority(self) -> bool:
        """Return whether the largest side is the majority."""
        return len(self.sides[0].ranks) > len(self.sides[1].ranks)

    def how(self, side: Side) -> str:
        """Return how this side differs from the majority.

        - SKIPPED: it skipped the majority's collective.
        - REPEATED: it repeated the collective before.
        - EITHER: one of the two above.
        - SIZE: it called the same collective with another size.
        - OTHER: no other way is certain.
        """
        most = _signatures(self.sides[0].ranks, self.group)
        ways = {_shift(_signatures([rank], self.group), most, self.seq) for rank in side.ranks}
        if len(ways) == 1 and ways != {OTHER}:
            return ways.pop()
        ops = {signature.partition(" ")[0] for signature in (side.signature, self.sides[0].signature)}
        return SIZE if len(ops) == 1 else OTHER


def first_difference(ranks: Sequence[RankView]) -> Optional[Difference]:
    """Return the first difference of a group in which a rank waits at that number or later."""
    for group in sorted({name for rank in ranks for name in rank.head}):
        found = _of_group(group, ranks)
        if found is not None and any(
            rank.pending is not None and rank.pending.group == group and rank.pending.seq >= found.seq for rank in ranks
        ):
            return found
    return None


def _of_group(group: str, ranks: Sequence[RankView]) -> Optional[Difference]:
    """Return the difference in a group.

    Where all ranks have finished the same collective, the differences before it did no harm.
    """
    by_seq: Dict[int, Dict[str, List[RankView]]] = {}
    waiting = set()
    for rank in ranks:
        for entry in rank.entries:
            if entry.group == group:
                by_seq.setdefault(entry.seq, {}).setdefault(entry.signature, []).append(rank)
                if not entry.done:
                    waiting.add(entry.seq)
    found: Optional[Difference] = None
    for seq in sorted(by_seq):
        sides = [Side(signature, which) for signature, which in by_seq[seq].items()]
        if len(sides) > 1 and found is None:
            sides.sort(key=lambda side: (-len(side.ranks), side.ranks[0].rank))
            found = Difference(group, seq, sides)
        elif len(sides) == 1 and len(sides[0].ranks) > 1 and found is not None and seq not in waiting:
            parted = {rank.rank for side in found.sides for rank in side.ranks}
            found = None if parted <= {rank.rank for rank in sides[0].ranks} else found
    return found


def _signatures(ranks: Sequence[RankView], group: str) -> Signatures:
    return {entry.seq: entry.signature for rank in ranks for entry in rank.entries if entry.group == group}


def _shift(mine: Signatures, most: Signatures, seq: int) -> str:
    """Return the way in which ``mine`` equals ``most`` from ``seq`` on after a move by one place.

    A move forward means skipped, a move back means repeated.
    """
    ahead = dict(most)
    if seq + 1 not in ahead:
        after = _usually_after(most, seq)
        if after is not None:
            ahead[seq + 1] = after
    skipped = _matches(mine, ahead, seq, +1)
    repeated = _matches(mine, most, seq, -1)
    if skipped and repeated:
        return EITHER
    return SKIPPED if skipped else REPEATED if repeated else OTHER


def _matches(mine: Signatures, most: Signatures, seq: int, by: int) -> bool:
    later = [at for at in mine if at >= seq and at + by in most]
    return seq in later and all(mine[at] == most[at + by] for at in later)


def _usually_after(most: Signatures, seq: int) -> Optional[str]:
    """Return the collective that followed the last time that the same two collectives came in a row.

    A training loop repeats itself.
    """
    for at in range(seq - 1, seq - 1 - len(most), -1):
        if at + 1 in most and all(at - back in most and most[at - back] == most.get(seq - back) for back in (0, 1)):
            return most[at + 1]
    return None


def difference_text(found: Difference) -> str:
    """Return which ranks called a collective that differs from the majority's."""
    most, others = found.sides[0], found.sides[1:]
    if not found.has_majority:
        sized = len({_op(side) for side in found.sides}) == 1
        sides = [_in(found, side) + (_with_size(side) if sized else "") for side in found.sides]
        return "%s: they do not match" % " and ".join(sides)
    return "; ".join(_odd(found, side, most) for side in others)


def _odd(found: Difference, side: Side, most: Side) -> str:
    how, seq, theirs = found.how(side), found.seq, _op(most)
    if how == SKIPPED:
        place = _line(found, most)
        skipped = phrases.call_text(theirs, seq, found.group)
        text = "%s skipped %s, which %s called%s" % (
            phrases.have(side.ranks),
            skipped,
            phrases.who(most.ranks),
            " at %s" % place if place else "",
        )
        return "%s; %s" % (text, _now(side))
    if how in (REPEATED, EITHER):
        skipped = "skipped %s or " % phrases.call_text(theirs, seq, found.group) if how == EITHER else ""
        twice = phrases.call_text(_op(side), seq - 1, found.group)
        text = "%s %scalled %s twice" % (phrases.have(side.ranks), skipped, twice)
        return "%s; %s, %s" % (text, _now(side), _in(found, most))
    if how == SIZE:
        mine, other = side.signature.partition(" ")[2], most.signature.partition(" ")[2]
        verb = "calls" if len(side.ranks) == 1 else "call"
        place = phrases.in_brackets(_line(found, side))
        text = "%s %s %s%s" % (phrases.who(side.ranks), verb, phrases.call_text(theirs, seq, found.group), place)
        return "%s with %s, %s with %s" % (text, _elements(mine), phrases.who(most.ranks), other)
    return "%s, %s: they do not match" % (_in(found, side), _in(found, most))


def _now(side: Side) -> str:
    return "it is %s" % phrases.place_text(side.ranks[0]) if len(side.ranks) == 1 else phrases.standing_text(side.ranks)


def _op(side: Side) -> str:
    return side.signature.partition(" ")[0]


def _with_size(side: Side) -> str:
    return " with %s" % _elements(side.signature.partition(" ")[2])


def _elements(text: str) -> str:
    return "1 element" if text == "1" else "%s elements" % text


def _in(found: Difference, side: Side) -> str:
    """Return ``ranks 0-1 are in broadcast #7 (train.py:18)``."""
    label = phrases.call_text(_op(side), found.seq, found.group)
    return "%s in %s%s" % (phrases.are(side.ranks), label, phrases.in_brackets(_line(found, side)))


def _line(found: Difference, side: Side) -> str:
    """Return the place of a rank of this side that still waits there; the other ranks of the side have moved on."""
    for rank in side.ranks:
        if rank.pending is not None and (rank.pending.group, rank.pending.seq) == (found.group, found.seq):
            return rank.place
    return ""
