"""Which files belong to one save, where a name is used for one save after the other.

``latest/rank_0.pt`` and ``latest/rank_1.pt`` look the same whether they are of one save or of two. So the keeper counts
how often the attempt has written each file, and only files with the same count are one save. Hosts compare these
counts, never their clocks. In a folder whose name has a step (``step_200/``) every save of an attempt is the same one.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Tuple

from ddpctl_worker.rules.attempts import Begun
from ddpctl_worker.rules.entries import Files, Stamp, is_of_torch, member_of, step_of

EARLIER = 0  # the save of a file that the attempt has not written


class SaveCounter:
    """Counts the writes of each file, from one look at the folder to the next.

    A change after the file was the same in two looks is a new write. A file that grows is still the same one. Any other
    change came too soon after the one before: writes may have been missed, so the count is not known from then on.
    """

    def __init__(self, begun: Begun, known: Mapping[str, Mapping[str, Tuple[int, int, Optional[int]]]]) -> None:
        """``known``: size, time and save of each file as an earlier look at this attempt has left them."""
        self._begun, self._known = begun, known
        self._files: Dict[Tuple[str, str], Tuple[Stamp, Optional[int], bool]] = {}  # stamp, count, whether at rest

    def see(self, found: Mapping[str, Files]) -> None:
        """The folder as it is now."""
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
        """The save of each file of an entry; EARLIER: an attempt before wrote it; None: the count is not known."""
        counts = {path: self._files[entry, path][1] if (entry, path) in self._files else None for path in files}
        if step_of(entry) is None and "" not in files:
            return counts
        return {path: EARLIER if count == EARLIER else 1 for path, count in counts.items()}


def newest_save(saves: Mapping[str, Optional[int]]) -> Optional[int]:
    """The save that the files of one host are at; None: it is not known."""
    if None in saves.values():
        return None
    return max((save for save in saves.values() if save is not None), default=EARLIER)


def left_behind(saves: Mapping[str, Optional[int]]) -> List[str]:
    """The files of one host that the newest save has not written yet.

    Shards and their index are not among them: complete.py compares these over all hosts. Nor are the files of ranks
    that an attempt before wrote: they may be ranks of other hosts. A file that was not written for longer never
    changes.
    """
    newest = newest_save(saves)
    if not newest:
        return []
    found = []
    for path, save in saves.items():
        if is_of_torch(path) or save is None or save == newest:
            continue
        behind = save > EARLIER if is_member(path) else save == newest - 1
        if behind:
            found.append(path)
    return sorted(found)


def is_member(path: str) -> bool:
    """Whether a file is of one rank, by its name."""
    return member_of(path) is not None
