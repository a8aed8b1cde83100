"""Decides which attempt wrote a file, and which of two attempts is later. Pure.

A job is started again and again. The controller counts these starts (``serial``), and the attempts of one start are
numbered. So every host knows the later of two attempts without a clock.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, NamedTuple

from ddpctl_worker.rules.entries import Files, Stamp


class AttemptId(NamedTuple):
    """An attempt of a job; the greater id began later. ``serial`` counts the starts of the job from 1, ``number`` the
    attempts of one start.
    """

    serial: int
    run: str
    number: int

    def to_json(self) -> Dict[str, Any]:
        return {"serial": self.serial, "run": self.run or None, "attempt": self.number}

    def __str__(self) -> str:
        return "attempt %d of run %s" % (self.number, self.run) if self.serial else "no run"


BEFORE_ANY = AttemptId(0, "", 0)  # the writer of files that are older than the first run


def attempt_of(found: Mapping[str, Any]) -> AttemptId:
    """Return the attempt that a manifest, a record or a row names.

    Raises: KeyError, TypeError, ValueError: the fields name no attempt.
    """
    serial, run, number = found["serial"], found["run"], found["attempt"]
    if not (type(serial) is int and type(number) is int and isinstance(run, (str, type(None)))):
        raise TypeError("an attempt is a serial, a run and a number")
    if serial < 0 or number < 0 or (run is None) is not (serial == 0):
        raise ValueError("no attempt has these numbers")
    return AttemptId(serial, run or "", number)


class BegunAttempt(NamedTuple):
    """The last attempt that began in a folder, the attempt before it, and the files that were there when it began."""

    attempt: AttemptId = BEFORE_ANY
    is_older: AttemptId = BEFORE_ANY
    files: Mapping[str, Files] = {}

    def found(self, entry: str, path: str, stamp: Stamp) -> bool:
        """Return whether the file has not changed since the attempt began."""
        return self.files.get(entry, {}).get(path) == stamp

    def writer(self, entry: str, files: Files) -> AttemptId:
        """Return the attempt that wrote the newest of these files."""
        old = all(self.found(entry, path, stamp) for path, stamp in files.items())
        return self.is_older if old else self.attempt
