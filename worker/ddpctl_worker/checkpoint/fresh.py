"""New checkpoints in a folder, found without reading a file.

A checkpoint is new if it was written later than every checkpoint that was there before. Only the clock of the file
system counts. Another name for a new checkpoint is a change of it.
"""

from __future__ import annotations

import time
from typing import Dict, Optional, Tuple

from ddpctl_worker.checkpoint.folder import list_entries
from ddpctl_worker.checkpoint.limits import STABLE_S
from ddpctl_worker.rules.entries import METADATA, SHARD, Files


class NewestSave:
    """Remembers the newest checkpoint at its construction."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._before = newest(folder)
        self._seen: Dict[Tuple[str, int], float] = {}  # name and time -> since when (monotonic)

    def look(self) -> Optional[str]:
        """Return the name of a new checkpoint; ``None`` if there is no new checkpoint, or while a new checkpoint still
        changes: a script may save several files."""
        now = time.monotonic()
        found = {name: files for name, files in list_entries(self._folder).items() if _may_be_whole(files)}
        new = {(name, when) for name, when in _times(found).items() if when > self._before}
        self._seen = {one: self._seen.get(one, now) for one in new}
        if any(now - since < STABLE_S for since in self._seen.values()):
            return None
        return next((name for name, _ in self._seen), None)

    @property
    def changing(self) -> bool:
        """Whether a new checkpoint was still changing at the last look."""
        return any(time.monotonic() - since < STABLE_S for since in self._seen.values())


def newest(folder: str) -> int:
    """Return the time of the newest checkpoint in ``folder`` (ns since 1970); 0 for an empty folder."""
    return max(_times(list_entries(folder)).values(), default=0)


def _times(found: Dict[str, Files]) -> Dict[str, int]:
    return {name: max(stamp.mtime_ns for stamp in files.values()) for name, files in found.items()}


def _may_be_whole(files: Files) -> bool:
    """Whether these files may be a whole checkpoint. Shards of torch.distributed.checkpoint count only with the index,
    which is written after the shards of all hosts."""
    names = {name.rpartition("/")[2] for name in files}
    return METADATA in names or not any(name.endswith(SHARD) for name in names)
