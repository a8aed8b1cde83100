"""Finds the rank that the other ranks waited for, once a rank has timed out. Pure."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Collection, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ddpctl_worker.doctor.limits import SEARCH_AFTER_S, SEARCH_AGAIN_S, SEARCH_S
from ddpctl_worker.rules import flight, phrases, rank_view, sequences
from ddpctl_worker.rules.rank_view import DEFAULT_GROUPS, RankView

# A part of contract.VICTIM_WORDS: the failures that say that nothing came for too long.
_TIMED_OUT = re.compile(
    r"timed out waiting|wait timeout after|socket timeout|client socket has timed out|failed to pass monitoredBarrier|"
    r"collective operation timeout|timed out after|operation to complete|waitForInput: .* timed out",
    re.I,
)


class Waits(NamedTuple):
    """A collective in which a rank waits."""

    group: str
    seq: int
    op: str
    elements: int = 0


class Hung(NamedTuple):
    """The rank because of which the other ranks timed out, and how it held them up."""

    host: str
    rank: int
    message: str


class WaitedRanks:
    """The evidence of a hang that ends in time-outs, and the rank that it shows.

    The search begins with the first time-out that a rank prints. The rank may need seconds to die after it, and in this
    time the missing rank may arrive, or be ended. Until a failure is reported, only the record of collectives counts,
    since the program may handle the time-out. After it, the stacks count, too. Times are monotonic seconds.
    """

    def __init__(self) -> None:
        self._waits: Dict[int, Waits] = {}  # rank -> the last collective in which it was seen
        self._host_of: Dict[int, str] = {}
        self._left: Set[int] = set()  # ranks outside any collective at the last glance
        self._printed: Dict[int, int] = {}  # rank -> the time-outs that it has printed
        self._late: Set[int] = set()  # ranks that have printed a time-out since the search began
        self._began: Optional[float] = None  # the search for the proof of the record
        self._stacks_at: Optional[float] = None  # from then on stacks count; set by another thread
        self._read_records = self._read_stacks = False  # each search is over
        self.failed: Mapping[int, str] = {}  # rank -> its host; set by another thread
        self.found: Optional[Hung] = None

    @property
    def searching(self) -> bool:
        """Return whether looks at the ranks may still show the missing rank."""
        if self.found is not None:
            return False
        return (self._stacks_at is not None and not self._read_stacks) or self._seeks_proof

    @property
    def _seeks_proof(self) -> bool:
        return self._began is not None and not self._read_records

    def is_due(self, now: float) -> bool:
        """Return whether to look at all ranks now."""
        return self.searching and (self._seeks_proof or self.counts_stacks(now))

    def counts_stacks(self, now: float) -> bool:
        return self._stacks_at is not None and now >= self._stacks_at

    def note_glances(self, host: str, glances: Mapping[int, Mapping[str, Any]], now: float) -> None:
        """Keep the collective in which each rank of ``host`` was seen last.

        A new time-out among the glances begins a search. The entry of a rank that has ended or timed out stays. Any
        other rank that has left its collective keeps its entry for one more glance: the rank may be about to end.

        A rank that is in another collective after its time-out goes on: the program has handled the time-out.
        """
        for rank, glance in glances.items():
            printed, before = int(glance.get("timeouts") or 0), self._printed.get(rank, 0)
            self._printed[rank] = printed
            if printed > before:
                self._begin(now)
                self._late.add(rank)
            waits = glance.get("waits")
            self._host_of[rank] = host
            if waits:
                present = Waits(str(waits[0]), int(waits[1]), str(waits[2]), int(waits[3]))
                if rank in self._late and printed == before and self._waits.get(rank, present) != present:
                    self._forget_late(rank)
                self._waits[rank] = present
                self._left.discard(rank)
            elif rank in self._left and rank not in self._late:
                self._waits.pop(rank, None)
            else:
                self._left.add(rank)

    def _forget_late(self, rank: int) -> None:
        """Forget a time-out that the program has handled. Once no other is left, the evidence is worth nothing."""
        self._late.discard(rank)
        if not self._late and self._stacks_at is None:
            self.found, self._read_records = None, True

    def _begin(self, now: float) -> None:
        """Begin a search, unless this time-out belongs to the last search: ranks that wait time out together."""
        again = self._began is not None and now < self._began + SEARCH_AGAIN_S
        if not again and self._stacks_at is None:
            self._began, self._late, self._read_records, self.found = now, set(), False, None

    def note_failures(self, failed: Mapping[int, str], now: float) -> bool:
        """Take the failures so far: all are time-outs. Return whether these are the first failures."""
        first = self._stacks_at is None
        self.failed = dict(failed)
        if first:
            self._stacks_at = now + SEARCH_AFTER_S
        return first

    def take_looks(
        self,
        looks: Sequence[Dict[str, Any]],
        silent: Collection[str],
        diagnosis: Optional[Mapping[str, Any]],
        now: float,
    ) -> None:
        """Judge looks at all ranks. The search ends once each living rank was seen, or its time is over.

        ``silent``: hosts that did not show all their ranks. A host with a failed rank need not: its launcher ends its
        other ranks. ``diagnosis``: from before the time-out; it counts if no rank stands out now.
        """
        stacks, searched_s = self.counts_stacks(now), self._searched_s(now)
        silent = ({*silent} | self._find_killed(looks, searched_s)) - set(self.failed.values())
        living = [one for one in looks if one.get("rank") not in {*self.failed, *self._late}]
        found = find_mismatch(looks, self._waits, self._host_of)
        found = found or find_hung(living, self._waits, silent, proved_only=not stacks)
        if stacks and found is None and diagnosis is not None:
            suspects = diagnosis.get("suspects") or ()
            found = next((Hung(one["host"], one["rank"], str(diagnosis["verdict"])) for one in suspects), None)
        self.found = found
        over = searched_s >= SEARCH_S or (not silent and sees_all(living, by_stack=stacks))
        self._read_records = over or stacks
        self._read_stacks = over and stacks

    def note_fault(self, now: float) -> None:
        """Note that the ranks could not be looked at: the search ends once its time is over."""
        if self._searched_s(now) >= SEARCH_S:
            self._read_records, self._read_stacks = True, self.counts_stacks(now)

    def _searched_s(self, now: float) -> float:
        began = self._stacks_at if self.counts_stacks(now) else self._began
        return now - (began or now)

    def _find_killed(self, looks: Sequence[Mapping[str, Any]], searched_s: float) -> Set[str]:
        """Return the hosts of ranks that have ended since the search began: the end of the run may have killed them."""
        ended = [one for one in looks if one.get("ended_s") is not None and one["ended_s"] < searched_s]
        return {str(one["host"]) for one in ended if one.get("rank") not in {*self.failed, *self._late}}


def timed_out(messages: Iterable[str]) -> bool:
    """Return whether any of these failures says that a peer did not come in time."""
    return any(_TIMED_OUT.search(message) for message in messages)


def sees_all(looks: Iterable[Dict[str, Any]], *, by_stack: bool = True) -> bool:
    """Return whether each look at a rank that has not ended shows where the rank is: by its record or its stack."""
    living = (rank for rank in map(rank_view.read_looks, looks) if rank.state != "ended")
    return all(rank.known or (by_stack and rank.stack) for rank in living)


def find_mismatch(
    looks: Iterable[Dict[str, Any]], waited: Mapping[int, Waits], host_of: Mapping[int, str]
) -> Optional[Hung]:
    """Return a rank that called a different collective than other ranks, and the difference.

    A look shows the place of each rank. But a short time-out may have ended the ranks, or gloo calls the collective
    done: then ``waited`` shows the difference, the collectives in which the ranks were seen last.
    """
    seen = [RankView(host_of[rank], rank, {}, [entry], entry) for rank, entry in _entries(waited)]
    found = sequences.first_difference(list(map(rank_view.read_looks, looks))) or sequences.first_difference(seen)
    if found is None:
        return None
    odd = found.sides[1 if found.has_majority else 0].ranks[0]
    return Hung(odd.host, odd.rank, sequences.difference_text(found))


def _entries(waited: Mapping[int, Waits]) -> List[Tuple[int, flight.Entry]]:
    return [(rank, flight.Entry(*waits, done=False, at=0.0, what="")) for rank, waits in sorted(waited.items())]


def find_hung(
    looks: Sequence[Dict[str, Any]],
    waited: Mapping[int, Waits],
    silent: Collection[str] = (),
    *,
    proved_only: bool = False,
) -> Optional[Hung]:
    """Return the rank that had not reached the last collective of the other ranks, or ``None`` if that is not clear.

    ``looks``: of the ranks that still live. ``waited``: rank -> the last collective in which it was seen. ``silent``:
    hosts without an answer.

    The record of collectives proves that a rank has not come. A stack proves nothing while another living rank was not
    seen: that rank may be the missing rank. ``proved_only``: no stack proves anything.
    """
    ranks = [rank for rank in map(rank_view.read_looks, looks) if rank.state not in ("ended", "unknown")]
    count = Counter(waited.values())
    where = max(count, key=lambda waits: (count[waits], waits.seq)) if count else None
    absent = [rank for rank in rank_view.present_ranks(ranks) if _has_not_come(rank, where)]
    if not absent:
        return None
    first = absent[0]
    proved = where is not None and first.known
    if not proved and (proved_only or silent or not sees_all(looks)):
        return None
    label = phrases.call_text(where.op, where.seq, where.group) if where is not None else "the collective of the others"
    text = "%s had not reached %s: %s %s" % (phrases.who(absent), label, _subject(absent), phrases.place_text(first))
    return Hung(first.host, first.rank, text)


def _subject(absent: List[RankView]) -> str:
    return "it was" if len(absent) == 1 else "%s was" % phrases.who(absent[:1])


def _has_not_come(rank: RankView, where: Optional[Waits]) -> bool:
    if rank.operation is not None:
        return False
    if where is None or not rank.known:
        return bool(rank.stack)
    if where.group not in rank.head and where.group not in DEFAULT_GROUPS:
        return False  # it may be no member of this group
    return rank.head.get(where.group, -1) < where.seq
