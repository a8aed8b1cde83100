"""The checkpoints of a job on this machine, with or without a run: the verbs ``checkpoints`` and ``set_aside``."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Mapping, Tuple

from ddpctl_worker.checkpoint import manifest
from ddpctl_worker.checkpoint.fencing import read_begun
from ddpctl_worker.checkpoint.folder import list_entries
from ddpctl_worker.checkpoint.jobfolder import read_valid_manifests
from ddpctl_worker.machine import fs
from ddpctl_worker.machine.notes import iso
from ddpctl_worker.record import paths
from ddpctl_worker.record.status import runs_at_work
from ddpctl_worker.rules.attempts import BEFORE_ANY, attempt_of
from ddpctl_worker.rules.choice import latest, newest_of_series
from ddpctl_worker.rules.complete import Manifest, is_whole, sort_by_time
from ddpctl_worker.rules.entries import Files, step_of
from ddpctl_worker.wire.channel import Channel, WorkerError
from ddpctl_worker.wire.contract import BAD_REQUEST, LIVE

_WHEN = re.compile(r"[0-9]{8}T[0-9]{6}Z\Z")


def checkpoints(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """Return {"manifests": manifests whose files are here unchanged, own and copies, "unknown": entries without a
    manifest of their present files: a rank is writing them, or their writer was killed}."""
    base = paths.base_of(request)
    manifests, unknown = read_checkpoints(paths.checkpoints_dir(base, str(request.get("job_id") or "")))
    return {"manifests": manifests, "unknown": unknown}


def set_aside(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """Rename the folder of the job's checkpoints to a name that no job can have; return {"name": the new name, or null
    if there is no folder}. ``when`` is equal on every host, so hosts that share a base_dir ask for the same rename.

    Raises:
        WorkerError: LIVE, a run of the job is live here: another controller may have started it just now.
    """
    base, job = paths.base_of(request), str(request.get("job_id") or "")
    top = paths.checkpoints_dir(base, job)
    when = str(request.get("when") or "")
    if not _WHEN.match(when):
        raise WorkerError(BAD_REQUEST, "%r is no time" % when)
    live = runs_at_work(base, request["host"], job)
    if live:
        raise WorkerError(LIVE, "run %s is live here" % live[-1], "ddpctl kill %s, or start without --fresh" % live[-1])
    aside = "%s@%s" % (top, when)
    try:
        os.rename(top, aside)
    except FileNotFoundError:
        return {"name": os.path.basename(aside) if os.path.isdir(aside) else None}
    fs.sync_folder(os.path.dirname(top))
    return {"name": os.path.basename(aside)}


def read_checkpoints(top: str) -> Tuple[List[Manifest], List[Dict[str, Any]]]:
    """Return the valid manifests in the folder of a job, of all hosts, and the entries that no manifest fits.

    A replaced entry may be in both: its manifest is that of the pinned version.
    """
    manifests: List[Manifest] = []
    unknown: List[Dict[str, Any]] = []
    for host in _hosts(top):
        folder = os.path.join(top, host)
        found = list_entries(folder)
        good = read_valid_manifests(folder, host)
        manifests += good.values()
        new = [entry for entry in sorted(found) if entry not in good or not manifest.fits(good[entry], found[entry])]
        unknown += [_unknown(host, entry, found[entry]) for entry in new]
    return manifests, unknown


def summarize(base: str, job: str) -> List[Dict[str, Any]]:
    """Return the checkpoints of a job in short, for ``choice.all_have``."""
    manifests, unknown = read_checkpoints(paths.checkpoints_dir(base, job))
    chosen = {one.entry for one in newest_of_series(manifests)}
    last = latest([one["entry"] for one in sort_by_time(manifests)])
    asked = {one["entry"] for one in manifests if not is_whole(one)} | (last - chosen)
    asked |= {one["entry"] for one in unknown}
    return [_row(one, "" if one["entry"] in asked else one["version"]) for one in manifests] + [
        _row({**one, **BEFORE_ANY.to_json(), "clock": one["host"]}, "") for one in unknown
    ]


def _row(one: Mapping[str, Any], version: str) -> Dict[str, Any]:
    kept = {name: one[name] for name in ("entry", "time", "clock", "serial", "run", "attempt")}
    return {"writer": one["host"], "version": version, **kept}


def last_serial(base: str, job: str) -> int:
    """The number of the newest start of the job that this machine knows of; 0: it knows none."""
    top = paths.checkpoints_dir(base, job)
    folders = [os.path.join(top, host) for host in _hosts(top)]
    known = [attempt_of(one).serial for folder in folders for one in manifest.read_all(folder)]
    return max([*known, *(read_begun(folder).attempt.serial for folder in folders)], default=0)


def _hosts(top: str) -> List[str]:
    try:
        return sorted(name for name in os.listdir(top) if os.path.isdir(os.path.join(top, name)))
    except FileNotFoundError:
        return []


def _unknown(host: str, entry: str, files: Files) -> Dict[str, Any]:
    return {
        "entry": entry,
        "host": host,
        "step": step_of(entry),
        "time": iso(max(stamp.mtime_ns for stamp in files.values()) / 1e9),
        "size": sum(stamp.size for stamp in files.values()),
    }
