"""What is new in a folder for checkpoints, as far as this host can tell without reading a file.

New is what was written later than everything that was there before: by the clock of the file system alone, and whatever
gets another name meanwhile.
"""

from __future__ import annotations

import time
from typing import Dict, Optional, Tuple

from ddpctl_worker.checkpoint.folder import list_entries
from ddpctl_worker.checkpoint.limits import STABLE_S
from ddpctl_worker.rules.entries import METADATA, SHARD, Files


class Fresh:
    """Knows what was there when it was made."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._before = newest(folder)
        self._seen: Dict[Tuple[str, int], float] = {}  # name and time -> since when (monotonic)

    def look(self) -> Optional[str]:
        """The name of a new checkpoint; None while there is none, or while any of the new ones still changes: a script
        may save several files."""
        now = time.monotonic()
        found = {name: files for name, files in list_entries(self._folder).items() if _may_be_whole(files)}
        new = {(name, when) for name, when in _times(found).items() if when > self._before}
        self._seen = {one: self._seen.get(one, now) for one in new}
        if any(now - since < STABLE_S for since in self._seen.values()):
            return None
        return next((name for name, _ in self._seen), None)

    @property
    def changing(self) -> bool:
        """Whether something new was seen that had not come to rest at the last look."""
        return any(time.monotonic() - since < STABLE_S for since in self._seen.values())


def newest(folder: str) -> int:
    """When the latest checkpoint in ``folder`` was written (ns since 1970); 0 where there is none."""
    return max(_times(list_entries(folder)).values(), default=0)


def _times(found: Dict[str, Files]) -> Dict[str, int]:
    return {name: max(stamp.mtime_ns for stamp in files.values()) for name, files in found.items()}


def _may_be_whole(files: Files) -> bool:
    """Shards of torch.distributed.checkpoint count on the index's host alone: it comes after those of all hosts."""
    names = {name.rpartition("/")[2] for name in files}
    return METADATA in names or not any(name.endswith(SHARD) for name in names)
