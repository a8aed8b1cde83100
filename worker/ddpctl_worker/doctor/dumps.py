"""The files that torch writes when a collective of NCCL times out, a file for each rank.

torch names a file by a stem and the rank. ``doctor/rank/sitecustomize.py`` puts the stem into the run's folder. If the
job's environment sets another stem, ``keep`` copies the files from there when the run ends, because the next run would
overwrite them.
"""

from __future__ import annotations

import math
import os
import stat
import time
from typing import Iterable, List, Mapping, Optional

from ddpctl_worker.doctor.limits import DUMP_BYTES
from ddpctl_worker.rules import flight

STEMS = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_PREFIX = "rank_"


def users_stems(env: Mapping[str, str], cwd: str) -> List[str]:
    """Return the stems that the job's environment sets; empty if ddpctl sets the stem."""
    return [os.path.join(cwd, env[name]) for name in STEMS if env.get(name)]


def copy_dumps(stems: Iterable[str], ranks: Iterable[int], since: float, folder: str) -> List[str]:
    """Copy to ``folder`` the newest file that torch has written for each of ``ranks`` since ``since`` (Unix time).

    Returns the files that could not be copied, and why.
    """
    left_out = []
    for rank in ranks:
        found = [path for path in ("%s%d" % (stem, rank) for stem in stems) if _modified(path) >= since]
        if found:
            path = max(found, key=_modified)
            try:
                _copy(path, os.path.join(folder, _PREFIX + str(rank)))
            except (OSError, ValueError) as error:
                left_out.append("%s: %s" % (path, getattr(error, "strerror", None) or error))
    return left_out


def is_too_large(folder: str) -> List[str]:
    """Return the dumps in ``folder`` that are too large to be fetched or read, each with the reason."""
    return ["%s: %s" % (path, _LARGE) for path in _all(folder) if os.path.getsize(path) > DUMP_BYTES]


def list_dumps(folder: str) -> List[str]:
    """Return the paths of all dumps that are not too large."""
    return [path for path in _all(folder) if os.path.getsize(path) <= DUMP_BYTES]


def read_dump(folder: str, rank: int, until: float = math.inf) -> Optional[List[flight.Entry]]:
    """Return the collectives in a rank's dump, or ``None`` without a dump.

    Raises OSError, ValueError: the dump cannot be read, or the monotonic clock is past ``until``.
    """
    try:
        data = _content(os.path.join(folder, _PREFIX + str(rank)))
    except FileNotFoundError:
        return None
    if time.monotonic() > until:
        raise ValueError("not read, the other ranks' took too long")
    return flight.parse_dump(data)


_LARGE = "larger than %d MiB" % (DUMP_BYTES >> 20)


def _all(folder: str) -> List[str]:
    try:
        found = sorted(os.listdir(folder))
    except FileNotFoundError:  # a run without the doctor
        return []
    paths = (os.path.join(folder, name) for name in found if not name.startswith("."))
    return [path for path in paths if os.path.isfile(path) and not os.path.islink(path)]


def _modified(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _copy(source: str, target: str) -> None:
    data = _content(source)
    aside = os.path.join(os.path.dirname(target), ".new")
    with open(aside, "wb") as file:
        file.write(data)
    os.replace(aside, target)


def _content(path: str) -> bytes:
    """Raises OSError; ValueError: the path is not a file of this user, or too large."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise ValueError("no file of this user's")
        data = file.read(DUMP_BYTES + 1)
    if len(data) > DUMP_BYTES:
        raise ValueError(_LARGE)
    return data
