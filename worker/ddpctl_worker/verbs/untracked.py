"""The untracked verb: files that a run's script wrote into its working folder and that no declared output covers.

``ddpctl fetch`` leaves them on the node. A file counts if it has changed since the supervisor took the run on: the code
was in place by then. Hidden files, Python's caches and symbolic links do not count. The look is cut off after
MOST_ENTRIES names or UNTRACKED_S seconds: the working folder may be a home folder, or on a slow disk.
"""

from __future__ import annotations

import heapq
import os
import time
from collections import deque
from fnmatch import fnmatchcase
from typing import Any, Deque, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from ddpctl_worker.machine import fs
from ddpctl_worker.record.paths import RunPaths, base_of
from ddpctl_worker.record.record import named_by
from ddpctl_worker.run.launcher import folders_of, place
from ddpctl_worker.verbs.fetch import printable
from ddpctl_worker.verbs.limits import LARGEST_FILES, MOST_ENTRIES, UNTRACKED_S
from ddpctl_worker.wire.channel import Channel

_CACHES = frozenset({"__pycache__"})


def untracked(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """The verb: ``folder``, the working folder, or null where the run never had one here; how many ``files`` stay in it
    and their ``bytes``; the ``largest`` as [name, bytes]; ``whole``: false if the look was cut off."""
    paths, run = named_by(request)
    root, since = _working_folder(paths), _begun(paths)
    if root is None or since is None:
        return {"folder": None, "files": 0, "bytes": 0, "largest": [], "whole": True}
    kept = (run.get("checkpoint") or {}).get("paths") or ()
    wanted = [*(run.get("outputs") or ()), *kept]
    covering = list(_parts_below(root, (place(os.path.expanduser(str(one)), folders_of(paths)) for one in wanted)))
    walk = _Walk(root, since, covering, os.path.realpath(base_of(request)))
    found = [(info.st_size, name) for name, info in walk.files()]
    largest = heapq.nlargest(LARGEST_FILES, found)
    return {
        "folder": root,
        "files": len(found),
        "bytes": sum(size for size, _ in found),
        "largest": [[printable(name), size] for size, name in largest],
        "whole": walk.whole,
    }


def _working_folder(paths: RunPaths) -> Optional[str]:
    cwd = fs.read_optional(paths.newest().state).get("cwd")
    return os.path.realpath(cwd) if isinstance(cwd, str) else None


def _begun(paths: RunPaths) -> Optional[int]:
    """When the supervisor of the first attempt took the run on (ns): all of the code was there before."""
    first = [*paths.attempts(), paths][0]
    try:
        return os.stat(first.claim).st_ctime_ns
    except FileNotFoundError:
        return None


def _parts_below(root: str, outputs: Iterable[str]) -> Iterator[List[str]]:
    """The outputs that lie below ``root``, split at each slash."""
    for one in outputs:
        path = os.path.normpath(os.path.join(root, one))
        if path == root:
            yield []
        elif path.startswith(root + os.sep):
            yield path[len(root) + 1 :].split(os.sep)


class _Walk:
    """One walk through the folder ``root``: the top first. ``since``: ns; ``covering``: outputs, as their parts;
    ``apart``: a folder that is left out, ddpctl's own."""

    def __init__(self, root: str, since: int, covering: Sequence[Sequence[str]], apart: str) -> None:
        self._root, self._since, self._covering, self._apart = root, since, covering, apart
        self.whole = True

    def files(self) -> Iterator[Tuple[str, os.stat_result]]:
        """The files that no output covers: their names below ``root``."""
        until, looked = time.monotonic() + UNTRACKED_S, 0
        folders: Deque[Tuple[str, ...]] = deque([()])
        while folders:
            parts = folders.popleft()
            for entry in self._entries(parts):
                looked += 1
                if looked > MOST_ENTRIES or time.monotonic() > until:
                    self.whole = False
                    return
                name = (*parts, entry.name)
                if entry.name.startswith(".") or entry.name in _CACHES or self._is_covered(name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(name)
                elif entry.is_file(follow_symlinks=False):
                    info = _info(entry)
                    if info is not None and info.st_ctime_ns > self._since:
                        yield os.path.join(*name), info

    def _entries(self, parts: Tuple[str, ...]) -> Iterator["os.DirEntry[str]"]:
        folder = os.path.join(self._root, *parts)
        if parts and folder == self._apart:
            return
        try:
            with os.scandir(folder) as entries:
                yield from entries
        except OSError:  # removed meanwhile, or closed to us: then the script did not write there
            return

    def _is_covered(self, name: Sequence[str]) -> bool:
        return any(covers(pattern, name) for pattern in self._covering)


def covers(pattern: Sequence[str], name: Sequence[str]) -> bool:
    """Whether an output means a file or a folder above it. ``**`` stands for any number of folders."""
    if not pattern:
        return True
    if pattern[0] == "**":
        return covers(pattern[1:], name) or (bool(name) and covers(pattern, name[1:]))
    return bool(name) and fnmatchcase(name[0], pattern[0]) and covers(pattern[1:], name[1:])


def _info(entry: "os.DirEntry[str]") -> Optional[os.stat_result]:
    try:
        return entry.stat(follow_symlinks=False)
    except OSError:
        return None
