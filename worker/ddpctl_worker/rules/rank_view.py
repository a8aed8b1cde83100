"""One rank as a look at its host has found it. Pure."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from ddpctl_worker.rules import flight, frames
from ddpctl_worker.rules.limits import LOOKS_APART_S

DEFAULT_GROUPS = frozenset({"0", flight.NCCL + "0"})


class RankView(NamedTuple):
    """One rank. ``look`` has the fields that look.py describes."""

    host: str
    rank: int
    look: Dict[str, Any]
    entries: List[flight.Entry]
    pending: Optional[flight.Entry]  # the unfinished collective that the rank is in

    @property
    def known(self) -> bool:
        """Return whether the rank's collectives are known.

        An empty record does not count while the stack shows a collective: NCCL has a record of its own.
        """
        groups = self.look.get("groups")
        return bool(groups) or (groups is not None and frames.operation(self.stack) in (None, *frames.UNRECORDED))

    @property
    def state(self) -> str:
        return str(self.look.get("state"))

    @property
    def stack(self) -> Optional[List[Any]]:
        return self.look.get("stack")

    @property
    def place(self) -> str:
        """Return the rank's place in the user's code, like ``train.py:88 in step``; empty if it is not known."""
        return frames.place(frames.find_awake(self.stack) if self.polls else self.stack)

    @property
    def waited(self) -> float:
        """Return the seconds that the rank has been in its collective."""
        now = self.look.get("now")
        return max(0.0, float(now) - self.pending.at) if now and self.pending else 0.0

    @property
    def operation(self) -> Optional[str]:
        """Return the operation that the rank waits in: by its record, or by its stack if the record does not have
        it.
        """
        if self.state == "ended" and not self.look.get("dumped"):
            return None
        if self.pending is not None:
            return self.pending.op
        found = frames.operation(self.stack)
        return None if self.known and found not in frames.UNRECORDED else found

    @property
    def outside(self) -> bool:
        """Return whether the rank has no record and is in no collective, by its stack or because the process does
        not run.
        """
        idle = self.state in ("stopped", "traced", "blocked")
        return not self.known and self.operation is None and (idle or bool(self.stack))

    def age(self, at: float) -> float:
        """Return the seconds from ``at``, a Unix time of the rank's host, to the look."""
        return float(self.look.get("now") or 0.0) - at

    @property
    def head(self) -> Dict[str, int]:
        """Return group -> the highest number of a collective that the rank has entered."""
        highest: Dict[str, int] = {}
        for entry in self.entries:
            highest[entry.group] = max(highest.get(entry.group, 0), entry.seq)
        return highest

    @property
    def cpu(self) -> float:
        """Return the percent of a core that the rank and its child processes use."""
        return float(self.look.get("cpu") or 0.0) + float(self.look.get("below") or 0.0)

    @property
    def bytes(self) -> int:
        return int(self.look.get("bytes") or 0)

    @property
    def spins(self) -> bool:
        """Return whether the rank is in a loop of the user's Python code that stays in one function."""
        return bool(self.look.get("spins")) and frames.busy_in_own_code(self.stack)

    @property
    def sleep(self) -> Optional[float]:
        """Return the seconds until the rank, or a child that it waits for, wakes from a timed sleep.

        ``None``: neither is in a timed sleep.
        """
        if self.look.get("sleep_s") is not None:
            return float(self.look["sleep_s"])
        return max((float(child["sleep_s"]) for child in self._sleepers), default=None)

    @property
    def polls(self) -> bool:
        """Return whether the rank, or every child that sleeps, sleeps again and again on the same line."""
        if self.look.get("sleep_s") is not None:
            return bool(self.look.get("polls"))
        return bool(self._sleepers) and all(child.get("polls") for child in self._sleepers)

    @property
    def _sleepers(self) -> List[Dict[str, Any]]:
        return [child for child in self.look.get("children") or () if child.get("sleep_s") is not None]


def read_looks(look: Dict[str, Any]) -> RankView:
    groups = look.get("groups")
    entries = flight.from_json(groups) if groups else []
    return RankView(str(look.get("host")), int(look["rank"]), look, entries, _pending(entries))


def present_ranks(ranks: Sequence[RankView]) -> List[RankView]:
    """Return the ranks without the collectives of a destroyed group, if another rank uses a new group of the same name.

    The record of a rank shows the difference once the rank has entered a collective of the new group. For any other
    rank the entries are compared by age, because the clocks of two hosts may differ.
    """
    ages: Dict[str, float] = {}  # group -> the age of the new group
    for rank in ranks:
        for entry in rank.entries:
            if entry.since:
                ages[entry.group] = max(ages.get(entry.group, 0.0), rank.age(entry.since))
    return [
        rank._replace(entries=[entry for entry in rank.entries if not _is_old(rank, entry, ages)]) for rank in ranks
    ]


def _is_old(rank: RankView, entry: flight.Entry, ages: Dict[str, float]) -> bool:
    if entry.group not in ages or entry.since or not entry.done:
        return False
    return rank.age(entry.at) > ages[entry.group] - LOOKS_APART_S


def _pending(entries: List[flight.Entry]) -> Optional[flight.Entry]:
    """Return the oldest unfinished collective of the group that was used last, if the last collective is unfinished.

    gloo's collectives come first, then NCCL's.
    """
    for nccl in (False, True):
        some = [entry for entry in entries if entry.group.startswith(flight.NCCL) == nccl]
        if some and not some[-1].done:
            return next(entry for entry in some if entry.group == some[-1].group and not entry.done)
    return None
