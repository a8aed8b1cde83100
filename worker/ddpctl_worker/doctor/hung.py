"""Finds the rank that the other ranks waited for, once every failure is a time-out of a waiting rank. Pure."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Collection, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ddpctl_worker.rules import phrases, rank_view
from ddpctl_worker.rules.rank_view import RankView

# A part of contract.VICTIM_WORDS: the failures that say that nothing came for too long.
_TIMED_OUT = re.compile(
    r"timed out waiting|wait timeout after|socket timeout|client socket has timed out|failed to pass monitoredBarrier|"
    r"collective operation timeout|timed out after|operation to complete|waitForInput: .* timed out",
    re.I,
)
Waits = Tuple[str, int, str]  # group, number and operation of a collective


class Hung(NamedTuple):
    """A rank that never came to a collective, and the place in its program."""

    host: str
    rank: int
    message: str


def timed_out(messages: Iterable[str]) -> bool:
    """Return whether any of these failures says that a peer did not come in time."""
    return any(_TIMED_OUT.search(message) for message in messages)


def sees_all(looks: Iterable[Dict[str, Any]]) -> bool:
    """Return whether each look at a rank that has not ended shows where the rank is."""
    return all(rank.known or rank.stack for rank in map(rank_view.read_looks, looks) if rank.state != "ended")


def find_hung(
    looks: Sequence[Dict[str, Any]], waited: Mapping[int, Waits], silent: Collection[str] = ()
) -> Optional[Hung]:
    """Return the rank that had not reached the last collective of the other ranks, or ``None`` if that is not clear.

    ``looks``: of the ranks that still live. ``waited``: rank -> the last collective in which it was seen. ``silent``:
    hosts without an answer.

    The record of collectives proves that a rank has not come. A stack proves nothing while another living rank was not
    seen: that rank may be the missing rank.
    """
    ranks = [rank for rank in map(rank_view.read_looks, looks) if rank.state not in ("ended", "unknown")]
    count = Counter(waited.values())
    where = max(count, key=lambda waits: (count[waits], waits[1])) if count else None
    absent = [rank for rank in rank_view.present_ranks(ranks) if _has_not_come(rank, where)]
    if not absent:
        return None
    first = absent[0]
    proved = where is not None and first.known
    if not proved and (silent or not sees_all(looks)):
        return None
    label = phrases.call_text(where[2], where[1], where[0]) if where is not None else "the collective of the others"
    text = "%s had not reached %s: %s %s" % (phrases.who(absent), label, _subject(absent), phrases.place_text(first))
    return Hung(first.host, first.rank, text)


def _subject(absent: List[RankView]) -> str:
    return "it was" if len(absent) == 1 else "%s was" % phrases.who(absent[:1])


def _has_not_come(rank: RankView, where: Optional[Waits]) -> bool:
    if rank.operation is not None:
        return False
    if where is None or not rank.known:
        return bool(rank.stack)
    return rank.head.get(where[0], -1) < where[1]
