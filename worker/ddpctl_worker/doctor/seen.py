"""What a look says of one rank, read once. Pure."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional

from ddpctl_worker.doctor import flight, frames

DEFAULT_GROUP = "0"


class SeenRank(NamedTuple):
    """One rank; ``look`` is as look.py describes it."""

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
    def place(self) -> str:
        """``train.py:88 in step``; empty where that is not known."""
        return frames.place(self.stack)

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
        children = self.look.get("children") or ()
        return max((float(one["sleep_s"]) for one in children if one.get("sleep_s") is not None), default=None)


def read(look: Dict[str, Any]) -> SeenRank:
    groups = look.get("groups")
    entries = flight.from_json(groups) if groups else []
    return SeenRank(str(look.get("host")), int(look["rank"]), look, entries, _pending(entries))


def _pending(entries: List[flight.Entry]) -> Optional[flight.Entry]:
    """The oldest unfinished collective of the group of the newest one, if that is unfinished."""
    if not entries or entries[-1].done:
        return None
    group = entries[-1].group
    return next(one for one in entries if one.group == group and not one.done)
