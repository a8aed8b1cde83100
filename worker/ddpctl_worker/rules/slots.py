"""Chooses the slots of a host that a run gets, and the waiting run that is next. Pure.

A run takes all its slots of a host at once, or it waits. Waiting runs are served in the order of their tickets. A run
may pass an earlier one only if that never delays the earlier run: whichever holders end, the earlier run could start at
the same moments as without it.

Of a run on several hosts only one host is *ready* at a time: a run claims its hosts one after the other, in an order
that is the same for all runs. A ticket that is not ready yet reserves nothing. Hence no cycle: on the last host in that
order, a ready ticket waits only for runs that have started, and for earlier ready tickets.
"""

from __future__ import annotations

from typing import Collection, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple


class SlotEntry(NamedTuple):
    """The part of a ``run`` on one host: the holder of slots, or a ticket.

    ``since`` orders the tickets: seconds since the boot of the host. ``want``: the number of slots. ``pool``: the slots
    that it may take, in the order of preference. ``held``: the slots that it has. ``ready``: it waits for slots of this
    host, not of another host.
    """

    name: str
    run: str
    account: str
    since: float
    want: int
    pool: Tuple[str, ...]
    held: Tuple[str, ...] = ()
    ready: bool = True

    @property
    def waits(self) -> bool:
        """Whether it is a ticket."""
        return self.want > 0 and not self.held


def choose_slots(
    own: SlotEntry, entries: Sequence[SlotEntry], taken: Collection[str] = (), limit: Optional[int] = None
) -> Tuple[str, ...]:
    """Return the slots that ``own`` takes now; () if it must wait.

    ``entries``: all parts on this host; ``own`` may be among them. ``taken``: slots that programs outside ddpctl use.
    ``limit``: the most slots that an account may hold here.
    """
    others = [entry for entry in entries if entry.name != own.name]
    if not own.ready or not _is_within_limit(own, others, limit):
        return ()
    ahead = [entry for entry in list_ahead(own, others) if entry.ready and _is_within_limit(entry, others, limit)]
    used = set(taken).union(*(entry.held for entry in others))
    wanted = {slot for entry in ahead for slot in entry.pool}
    free = sorted((slot for slot in own.pool if slot not in used), key=lambda slot: slot in wanted)
    chosen = set(free[: own.want])
    if len(chosen) < own.want or _delays_any(chosen, ahead, others, set(taken)):
        return ()
    return tuple(slot for slot in own.pool if slot in chosen)


def list_ahead(own: SlotEntry, entries: Iterable[SlotEntry]) -> List[SlotEntry]:
    """Return the waiting entries with earlier tickets, the first in line first."""
    waiting = (entry for entry in entries if entry.waits and entry.name != own.name)
    return sorted((entry for entry in waiting if _turn(entry) < _turn(own)), key=_turn)


def place_in_line(own: SlotEntry, entries: Iterable[SlotEntry]) -> Optional[int]:
    """Return the place of a waiting entry, from 1; ``None``: it does not wait."""
    return len(list_ahead(own, entries)) + 1 if own.waits else None


def list_before(host: str, order: Sequence[str], held: Collection[str]) -> List[str]:
    """Return the hosts without their slots that a run claims before ``host``; [] if it is the turn of ``host``."""
    return [other for other in order[: order.index(host)] if other not in held]


def _turn(entry: SlotEntry) -> Tuple[float, str]:
    return entry.since, entry.name


def count_held(account: str, entries: Iterable[SlotEntry]) -> int:
    """Return the number of slots that an account holds."""
    return sum(len(entry.held) for entry in entries if entry.account == account)


def _is_within_limit(entry: SlotEntry, others: Iterable[SlotEntry], limit: Optional[int]) -> bool:
    """Return whether the account of ``entry`` would hold at most ``limit`` slots with it."""
    return limit is None or entry.want + count_held(entry.account, others) <= limit


def _delays_any(chosen: Set[str], ahead: Sequence[SlotEntry], others: Sequence[SlotEntry], taken: Set[str]) -> bool:
    """Return whether an earlier ticket may have to wait longer once ``chosen`` are taken."""
    # A program outside ddpctl may stay on a slot whose holder ends.
    holders = [set(entry.held) - taken for entry in others if entry.held] + [{slot} for slot in taken]
    for number, entry in enumerate(ahead):
        pool = set(entry.pool)
        lost = len(pool & chosen)
        # The tickets before this one will hold slots of its pool: at most so many.
        groups = [len(pool & held) for held in holders]
        groups += [min(before.want, len(pool.intersection(before.pool))) for before in ahead[:number]]
        short = entry.want - (len(pool) - sum(groups))
        if lost and any(short <= total < short + lost for total in _sums(groups)):
            return True
    return False


def _sums(groups: Iterable[int]) -> Set[int]:
    """Return the numbers of slots that may become free: the sums of all subsets of ``groups``."""
    sums = {0}
    for count in groups:
        sums |= {total + count for total in sums}
    return sums
