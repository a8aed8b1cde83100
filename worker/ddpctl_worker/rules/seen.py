"""What a look says of one rank, read once. Pure."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from ddpctl_worker.rules import flight, frames
from ddpctl_worker.rules.limits import LOOKS_APART_S

DEFAULT_GROUPS = frozenset({"0", flight.NCCL + "0"})


class SeenRank(NamedTuple):
    """One rank; ``look`` is as look.py describes it."""

    host: str
    rank: int
    look: Dict[str, Any]
    entries: List[flight.Entry]
    pending: Optional[flight.Entry]  # the collective that it is in

    @property
    def known(self) -> bool:
        """Whether its collectives are known. An empty record is none where the stack shows one: NCCL has its own."""
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
        """``train.py:88 in step``; empty where that is not known."""
        return frames.place(frames.awake(self.stack) if self.polls else self.stack)

    @property
    def waited(self) -> float:
        """For how many seconds it has been in its collective."""
        now = self.look.get("now")
        return max(0.0, float(now) - self.pending.at) if now and self.pending else 0.0

    @property
    def operation(self) -> Optional[str]:
        """The operation that it waits in, by its record or, where that has none of it, by its stack."""
        if self.state == "ended" and not self.look.get("dumped"):
            return None
        if self.pending is not None:
            return self.pending.op
        found = frames.operation(self.stack)
        return None if self.known and found not in frames.UNRECORDED else found

    @property
    def outside(self) -> bool:
        """Whether it is in no collective, although it has no record: by its stack, or because it does not run."""
        idle = self.state in ("stopped", "traced", "blocked")
        return not self.known and self.operation is None and (idle or bool(self.stack))

    def age(self, at: float) -> float:
        """Seconds from then, a Unix time of its host, to the look."""
        return float(self.look.get("now") or 0.0) - at

    @property
    def head(self) -> Dict[str, int]:
        """group -> the highest number that it has entered."""
        found: Dict[str, int] = {}
        for one in self.entries:
            found[one.group] = max(found.get(one.group, 0), one.seq)
        return found

    @property
    def cpu(self) -> float:
        """Percent of a core, with all that it has started."""
        return float(self.look.get("cpu") or 0.0) + float(self.look.get("below") or 0.0)

    @property
    def bytes(self) -> int:
        return int(self.look.get("bytes") or 0)

    @property
    def spins(self) -> bool:
        """Whether it is in a loop of its own Python code that never leaves its function."""
        return bool(self.look.get("spins")) and frames.busy_in_own_code(self.stack)

    @property
    def sleep(self) -> Optional[float]:
        """Seconds until it, or one that it waits for below it, wakes from a timed sleep; None when it is in none."""
        if self.look.get("sleep_s") is not None:
            return float(self.look["sleep_s"])
        return max((float(one["sleep_s"]) for one in self._sleepers), default=None)

    @property
    def polls(self) -> bool:
        """Whether it, or each one of those below it that sleep, sleeps again and again on the same line."""
        if self.look.get("sleep_s") is not None:
            return bool(self.look.get("polls"))
        return bool(self._sleepers) and all(one.get("polls") for one in self._sleepers)

    @property
    def _sleepers(self) -> List[Dict[str, Any]]:
        return [one for one in self.look.get("children") or () if one.get("sleep_s") is not None]


def read(look: Dict[str, Any]) -> SeenRank:
    groups = look.get("groups")
    entries = flight.from_json(groups) if groups else []
    return SeenRank(str(look.get("host")), int(look["rank"]), look, entries, _pending(entries))


def present(ranks: Sequence[SeenRank]) -> List[SeenRank]:
    """Without the collectives of a group that was destroyed, where other ranks are in one of the same name already.

    Each rank's own record tells the two apart once it has entered a collective of the new one. For a rank that has not
    the others' tell, by age, as the clocks of two hosts may differ.
    """
    ages: Dict[str, float] = {}  # group -> the age of the new one
    for one in ranks:
        for entry in one.entries:
            if entry.since:
                ages[entry.group] = max(ages.get(entry.group, 0.0), one.age(entry.since))
    return [one._replace(entries=[entry for entry in one.entries if not _is_old(one, entry, ages)]) for one in ranks]


def _is_old(one: SeenRank, entry: flight.Entry, ages: Dict[str, float]) -> bool:
    if entry.group not in ages or entry.since or not entry.done:
        return False
    return one.age(entry.at) > ages[entry.group] - LOOKS_APART_S


def _pending(entries: List[flight.Entry]) -> Optional[flight.Entry]:
    """The oldest unfinished collective of the group of the newest one, if that is unfinished: of gloo, else of NCCL."""
    for nccl in (False, True):
        some = [one for one in entries if one.group.startswith(flight.NCCL) == nccl]
        if some and not some[-1].done:
            return next(one for one in some if one.group == some[-1].group and not one.done)
    return None
