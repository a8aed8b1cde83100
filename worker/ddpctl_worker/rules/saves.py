"""Decides which files belong to the same save, if a job saves under the same name again and again.

``latest/rank_0.pt`` and ``latest/rank_1.pt`` look alike whether they are of the same save or of two. So the keeper
counts how often the attempt has written each file; files with the same count are the same save. Hosts compare these
counts, never their clocks. In a folder whose name has a step (``step_200/``) all files of an attempt are the same save.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Tuple

from ddpctl_worker.rules.attempts import BegunAttempt
from ddpctl_worker.rules.entries import Files, Stamp, is_of_torch, member_of, step_of

EARLIER = 0  # the save number of a file that an earlier attempt has written


class SaveCounter:
    """Counts the writes of each file, from look to look at the folder.

    - A change after two equal looks is a new write.
    - A file that only grew is still the same write.
    - Any other change came too soon: a write may have been missed, so the count is unknown from then on.
    """

    def __init__(self, begun: BegunAttempt, known: Mapping[str, Mapping[str, Tuple[int, int, Optional[int]]]]) -> None:
        """``known``: size, time and save of each file, from an earlier look during this attempt."""
        self._begun, self._known = begun, known
        self._files: Dict[Tuple[str, str], Tuple[Stamp, Optional[int], bool]] = {}  # stamp, count, whether at rest

    def see(self, found: Mapping[str, Files]) -> None:
        """Take in the present state of the folder."""
        self._files = {
            (entry, path): self._seen(entry, path, stamp)
            for entry, files in found.items()
            for path, stamp in files.items()
        }

    def _seen(self, entry: str, path: str, stamp: Stamp) -> Tuple[Stamp, Optional[int], bool]:
        before = self._files.get((entry, path))
        if before is None:
            return stamp, self._first(entry, path, stamp), False
        old, count, rested = before
        if old == stamp:
            return stamp, count, True
        if rested:
            return stamp, None if count is None else count + 1, False
        grows = old.inode == stamp.inode and stamp.size > old.size
        return stamp, count if grows else None, False

    def _first(self, entry: str, path: str, stamp: Stamp) -> Optional[int]:
        if self._begun.found(entry, path, stamp):
            return EARLIER
        if entry not in self._known:
            return 1
        size, mtime_ns, save = self._known[entry].get(path, (0, 0, 0))
        if (size, mtime_ns) == (stamp.size, stamp.mtime_ns):
            return save
        return None if path in self._known[entry] else 1

    def of(self, entry: str, files: Files) -> Dict[str, Optional[int]]:
        """Return the save of each file of an entry. EARLIER: an earlier attempt wrote it. ``None``: the count is not
        known.
        """
        counts = {path: self._files[entry, path][1] if (entry, path) in self._files else None for path in files}
        if step_of(entry) is None and "" not in files:
            return counts
        return {path: EARLIER if count == EARLIER else 1 for path, count in counts.items()}


def find_newest_save(saves: Mapping[str, Optional[int]]) -> Optional[int]:
    """Return the newest save among the files of one host; ``None`` if it is not known."""
    if None in saves.values():
        return None
    return max((save for save in saves.values() if save is not None), default=EARLIER)


def find_left_behind(saves: Mapping[str, Optional[int]]) -> List[str]:
    """Return the files of one host that the newest save has not written yet.

    - Shards and their index are left out: complete.py compares them over all hosts.
    - Files of ranks that an earlier attempt wrote are left out: these ranks may be on other hosts now.
    - A file of no rank is left out if it missed more than the newest save: it never changes.
    """
    newest = find_newest_save(saves)
    if not newest:
        return []
    paths = []
    for path, save in saves.items():
        if is_of_torch(path) or save is None or save == newest:
            continue
        behind = save > EARLIER if is_member(path) else save == newest - 1
        if behind:
            paths.append(path)
    return sorted(paths)


def is_member(path: str) -> bool:
    """Return whether a file belongs to one rank or shard, by its name."""
    return member_of(path) is not None
