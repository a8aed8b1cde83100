"""How a run ended on a node: the cause in the contract's words, and the exit record, which is written once."""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from ddpctl_worker import record
from ddpctl_worker.contract import FAILED, KILLED, KILLED_BY_USER, SCHEMA, SUCCEEDED
from ddpctl_worker.paths import RunPaths

GONE_S = 20.0  # a folder that is away for so long was removed; a disk may be mounted again before
PAUSE_S = 5.0  # at most, between two attempts to write


class Outcome(NamedTuple):
    """A terminal state and its cause (null for success); ``victim``: another node's failure brought this one down."""

    state: str
    cause: Optional[Dict[str, Any]]
    victim: bool = False
    when: float = 0.0  # wall clock of the failure itself


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


def failed(why: Dict[str, Any], *, victim: bool = False, when: Optional[float] = None) -> Outcome:
    return Outcome(FAILED, why, victim, time.time() if when is None else when)


def killed(host: str, by: str) -> Outcome:
    return Outcome(KILLED, cause(host, KILLED_BY_USER, "killed by %s" % (by or "a user")), False, time.time())


def exit_record(
    outcome: Outcome,
    *,
    exit_code: Optional[int] = None,
    signalled: int = 0,
    forced: int = 0,
    survivors: Optional[List[Dict[str, Any]]] = None,
    attempt: int = 1,
    dropped_lines: int = 0,
) -> Dict[str, Any]:
    """How a run ended, as exit.json says it."""
    return {
        "schema": SCHEMA,
        "state": outcome.state,
        "exit_code": exit_code,
        "cause": outcome.cause,
        "ended": record.now_iso(),
        "signalled": signalled,
        "forced": forced,
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
