"""Versions that the keeper has accepted and not hashed yet, in ``<folder>/.ddpctl/believed``.

    {"boot": the boot of this machine, "entries": {entry: {path within it: [size, mtime_ns, inode]}}}

The keeper can see only once that an entry stopped changing while every rank lived, or that the run ended well. Hashing
may take longer than the run, so the keeper notes the version first. A note holds as long as no file has changed, and on
this boot only: after a power cut a file may have its size and its time, but not its content.
"""

from __future__ import annotations

import os
from typing import Dict, Iterable

from ddpctl_worker.machine import fs, proc
from ddpctl_worker.rules.entries import FOLDER, Files, Stamp

NAME = "believed"


class AcceptedEntries:
    """The noted versions of one folder. They hold for this process even if the disk does not take them.

    Every method that writes raises OSError or WorkerError if the disk or its folder does not take the notes.
    """

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, FOLDER, NAME)
        self._boot = proc.boot_id()
        self._entries = self._read()

    def contains(self, entry: str, files: Files) -> bool:
        """Whether exactly these files were noted as the whole entry."""
        return bool(files) and self._entries.get(entry) == files

    def accept(self, found: Dict[str, Files], standing: Iterable[str]) -> None:
        """Note whole versions. Notes of entries outside ``standing`` go: hashed, changed or removed."""
        if all(self.contains(entry, files) for entry, files in found.items()):
            return
        wanted = set(standing)
        self._entries = {entry: files for entry, files in self._entries.items() if entry in wanted}
        self._entries.update(found)
        self._write()

    def withdraw(self, entries: Iterable[str]) -> None:
        """Remove the notes of ``entries``."""
        gone = [entry for entry in entries if self._entries.pop(entry, None) is not None]
        if gone:
            self._write()

    def _write(self) -> None:
        fs.private_dir(os.path.dirname(self._path))
        fs.write_json(self._path, {"boot": self._boot, "entries": self._entries})

    def _read(self) -> Dict[str, Files]:
        notes = fs.read_optional(self._path)
        if notes.get("boot") != self._boot:
            return {}
        try:
            return {
                str(entry): {str(name): Stamp(*map(int, stamp)) for name, stamp in files.items()}
                for entry, files in notes["entries"].items()
            }
        except (KeyError, TypeError, ValueError, AttributeError):
            return {}
