"""Which attempt wrote a file: the order of attempts, and the one that has begun last on a host.

A job is started again and again. The controller counts these starts (``serial``), and the attempts of a start have
numbers, so of two attempts everybody knows which is the later one, without a clock. ``<folder>/.ddpctl/attempt`` holds
the last one that began on a host, written before its ranks start:

    {"serial": 7, "run": id, "attempt": 2, "before": {"serial", "run", "attempt"}: the one before it,
     "files": {entry: {path within it: [size, mtime_ns, inode]}}: what was there when it began}

It is the fence, too: no attempt that is older begins here any more, or gets a manifest.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Mapping, NamedTuple, Optional

from ddpctl_worker import fs
from ddpctl_worker.channel import WorkerError
from ddpctl_worker.checkpoint.entries import FOLDER, Files, Stamp, look
from ddpctl_worker.contract import BAD_REQUEST

NAME = "attempt"


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


def read_begun(folder: str) -> Begun:
    """The last attempt that began in ``folder``."""
    told = fs.read_optional(os.path.join(folder, FOLDER, NAME))
    try:
        files = {
            str(entry): {str(name): Stamp(*map(int, stamp)) for name, stamp in known.items()}
            for entry, known in told["files"].items()
        }
        return Begun(attempt_of(told), attempt_of(told["before"]), files)
    except (KeyError, TypeError, ValueError, AttributeError):
        return Begun()


def begin(folder: str, attempt: AttemptId) -> None:
    """Write down that ``attempt`` begins in ``folder``, before its ranks start.

    Raises:
        WorkerError: a newer attempt has begun here. OSError: it cannot be written.
    """
    known = read_begun(folder)
    if known.attempt > attempt:
        raise WorkerError(BAD_REQUEST, "a newer attempt has begun here: %s" % (known.attempt,), "start the job again")
    if known.attempt == attempt:
        return
    value = {**attempt.to_json(), "before": known.attempt.to_json(), "files": look(folder)}
    fs.private_dir(os.path.join(folder, FOLDER))
    fs.write_json(os.path.join(folder, FOLDER, NAME), value)


def fence(folder: str, attempt: AttemptId) -> Optional[AttemptId]:
    """The attempt that has begun in ``folder`` since ``attempt`` did; None: there is none."""
    newest = read_begun(folder).attempt
    return newest if newest > attempt else None
