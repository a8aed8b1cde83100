"""Judges ranks with child processes that wait for each other. Pure.

A script that calls ``mp.spawn`` waits in its main process. Only the stacks of the children are known. The children of
each rank are judged by themselves: nothing says whether they communicate with the children of another host.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ddpctl_worker.rules import frames, phrases
from ddpctl_worker.rules.limits import NAMED_PROCESSES
from ddpctl_worker.rules.rank_view import RankView

Child = Dict[str, Any]  # as in a look: pid, state, sleep_s, stack, still


class Family(NamedTuple):
    """The Python processes below a rank: the children that wait in an operation of torch.distributed, and the rest."""

    rank: RankView
    waiting: List[Child]
    rest: List[Child]

    @property
    def places(self) -> List[Tuple[str, int]]:
        """Return each place where children wait and their number, the most common place first."""
        return Counter(_operation_at(child) for child in self.waiting).most_common()

    @property
    def stands(self) -> bool:
        """Return whether no waiting child moved during the look."""
        return all(child.get("still", True) for child in self.waiting)

    @property
    def odd(self) -> bool:
        """Return whether some of the children are not at the place of most children."""
        return bool(self.rest) or len(self.places) > 1

    def sentence(self) -> str:
        """``1 of 2 processes of rank 0 on node0 waits in all_reduce (train.py:9 in run); its process 71 is at ...``."""
        total = len(self.waiting) + len(self.rest)
        parts = []
        for place, some in self.places[:NAMED_PROCESSES]:
            count = "all %d" % total if some == total > 1 else "%d of %d" % (some, total) if total > 1 else "the only"
            verb = "wait" if some > 1 else "waits"
            noun = "processes" if total > 1 else "process"
            parts.append("%s %s of %s %s in %s" % (count, noun, phrases.who([self.rank]), verb, place))
        parts += ["its process %s is %s" % (child.get("pid"), _where(child)) for child in self.rest[:NAMED_PROCESSES]]
        return "; ".join(parts)

    def evidence(self) -> List[str]:
        """Return the state and stack of its processes, the odd children first."""
        lines = []
        for child in [*self.rest, *self.waiting][:NAMED_PROCESSES]:
            lines.append("  its process %s: %s" % (child.get("pid"), child.get("state")))
            lines += ["    %s:%s in %s" % tuple(frame) for frame in (child.get("stack") or [])[:8]]
        return lines


def family_of(rank: RankView) -> Optional[Family]:
    """Return the processes below a rank that is in no operation itself, if some are in an operation; else
    ``None``.
    """
    if rank.operation is not None:
        return None
    children = [child for child in rank.look.get("children") or () if _is_script(child.get("stack"))]
    waiting = [child for child in children if frames.operation(child.get("stack"))]
    if not waiting:
        return None
    return Family(rank, waiting, [child for child in children if child not in waiting])


def unseen(ranks: Sequence[RankView]) -> int:
    """Return the number of processes without a stack for which these ranks wait, or may wait."""
    waits = [rank for rank in ranks if not rank.stack or frames.reason(rank.stack) == frames.FOR_PROCESS]
    return sum(int(rank.look.get("unseen") or 0) for rank in waits)


def _is_script(stack: Any) -> bool:
    """Return whether the process runs code of the user: the helper processes of multiprocessing do not."""
    return any(frames.is_own(frame) for frame in stack or ())


def _operation_at(child: Child) -> str:
    stack = child.get("stack")
    return "%s%s" % (frames.operation(stack), phrases.in_brackets(frames.place(stack)))


def _where(child: Child) -> str:
    stack = child.get("stack")
    sleep = child.get("sleep_s")
    why = frames.reason(stack) if sleep is None else phrases.sleep_text(float(sleep), bool(child.get("polls")))
    return "at %s%s" % (frames.place(stack), ", " + why if why else "")
