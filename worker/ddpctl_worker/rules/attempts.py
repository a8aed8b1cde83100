"""Which attempt wrote a file: the order of attempts. Pure.

A job is started again and again. The controller counts these starts (``serial``), and the attempts of a start have
numbers. So each host knows which of two attempts is the later one, without a clock.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, NamedTuple

from ddpctl_worker.rules.entries import Files, Stamp


class AttemptId(NamedTuple):
    """The greater one began later. ``serial``: of the job's start, from 1; ``number``: of the attempt."""

    serial: int
    run: str
    number: int

    def to_json(self) -> Dict[str, Any]:
        return {"serial": self.serial, "run": self.run or None, "attempt": self.number}

    def __str__(self) -> str:
        return "attempt %d of run %s" % (self.number, self.run) if self.serial else "no run"


BEFORE_ANY = AttemptId(0, "", 0)  # of what was there before any run


def attempt_of(found: Mapping[str, Any]) -> AttemptId:
    """The attempt of a manifest, a record or a row. Raises KeyError, TypeError, ValueError: it names none."""
    serial, run, number = found["serial"], found["run"], found["attempt"]
    if not (type(serial) is int and type(number) is int and isinstance(run, (str, type(None)))):
        raise TypeError("an attempt is a serial, a run and a number")
    if serial < 0 or number < 0 or (run is None) is not (serial == 0):
        raise ValueError("no attempt has these numbers")
    return AttemptId(serial, run or "", number)


class Begun(NamedTuple):
    """The last attempt that began in a folder, the one before it, and what it found."""

    attempt: AttemptId = BEFORE_ANY
    before: AttemptId = BEFORE_ANY
    files: Mapping[str, Files] = {}

    def found(self, entry: str, path: str, stamp: Stamp) -> bool:
        """Whether a file was there as it is now when the attempt began."""
        return self.files.get(entry, {}).get(path) == stamp

    def writer(self, entry: str, files: Files) -> AttemptId:
        """The attempt that wrote the newest of these files."""
        old = all(self.found(entry, path, stamp) for path, stamp in files.items())
        return self.before if old else self.attempt
