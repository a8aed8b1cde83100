"""The end of a run on a node: a terminal state, and a cause in the fields of the contract."""

from __future__ import annotations

import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ddpctl_worker.machine import notes
from ddpctl_worker.record.limits import MAX_CANDIDATES, MAX_TRACEBACK
from ddpctl_worker.wire.contract import EXITED, FAILED, KILLED, KILLED_BY_USER


class Outcome(NamedTuple):
    """A terminal state and its cause (``None`` for success)."""

    state: str
    cause: Optional[Dict[str, Any]]
    victim: bool = False  # the failure of another node ended this node
    when: float = 0.0  # wall clock of the failure itself
    suspect: bool = False  # this node may have failed; its cause counts only because other nodes failed
    in_time: Optional[Tuple[int, ...]] = None  # after a time-out in a collective: the ranks here without a time-out

    @property
    def early(self) -> bool:
        """Whether the ranks ended well, but too early for the other ranks."""
        return self.suspect and (self.cause or {}).get("exit_code") == 0


class Blame(NamedTuple):
    """The order in which failures are blamed: the least is the cause, on a node and in the gang.

    1. A failure of its own: a process failed, a node is lost, a link is cut.
    2. A suspect: a rank that raised an exception and has not ended.
    3. A rank that ended with exit code 0 while other ranks still needed it.
    4. A victim: a rank that failed because its peer was gone.

    Within each class the earliest failure counts. docs/internals.md says how long each decision waits.
    """

    victim: bool
    suspect: bool
    early: bool
    when: float


def cause(
    host: str,
    reason: str,
    message: str,
    *,
    rank: Optional[int] = None,
    exit_code: Optional[int] = None,
    signal: Optional[str] = None,
    traceback: Optional[str] = None,
    when: Optional[float] = None,
    peer: Optional[str] = None,
) -> Dict[str, Any]:
    """Return a cause with the fields of the contract. ``peer`` is the second host of a lost link."""
    link = {} if peer is None else {"peer": peer}
    return {
        **link,
        "host": host,
        "rank": rank,
        "exit_code": exit_code,
        "signal": signal,
        "reason": reason,
        "message": " ".join(message.split()),
        "traceback": traceback,
        "time": notes.iso(time.time() if when is None else when),
    }


def failed(
    why: Dict[str, Any], *, victim: bool = False, when: Optional[float] = None, suspect: bool = False
) -> Outcome:
    return Outcome(FAILED, why, victim, time.time() if when is None else when, suspect)


def ended_early(host: str, rank: Optional[int], at: str, seconds: float) -> Dict[str, Any]:
    """Return the cause of a run in which every failed rank is a victim: ``rank`` ended with exit code 0 too early.

    ``rank``: ``None`` for every rank of ``host``. ``at``: when it ended (ISO 8601), ``seconds`` before the other ranks
    failed.
    """
    who = "every rank" if rank is None else "rank %d" % rank
    before = "%.0f s" % seconds if seconds >= 1 else "just"
    text = "%s on %s ended with exit code 0 at %s UTC, %s before the others failed" % (who, host, at[11:19], before)
    text += ": do all ranks run the same number of steps?"
    return dict(cause(host, EXITED, text, rank=rank, exit_code=0), time=at)


def list_candidates(cause: Optional[Dict[str, Any]], found: Sequence[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Return the other possible causes, one per rank and reason, cut to the size of the reserve."""
    kept: Dict[Tuple[Any, ...], Dict[str, Any]] = {}
    for one in ([cause] if cause else []) + list(found):
        kept.setdefault((one.get("host"), one.get("rank"), one.get("reason")), one)
    rest = list(kept.values())[1 if cause else 0 :][:MAX_CANDIDATES]
    return [dict(one, traceback=(one.get("traceback") or "")[-MAX_TRACEBACK:] or None) for one in rest]


def killed(host: str, by: str, *, when: Optional[float] = None) -> Outcome:
    why = cause(host, KILLED_BY_USER, "killed by %s" % (by or "a user"), when=when)
    return Outcome(KILLED, why, False, time.time() if when is None else when)
