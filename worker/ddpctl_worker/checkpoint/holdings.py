"""The store_has verb: which files and checkpoints of a job this host has already."""

from __future__ import annotations

import os
from typing import Any, Dict

from ddpctl_worker.checkpoint.jobfolder import JobFolder
from ddpctl_worker.checkpoint.listing import last_serial, summarize
from ddpctl_worker.checkpoint.starts import starts_in
from ddpctl_worker.machine import fs
from ddpctl_worker.record import paths
from ddpctl_worker.store.blobs import blob_size, discard_if_corrupt, unfinished
from ddpctl_worker.wire.channel import Channel


def store_has(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """``{"hashes": [...], "verify": bool}`` -> ``{"have", "sizes": {hash: bytes}, "partial": {hash: bytes}, "free"}``.

    With ``verify`` each blob is read again; a damaged blob is removed and not in ``have``. With a ``job_id`` the answer
    has three more fields: ``checkpoints`` of that job in short (``listing.summarize``), the last ``starts`` of the job
    here, and the ``serial`` number of its newest start.
    """
    base_dir = request["base_dir"]
    folder = fs.own_folder(base_dir, "store")
    sizes: Dict[str, int] = {}
    partial: Dict[str, int] = {}
    for sha256 in request["hashes"]:
        size = blob_size(base_dir, sha256)
        if size is not None and not (request.get("verify") and discard_if_corrupt(base_dir, sha256)):
            sizes[sha256] = size
            continue
        parts = unfinished(folder, sha256)
        if parts:
            partial[sha256] = os.lstat(parts[0]).st_size
    info = os.statvfs(folder)
    found = {"have": list(sizes), "sizes": sizes, "partial": partial, "free": info.f_bavail * info.f_frsize}
    if request.get("job_id"):
        base, host, job = paths.base_of(request), request["host"], request["job_id"]
        found["checkpoints"] = summarize(base, job)
        found["starts"] = starts_in(JobFolder(base, job, host).of(host))
        found["serial"] = last_serial(base, job)
    return found
