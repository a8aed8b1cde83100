"""What the keeper knows to be all there and has not hashed yet, in ``<folder>/.ddpctl/believed``.

    {"boot": the boot of this machine, "entries": {entry: {path within it: [size, mtime_ns, inode]}}}

That an entry came to rest while every rank lived, or that its run ended well, can only be seen once. To hash it may
take longer than the run, so it is written down before. It holds as long as no file has changed, and only for this
boot: after a power cut a file may have its size and its time, and not its content.
"""

from __future__ import annotations

import os
from typing import Dict, Iterable

from ddpctl_worker.machine import fs, proc
from ddpctl_worker.rules.entries import FOLDER, Files, Stamp

NAME = "believed"


class Beliefs:
    """Those of one folder. A disk that does not take them raises OSError; they hold for this process all the same."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, FOLDER, NAME)
        self._boot = proc.boot_id()
        self._entries = self._read()

    def hold(self, entry: str, files: Files) -> bool:
        """Whether these very files are all of it."""
        return bool(files) and self._entries.get(entry) == files

    def note(self, found: Dict[str, Files], standing: Iterable[str]) -> None:
        """These are. What is none of ``standing`` has been hashed, has changed or is gone."""
        if all(self.hold(entry, files) for entry, files in found.items()):
            return
        wanted = set(standing)
        self._entries = {entry: files for entry, files in self._entries.items() if entry in wanted}
        self._entries.update(found)
        self._write()

    def drop(self, entries: Iterable[str]) -> None:
        """Of these it is not so after all."""
        gone = [entry for entry in entries if self._entries.pop(entry, None) is not None]
        if gone:
            self._write()

    def _write(self) -> None:
        fs.private_dir(os.path.dirname(self._path))
        fs.write_json(self._path, {"boot": self._boot, "entries": self._entries})

    def _read(self) -> Dict[str, Files]:
        told = fs.read_optional(self._path)
        if told.get("boot") != self._boot:
            return {}
        try:
            return {
                str(entry): {str(name): Stamp(*map(int, stamp)) for name, stamp in files.items()}
                for entry, files in told["entries"].items()
            }
        except (KeyError, TypeError, ValueError, AttributeError):
            return {}
