"""Which rank the others waited for in vain, once all failures are time-outs of those that waited. Pure."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from ddpctl_worker.rules import seen, words
from ddpctl_worker.rules.seen import SeenRank

# Of the failures that are a peer's (contract.VICTIM_WORDS) those that say that nothing came for too long.
_TIMED_OUT = re.compile(
    r"timed out waiting|wait timeout after|socket timeout|client socket has timed out|failed to pass monitoredBarrier|"
    r"collective operation timeout|timed out after|operation to complete|waitForInput: .* timed out",
    re.I,
)
Waits = Tuple[str, int, str]  # group, number and operation of a collective


class Hung(NamedTuple):
    """A rank that never came, and where it was."""

    host: str
    rank: int
    message: str


def timed_out(messages: Iterable[str]) -> bool:
    """Whether any of these failures says that a peer did not come in time."""
    return any(_TIMED_OUT.search(message) for message in messages)


def find_hung(looks: Iterable[Dict[str, Any]], waited: Mapping[int, Waits]) -> Optional[Hung]:
    """Who had not reached the collective in which the others were seen last; None where that is not clear.

    ``looks``: at the ranks that still live. ``waited``: by rank, the collective that it was in when it was seen last.
    """
    ranks = [one for one in map(seen.read, looks) if one.state not in ("ended", "unknown")]
    count = Counter(waited.values())
    where = max(count, key=lambda one: (count[one], one[1])) if count else None
    absent = [one for one in seen.present(ranks) if _has_not_come(one, where)]
    if not absent:
        return None
    first = absent[0]
    label = words.called(where[2], where[1], where[0]) if where is not None else "the collective of the others"
    text = "%s had not reached %s: %s %s" % (words.who(absent), label, _subject(absent), words.where(first))
    return Hung(first.host, first.rank, text)


def _subject(absent: List[SeenRank]) -> str:
    return "it was" if len(absent) == 1 else "%s was" % words.who(absent[:1])


def _has_not_come(one: SeenRank, where: Optional[Waits]) -> bool:
    if one.operation is not None:
        return False
    if where is None or not one.known:
        return bool(one.stack)
    return one.head.get(where[0], -1) < where[1]
