"""The last starts of runs with a job's folder for checkpoints, with their origins: checkpoints outlive runs.

The list is a file beside the folder: a script may take any file in its folder for a checkpoint.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List

from ddpctl_worker.checkpoint.limits import MOST_STARTS
from ddpctl_worker.machine import fs
from ddpctl_worker.record.runrecord import RunRecord


def note_start(folder: str, run: RunRecord) -> None:
    """Record the start of a run with ``folder``, once per run.

    Raises:
        OSError: the record cannot be written.
    """
    known = starts_in(folder)
    if any(one["run"] == run["run"] for one in known):  # another attempt
        return
    made = {"run": run["run"], "origin": run.get("origin")}
    fs.write_json(_file_beside(folder), {"starts": [*known, made][-MOST_STARTS:]})


def starts_in(folder: str) -> List[Dict[str, Any]]:
    """Return the recorded starts, oldest first: ``run`` and ``origin``."""
    return list(fs.read_optional(_file_beside(folder)).get("starts") or ())


def _file_beside(folder: str) -> str:
    parent, host = os.path.split(folder)
    return os.path.join(parent, ".%s.starts" % host)
