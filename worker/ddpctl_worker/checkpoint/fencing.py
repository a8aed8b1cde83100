"""The last attempt that began on a host, in ``<folder>/.ddpctl/attempt``. The file is written before its ranks start:

    {"serial": 7, "run": id, "attempt": 2, "before": {"serial", "run", "attempt"}: the attempt before it,
     "files": {entry: {path within it: [size, mtime_ns, inode]}}: the files that were there when it began}

The file is the fence, too: an older attempt begins here no more, and its files get no manifest.
"""

from __future__ import annotations

import os
from typing import Optional

from ddpctl_worker.checkpoint.folder import list_entries
from ddpctl_worker.machine import fs
from ddpctl_worker.rules.attempts import AttemptId, BegunAttempt, attempt_of
from ddpctl_worker.rules.entries import FOLDER, Stamp
from ddpctl_worker.wire.channel import WorkerError
from ddpctl_worker.wire.contract import BAD_REQUEST

_NAME = "attempt"


def read_begun(folder: str) -> BegunAttempt:
    """Return the last attempt that began in ``folder``."""
    written = fs.read_optional(os.path.join(folder, FOLDER, _NAME))
    try:
        files = {
            str(entry): {str(name): Stamp(*map(int, stamp)) for name, stamp in known.items()}
            for entry, known in written["files"].items()
        }
        return BegunAttempt(attempt_of(written), attempt_of(written["before"]), files)
    except (KeyError, TypeError, ValueError, AttributeError):
        return BegunAttempt()


def begin(folder: str, attempt: AttemptId) -> None:
    """Record that ``attempt`` begins in ``folder``, before its ranks start.

    Raises:
        WorkerError: a newer attempt has begun here. OSError: it cannot be written.
    """
    known = require_newest(folder, attempt)
    if known.attempt == attempt:
        return
    value = {**attempt.to_json(), "before": known.attempt.to_json(), "files": list_entries(folder)}
    fs.private_dir(os.path.join(folder, FOLDER))
    fs.write_json(os.path.join(folder, FOLDER, _NAME), value)


def require_newest(folder: str, attempt: AttemptId) -> BegunAttempt:
    """Return the last attempt that began in ``folder``: ``attempt``, or an older attempt.

    Raises:
        WorkerError: a newer attempt has begun here.
    """
    known = read_begun(folder)
    if known.attempt > attempt:
        raise WorkerError(BAD_REQUEST, "a newer attempt has begun here: %s" % (known.attempt,), "start the job again")
    return known


def find_newer_attempt(folder: str, attempt: AttemptId) -> Optional[AttemptId]:
    """Return the newer attempt that has begun in ``folder`` since ``attempt`` began; ``None``: no newer attempt has."""
    newest = read_begun(folder).attempt
    return newest if newest > attempt else None
