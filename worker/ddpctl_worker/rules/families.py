"""Ranks whose own processes wait for each other: a script that calls ``mp.spawn`` waits in its main process. Pure.

Of these processes only the stacks are known. Those of one rank are judged by themselves: whether they meet those of
another host is not known.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ddpctl_worker.rules import frames, words
from ddpctl_worker.rules.limits import NAMED_PROCESSES
from ddpctl_worker.rules.seen import SeenRank

Child = Dict[str, Any]  # as in a look: pid, state, sleep_s, stack, still


class Family(NamedTuple):
    """The Python processes of a rank: those that wait in an operation of torch.distributed, and the rest."""

    rank: SeenRank
    waiting: List[Child]
    rest: List[Child]

    @property
    def places(self) -> List[Tuple[str, int]]:
        """Where they wait, and how many; most first."""
        return Counter(_operation_at(child) for child in self.waiting).most_common()

    @property
    def stands(self) -> bool:
        """Whether none of those that wait moved while they were looked at."""
        return all(child.get("still", True) for child in self.waiting)

    @property
    def odd(self) -> bool:
        """Whether some of its processes are elsewhere than the others."""
        return bool(self.rest) or len(self.places) > 1

    def told(self) -> str:
        """``1 of 2 processes of rank 0 on node0 waits in all_reduce (train.py:9 in run); its process 71 is at ...``."""
        total = len(self.waiting) + len(self.rest)
        parts = []
        for place, some in self.places[:NAMED_PROCESSES]:
            count = "all %d" % total if some == total > 1 else "%d of %d" % (some, total) if total > 1 else "the only"
            verb = "wait" if some > 1 else "waits"
            noun = "processes" if total > 1 else "process"
            parts.append("%s %s of %s %s in %s" % (count, noun, words.who([self.rank]), verb, place))
        parts += ["its process %s is %s" % (child.get("pid"), _where(child)) for child in self.rest[:NAMED_PROCESSES]]
        return "; ".join(parts)

    def evidence(self) -> List[str]:
        """What was seen of its processes, the odd ones first."""
        lines = []
        for child in [*self.rest, *self.waiting][:NAMED_PROCESSES]:
            lines.append("  its process %s: %s" % (child.get("pid"), child.get("state")))
            lines += ["    %s:%s in %s" % tuple(frame) for frame in (child.get("stack") or [])[:8]]
        return lines


def family_of(one: SeenRank) -> Optional[Family]:
    """The processes of a rank that is in no operation itself, where some of them are in one; else None."""
    if one.operation is not None:
        return None
    children = [child for child in one.look.get("children") or () if _is_script(child.get("stack"))]
    waiting = [child for child in children if frames.operation(child.get("stack"))]
    if not waiting:
        return None
    return Family(one, waiting, [child for child in children if child not in waiting])


def unseen(ranks: Sequence[SeenRank]) -> int:
    """How many processes could not be looked at that these ranks wait for, or may wait for."""
    waits = [one for one in ranks if not one.stack or frames.reason(one.stack) == frames.FOR_PROCESS]
    return sum(int(one.look.get("unseen") or 0) for one in waits)


def _is_script(stack: Any) -> bool:
    """Whether it runs code of the user's: multiprocessing has helpers of its own."""
    return any(frames.is_own(frame) for frame in stack or ())


def _operation_at(child: Child) -> str:
    stack = child.get("stack")
    return "%s%s" % (frames.operation(stack), words.in_brackets(frames.place(stack)))


def _where(child: Child) -> str:
    stack = child.get("stack")
    sleep = child.get("sleep_s")
    why = frames.reason(stack) if sleep is None else words.asleep(float(sleep), bool(child.get("polls")))
    return "at %s%s" % (frames.place(stack), ", " + why if why else "")
