"""The untracked verb: finds files in a run's working folder that no declared output covers.

``ddpctl fetch`` leaves these files on the node. A file counts if it has changed since the supervisor took over the run:
the code was in place by then. Hidden files, Python's caches and symbolic links do not count. The walk stops after
MOST_ENTRIES names or UNTRACKED_S seconds, because the working folder may be a home folder or on a slow disk.
"""

from __future__ import annotations

import heapq
import os
import time
from collections import deque
from fnmatch import fnmatchcase
from typing import Any, Deque, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from ddpctl_worker.machine import fs
from ddpctl_worker.record.paths import RunPaths, base_of, job_id, known_runs
from ddpctl_worker.record.record import named_by
from ddpctl_worker.record.runrecord import RunRecord
from ddpctl_worker.run.launcher import folders_of, place_variables
from ddpctl_worker.verbs.fetch import printable
from ddpctl_worker.verbs.limits import LARGEST_FILES, MOST_ENTRIES, UNTRACKED_S
from ddpctl_worker.wire.channel import Channel

_CACHES = frozenset({"__pycache__"})


def untracked(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """Answer with the uncovered files of a run.

    folder        the working folder, or null if the run never had a working folder here
    files, bytes  their number and size
    largest       the largest files as [name, bytes]
    whole         false if the walk was cut off
    writer        the newest earlier run of the job that wrote ``missing``, a path in its working folder; else null
    """
    paths, run = named_by(request)
    root, since = _working_folder(paths), _begun(paths)
    answer = {"host": request["host"], "writer": _writer(request, run)}
    if root is None or since is None:
        return {**answer, "folder": None, "files": 0, "bytes": 0, "largest": [], "whole": True}
    kept = (run.get("checkpoint") or {}).get("paths") or ()
    wanted = [*(run.get("outputs") or ()), *kept]
    covering = list(
        _parts_below(root, (place_variables(os.path.expanduser(str(each)), folders_of(paths)) for each in wanted))
    )
    walk = _Walk(root, since, covering, os.path.realpath(base_of(request)))
    found = [(info.st_size, name) for name, info in walk.files()]
    largest = heapq.nlargest(LARGEST_FILES, found)
    return {
        **answer,
        "folder": root,
        "files": len(found),
        "bytes": sum(size for size, _ in found),
        "largest": [[printable(name), size] for size, name in largest],
        "whole": walk.whole,
    }


def _writer(request: Dict[str, Any], run: RunRecord) -> Optional[str]:
    missing = request.get("missing")
    if not isinstance(missing, str):
        return None
    earlier: Dict[str, RunPaths] = {}
    for paths in known_runs(base_of(request), request["host"]):
        made = fs.read_optional(paths.run)  # a damaged record is of no job
        name = made.get("run")
        if isinstance(name, str) and name < run["run"] and job_id(made) == job_id(run):
            earlier[name] = paths
    return next((name for name in sorted(earlier, reverse=True) if _wrote(earlier[name], missing)), None)


def _wrote(paths: RunPaths, name: str) -> bool:
    """Return whether the run's script wrote ``name`` into its working folder, and it is still there."""
    root, since = _working_folder(paths), _begun(paths)
    if root is None or since is None:
        return False
    try:
        path = os.path.realpath(os.path.join(root, name))
        return path.startswith(root + os.sep) and os.stat(path).st_ctime_ns > since
    except (OSError, ValueError):  # it is not there, or is no path
        return False


def _working_folder(paths: RunPaths) -> Optional[str]:
    cwd = fs.read_optional(paths.newest().state).get("cwd")
    return os.path.realpath(cwd) if isinstance(cwd, str) else None


def _begun(paths: RunPaths) -> Optional[int]:
    """Return when the first attempt's supervisor took over the run (ns). The code was complete before."""
    first = [*paths.attempts(), paths][0]
    try:
        return os.stat(first.claim).st_ctime_ns
    except FileNotFoundError:
        return None


def _parts_below(root: str, outputs: Iterable[str]) -> Iterator[List[str]]:
    """Yield the outputs below ``root``, split at each slash."""
    for output in outputs:
        path = os.path.normpath(os.path.join(root, output))
        if path == root:
            yield []
        elif path.startswith(root + os.sep):
            yield path[len(root) + 1 :].split(os.sep)


class _Walk:
    """A breadth-first walk through the folder ``root``.

    ``since``: ns; ``covering``: the outputs, as parts; ``apart``: ddpctl's own folder, which is left out.
    """

    def __init__(self, root: str, since: int, covering: Sequence[Sequence[str]], apart: str) -> None:
        self._root, self._since, self._covering, self._apart = root, since, covering, apart
        self.whole = True

    def files(self) -> Iterator[Tuple[str, os.stat_result]]:
        """Yield the files that no output covers, by their names below ``root``."""
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
        except OSError:  # removed meanwhile, or not readable: then the script did not write there
            return

    def _is_covered(self, name: Sequence[str]) -> bool:
        return any(covers(pattern, name) for pattern in self._covering)


def covers(pattern: Sequence[str], name: Sequence[str]) -> bool:
    """Return whether an output covers a file, or a folder above it. ``**`` stands for any number of folders."""
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
