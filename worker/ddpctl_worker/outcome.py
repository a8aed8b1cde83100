"""How a run ended on a node: the cause in the contract's words, and the exit record, which is written once."""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ddpctl_worker import record
from ddpctl_worker.contract import EXITED, FAILED, KILLED, KILLED_BY_USER, SCHEMA, SUCCEEDED
from ddpctl_worker.paths import RunPaths

GONE_S = 20.0  # a folder that is away for so long was removed; a disk may be mounted again before
PAUSE_S = 5.0  # at most, between two attempts to write
MAX_CANDIDATES = 16
MAX_TRACEBACK = 2 << 10  # of a candidate: the record must fit into the reserve of a full disk


class Outcome(NamedTuple):
    """A terminal state and its cause (null for success)."""

    state: str
    cause: Optional[Dict[str, Any]]
    victim: bool = False  # another node's failure brought this one down
    when: float = 0.0  # wall clock of the failure itself
    suspect: bool = False  # it may have failed: told because others did

    @property
    def early(self) -> bool:
        """It did not fail, but ended too early for the others."""
        return self.suspect and (self.cause or {}).get("exit_code") == 0


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
) -> Dict[str, Any]:
    """A cause as the contract fixes it."""
    return {
        "host": host,
        "rank": rank,
        "exit_code": exit_code,
        "signal": signal,
        "reason": reason,
        "message": " ".join(message.split()),
        "traceback": traceback,
        "time": record.iso(time.time() if when is None else when),
    }


def succeeded() -> Outcome:
    return Outcome(SUCCEEDED, None)


def failed(
    why: Dict[str, Any], *, victim: bool = False, when: Optional[float] = None, suspect: bool = False
) -> Outcome:
    return Outcome(FAILED, why, victim, time.time() if when is None else when, suspect)


def ended_early(host: str, rank: Optional[int], at: str, seconds: float) -> Dict[str, Any]:
    """The cause where all failures are those of peers: some rank (None: every one of ``host``) had ended with exit code
    0 at ``at`` (ISO 8601), so long before the others failed."""
    who = "every rank" if rank is None else "rank %d" % rank
    before = "%.0f s" % seconds if seconds >= 1 else "just"
    text = "%s on %s ended with exit code 0 at %s UTC, %s before the others failed" % (who, host, at[11:19], before)
    text += ": do all ranks run the same number of steps?"
    return dict(cause(host, EXITED, text, rank=rank, exit_code=0), time=at)


def others(cause: Optional[Dict[str, Any]], found: Sequence[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """What else may have been the cause: one entry a rank, with what its record has room for."""
    kept: Dict[Tuple[Any, ...], Dict[str, Any]] = {}
    for one in ([cause] if cause else []) + list(found):
        kept.setdefault((one.get("host"), one.get("rank"), one.get("reason")), one)
    rest = list(kept.values())[1 if cause else 0 :][:MAX_CANDIDATES]
    return [dict(one, traceback=(one.get("traceback") or "")[-MAX_TRACEBACK:] or None) for one in rest]


def killed(host: str, by: str, *, when: Optional[float] = None) -> Outcome:
    why = cause(host, KILLED_BY_USER, "killed by %s" % (by or "a user"), when=when)
    return Outcome(KILLED, why, False, time.time() if when is None else when)


def exit_record(
    outcome: Outcome,
    *,
    exit_code: Optional[int] = None,
    signalled: int = 0,
    forced: int = 0,
    leftover: int = 0,
    survivors: Optional[List[Dict[str, Any]]] = None,
    attempt: int = 1,
    dropped_lines: int = 0,
    ended: Optional[str] = None,
    candidates: Sequence[Dict[str, Any]] = (),
) -> Dict[str, Any]:
    """How a run ended, as exit.json says it; ``leftover`` counts what outlived the launcher and was ended."""
    return {
        "schema": SCHEMA,
        "state": outcome.state,
        "exit_code": exit_code,
        "cause": outcome.cause,
        "candidates": list(candidates),
        "ended": ended or record.now_iso(),
        "signalled": signalled,
        "forced": forced,
        "leftover": leftover,
        "survivors": survivors or [],
        "attempt": attempt,
        "dropped_lines": dropped_lines,
    }


def write(paths: RunPaths, outcome: Outcome, *, patience: float = 10.0, **numbers: Any) -> bool:
    """Write the exit record unless there is one; False when there was one. ``numbers`` are those of ``exit_record``.

    ``patience`` is how many seconds a disk that takes nothing is waited for.

    Raises:
        OSError: it took nothing until then.
    """
    body = exit_record(outcome, **numbers)
    deadline = time.monotonic() + patience
    while True:
        try:
            return save(paths, body)
        except OSError:
            if time.monotonic() >= deadline or not os.path.isdir(paths.node):
                raise
            time.sleep(0.5)


class Pen:
    """Writes an exit record however long the disk is away. A run whose folder was removed needs none."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._gone_since: Optional[float] = None
        self._pause = 0.2
        self._told = ""
        self.gone = GONE_S  # how long a folder must be away
        self.again_at = 0.0  # when the next attempt is due (monotonic)

    def wrote(self, body: Callable[[], Dict[str, Any]]) -> bool:
        """One attempt; True once there is a record, or no folder for one."""
        try:
            if os.path.isdir(self._paths.node):
                self._gone_since = None
                return os.path.exists(self._paths.exit) or save(self._paths, body()) or True
            now = time.monotonic()
            self._gone_since = self._gone_since or now
            if now - self._gone_since >= self.gone:
                return True
        except Exception as error:
            if str(error) != self._told:
                self._told = str(error)
                record.note("the run's end cannot be written down yet: %r" % error)
        self._pause = min(PAUSE_S, self._pause * 2)
        self.again_at = time.monotonic() + self._pause
        return False


def save(paths: RunPaths, body: Dict[str, Any]) -> bool:
    """One attempt to write the exit record; False when there was one."""
    try:
        first = record.write_once(paths.exit, body)
    except OSError:  # a full disk: this is what the reserve is for
        if not record.write_reserved(paths.reserve, paths.exit, body, once=True) and not os.path.exists(paths.exit):
            raise
        return True
    record.release_reserve(paths.reserve)
    return first
