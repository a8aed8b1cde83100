"""The runs that were last started with a job's folder for checkpoints, and from where: checkpoints outlive runs."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping

from ddpctl_worker import fs
from ddpctl_worker.checkpoint.entries import FOLDER
from ddpctl_worker.notes import iso

MOST = 50  # starts on record: a checkpoint that is older than all of them has no known run
_FILE = "starts"  # no ending: it is no manifest


def note_start(folder: str, run: Mapping[str, Any], now: float) -> None:
    """Add the run to the starts on record in ``folder``, once. ``now``: in seconds since 1970.

    Raises:
        OSError: the record cannot be written.
    """
    known = starts_in(folder)
    if any(one["run"] == run["run"] for one in known):  # another attempt
        return
    made = {"run": run["run"], "since": iso(now), "origin": run.get("origin")}
    fs.private_dir(os.path.join(folder, FOLDER))
    fs.write_json(os.path.join(folder, FOLDER, _FILE), {"starts": [*known, made][-MOST:]})


def starts_in(folder: str) -> List[Dict[str, Any]]:
    """The starts on record, oldest first: ``run``, ``since`` (ISO 8601, by this host's clock), ``origin``."""
    return list(fs.read_optional(os.path.join(folder, FOLDER, _FILE)).get("starts") or ())
