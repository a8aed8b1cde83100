"""Folders with checkpoints of several hosts on this machine, and the run's certificate."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from ddpctl.environment.spread import Credentials, new_credentials
from ddpctl_worker.checkpoint import manifest
from ddpctl_worker.checkpoint.client import CheckpointClient
from ddpctl_worker.checkpoint.folder import list_entries
from ddpctl_worker.checkpoint.jobfolder import JobFolder
from ddpctl_worker.checkpoint.serve import CheckpointServer
from ddpctl_worker.machine.net import listen
from ddpctl_worker.rules import entries
from ddpctl_worker.rules.attempts import AttemptId
from ddpctl_worker.rules.complete import Manifest
from ddpctl_worker.store import relay

OF_JOB = {"cluster": "lab", "project": "exp", "job": "job"}  # what a record says of its job
JOB = "lab/exp/job"
NOW = AttemptId(100_000, "r", 1)  # the attempt that wrote the files without an age


def made(folder: Path, entry: str, host: str, attempt: AttemptId = NOW, files: entries.Files | None = None) -> Manifest:
    """A manifest of an entry as it is now, of the first save of an attempt."""
    files = files or list_entries(str(folder))[entry]
    paths = {path: manifest.file_of(str(folder), entry, path) for path in files}
    return manifest.make(paths, entry, host, files, attempt, dict.fromkeys(files, 1))


@cache
def credentials() -> Credentials:
    return new_credentials()


def tls(folder: Path, *, server: bool, who: Credentials | None = None) -> ssl.SSLContext:
    who = who or credentials()
    return relay.context(who.certificate, who.key, str(folder), server)


class Disk:
    """One host's base_dir."""

    def __init__(self, base: Path, host: str) -> None:
        base.mkdir(mode=0o700, exist_ok=True)
        self.base, self.host = base, host
        self._clients: list[CheckpointClient] = []
        self.folder = JobFolder(str(base), JOB, host)
        self.own = Path(self.folder.make(host))

    def save(
        self, entry: str, files: Mapping[str, bytes], *, age: float = 0.0, attempt: AttemptId | None = None
    ) -> Manifest:
        """Write an entry as the job would, and hash it. An entry with an age was written by an earlier run."""
        for name, data in files.items():
            path = Path(manifest.file_of(str(self.own), entry, name))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            os.utime(path, (time.time() - age, time.time() - age))
        return self.hashed(entry, attempt or NOW._replace(serial=NOW.serial - int(age)))

    def hashed(self, entry: str, attempt: AttemptId = NOW) -> Manifest:
        found = made(self.own, entry, self.host, attempt)
        manifest.write(str(self.own), found)
        return found

    def content(self, entry: str, writer: str | None = None) -> dict[str, bytes] | None:
        """Return the files of an entry, name -> content, or None while the entry has no manifest."""
        found = self.folder.manifests(writer or self.host).get(entry)
        if found is None:
            return None
        folder = self.folder.of(writer or self.host)
        return {name: Path(manifest.file_of(folder, entry, name)).read_bytes() for name in found["files"]}

    def serve(self) -> CheckpointServer:
        return CheckpointServer(self.folder, tls(self.base, server=True), listen(0))

    def client(self, host: str, port: int, who: Credentials | None = None) -> CheckpointClient:
        made = CheckpointClient(host, [("127.0.0.1", port)], tls(self.base, server=False, who=who))
        self._clients.append(made)
        return made

    def close(self) -> None:
        for one in self._clients:
            one.close()
