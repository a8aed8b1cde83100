"""The runs that were last started with a job's folder for checkpoints, and from where: checkpoints outlive runs.

They are in a file beside the folder: a script that finds anything in its folder may take it for a checkpoint.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping

from ddpctl_worker.checkpoint.limits import MOST_STARTS
from ddpctl_worker.machine import fs


def note_start(folder: str, run: Mapping[str, Any]) -> None:
    """Add the run to the starts on record for ``folder``, once.

    Raises:
        OSError: the record cannot be written.
    """
    known = starts_in(folder)
    if any(one["run"] == run["run"] for one in known):  # another attempt
        return
    made = {"run": run["run"], "origin": run.get("origin")}
    fs.write_json(_file_beside(folder), {"starts": [*known, made][-MOST_STARTS:]})


def starts_in(folder: str) -> List[Dict[str, Any]]:
    """The starts on record, oldest first: ``run`` and ``origin``."""
    return list(fs.read_optional(_file_beside(folder)).get("starts") or ())


def _file_beside(folder: str) -> str:
    parent, host = os.path.split(folder)
    return os.path.join(parent, ".%s.starts" % host)
