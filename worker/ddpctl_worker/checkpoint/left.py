"""What an ended run has left in the place of a link of ``checkpoint.paths``, because its keeper did not live to see it.

It is newer than what the job has, and nobody looks into the folder of an ended run again. So it gets to the job's
folder before the next start, and before the run is removed. That happens once for each run: what a user has set aside
since (``up --fresh``) does not come back.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from typing import Dict

from ddpctl_worker import fs
from ddpctl_worker.checkpoint import links
from ddpctl_worker.checkpoint.whole import whole
from ddpctl_worker.contract import SUCCEEDED
from ddpctl_worker.paths import RunPaths


def tied(paths: RunPaths) -> Dict[str, str]:
    """The links of a run, and where they lead; none where nothing of it is left to be looked at."""
    if os.path.exists(paths.adopted):
        return {}
    return dict(fs.read_optional(paths.newest().state).get("tied") or {})


def adopt_left(paths: RunPaths, *, removing: bool = False) -> None:
    """For a run that has ended. What does not say whether it is cut counts only if the run succeeded; ``removing``: it
    is set aside otherwise.

    Raises:
        OSError: something cannot be brought over.
    """
    found = tied(paths)
    succeeded = fs.read_optional(paths.newest().exit).get("state") == SUCCEEDED
    settled = True
    for here, there in found.items():
        if not _is_newer(here, there):
            continue
        said = whole(here)
        if said or (said is None and succeeded):
            links.adopt(here, there)
        elif said is None and removing:
            _set_aside(here, there)
        elif said is None:
            settled = False
    if found and settled:
        fs.write_json(paths.adopted, {})


def _is_newer(here: str, there: str) -> bool:
    try:
        found = os.lstat(here)
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISREG(found.st_mode) or not found.st_size or not os.path.isdir(os.path.dirname(there)):
        return False
    if not os.path.lexists(there):
        return True
    other = os.lstat(there)
    return stat.S_ISREG(other.st_mode) and not os.path.samestat(found, other) and other.st_mtime_ns < found.st_mtime_ns


def _set_aside(here: str, there: str) -> None:
    """Under a name that is no checkpoint's."""
    when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    parent, name = os.path.split(there)
    aside = os.path.join(parent, ".%s.aside-%s.%s" % (name, when, os.urandom(4).hex()))
    try:
        os.link(here, aside)
    except OSError:  # another file system, or one without hard links
        shutil.copy2(here, aside)
