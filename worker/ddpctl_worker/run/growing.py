"""Finds checkpoint files that grow while the run is being stopped: SIGKILL would cut off this save."""

from __future__ import annotations

import os
from typing import Dict, Iterator, Optional, Tuple

from ddpctl_worker.rules.entries import FOLDER as MANIFESTS
from ddpctl_worker.run.limits import GROWING_FILES

File = Tuple[str, int]  # path below the folder, and bytes


class GrowingFiles:
    """The files of a folder. Each look compares their sizes with the last look."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._sizes: Optional[Dict[str, int]] = None

    def look(self) -> Optional[File]:
        """Return the file that has grown most since the last look; None at the first look, and if no file has grown."""
        before, self._sizes = self._sizes, dict(self._files())
        if before is None:
            return None
        grown = {path: size - before.get(path, 0) for path, size in self._sizes.items()}
        most = max(grown, key=lambda path: grown[path], default=None)
        return (most, self._sizes[most]) if most is not None and grown[most] > 0 else None

    def _files(self) -> Iterator[File]:
        left = GROWING_FILES
        for folder, folders, names in os.walk(self._folder):
            folders[:] = [name for name in folders if name != MANIFESTS]
            for name in names[:left]:
                path = os.path.join(folder, name)
                try:
                    found = os.lstat(path)
                except OSError:  # renamed meanwhile
                    continue
                yield os.path.relpath(path, self._folder), found.st_size
            left -= len(names)
            if left <= 0:
                return
