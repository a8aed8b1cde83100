"""The gc verb: finds and removes unused files below base_dir: runs, environments, wheels, data, unfinished files."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import stat
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

import ddpctl_worker
from ddpctl_worker.machine import fs, proc
from ddpctl_worker.record.judgement import last_sign
from ddpctl_worker.record.paths import RunPaths
from ddpctl_worker.store.install import MARKER
from ddpctl_worker.store.remove import find_leftovers, is_over, remove_folder
from ddpctl_worker.verbs.limits import DAY_S, GC_WAIT_S, UNUSED_S
from ddpctl_worker.wire.channel import Channel


class Unused(NamedTuple):
    """A removable item. ``bytes``: the space that its removal frees; a file with several names counts once."""

    kind: str
    name: str
    path: str
    bytes: int
    age_s: float


def gc(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """``{"days": float, "delete": bool}`` -> ``{"items": [{"kind", "name", "bytes", "age_s"}], "freed", "kept"}``.

    ``patience``: seconds to wait for an installation or another gc. Without ``delete`` nothing changes. A live run, its
    environment and its code are never in the list.
    """
    base = os.path.expanduser(request["base_dir"])
    fs.own_folder(base)
    days = float(request.get("days", 7))
    # The lock excludes installations and other gcs, also on hosts that share the base_dir.
    lock = os.path.join(fs.own_folder(base, "envs"), fs.ENVS)
    with fs.lock_exclusive(lock, channel, float(request.get("patience", GC_WAIT_S))):
        finder = Finder(base, request["host"], days * DAY_S)
        items = list(finder.items())
        freed = 0
        for item in items if request.get("delete") else []:
            if item.kind not in ("run", "data") or not fs.is_folder(item.path):
                fs.remove_tree(item.path)
            elif not remove_folder(item.path):
                continue
            freed += item.bytes
        return {
            "items": [
                {"kind": item.kind, "name": item.name, "bytes": item.bytes, "age_s": round(item.age_s)}
                for item in items
            ],
            "freed": freed,
            "kept": sorted(finder.kept_environments),
        }


def parts_of(run: str) -> List[RunPaths]:
    """Return the parts of a run, a part for each host. A part that cannot be read now counts: it may be live."""
    paths = glob.glob(os.path.join(glob.escape(run), "*"))
    return [RunPaths(path) for path in paths if not (os.path.isfile(path) or os.path.islink(path))]


class Finder:
    """Walks base_dir once. ``max_age``: unused items are kept for so many seconds."""

    def __init__(self, base: str, host: str, max_age: float) -> None:
        self._base, self._host, self._now = base, host, time.time()
        self._max_age = max(max_age, UNUSED_S)
        self._wheels: Set[str] = set()  # wheels of kept environments
        self._codes: Set[str] = set()  # code of kept runs
        self._live_since: Optional[float] = None  # when the oldest live run began here
        self._staying: Set[int] = set()  # inodes of files in kept environments
        self._counted: Set[int] = set()
        self.kept_environments: Set[str] = set()

    def items(self) -> Iterator[Unused]:
        """Yield runs, then environments, then wheels, because an item that stays keeps the items that it needs."""
        yield from self._runs()
        yield from self._environments()
        yield from self._blobs()
        yield from self._data()
        yield from self._cache()
        yield from self._leftovers()

    def _old(self, path: str) -> bool:
        return self._age(path) > self._max_age

    def _in_use(self, path: str) -> bool:
        """Return whether a live run may use the path: every start touches the files that it uses."""
        return self._live_since is not None and self._now - self._age(path) > self._live_since - UNUSED_S

    def _age(self, path: str) -> float:
        try:
            return self._now - os.lstat(path).st_mtime
        except OSError:
            return 0.0

    def _item(self, kind: str, path: str, age: Optional[float] = None) -> Unused:
        return Unused(kind, os.path.basename(path), path, self._freeable(path), self._age(path) if age is None else age)

    def _freeable(self, path: str) -> int:
        """Return the bytes of the files below ``path`` that do not stay under another name and are not yet counted."""
        total = 0
        for info in files_of(path):
            if info.st_ino not in self._staying and info.st_ino not in self._counted:
                self._counted.add(info.st_ino)
                total += info.st_blocks * 512
        return total

    # --- runs ---------------------------------------------------------------------------------------------------------
    def _runs(self) -> Iterator[Unused]:
        """Yield the runs that are over and old on every host, without a process left.

        Several hosts may share a base_dir, so a run may have the parts of several hosts.
        """
        for run in sorted(glob.glob(os.path.join(glob.escape(self._base), "runs", "*"))):
            parts = parts_of(run)
            over = all(is_over(paths, self._host) for paths in parts)
            age = min((self._now - _ended(paths) for paths in parts), default=0.0)
            old = over and age > self._max_age
            if old and not any(find_leftovers(paths) for paths in parts):
                yield self._item("run", run, age)
                continue
            for paths in parts:
                self._keep(paths, over and not old)
            yield from self._broken_off(os.path.join("runs", glob.escape(os.path.basename(run)), ".*"))
            if _is_empty(run) and self._old(run):
                yield self._item("part", run)

    def _keep(self, paths: RunPaths, over: bool) -> None:
        code = fs.read_optional(paths.run).get("code")
        if code:
            self._codes.add(code["hash"])
        if not over:
            begun = _begun(paths)
            self._live_since = min(begun, begun if self._live_since is None else self._live_since)

    # --- environments -------------------------------------------------------------------------------------------------
    def _environments(self) -> Iterator[Unused]:
        running = mapped_paths()
        going = []
        for path in sorted(glob.glob(os.path.join(glob.escape(self._base), "envs", "[0-9a-f]*"))):
            marker = os.path.join(path, MARKER)
            if path.endswith(".tmp") or fs.is_gone(marker):
                if self._age(path) > UNUSED_S:
                    going.append((path, self._age(path)))
                continue
            # The marker is touched whenever the environment is used for a start.
            if self._in_use(marker) or not self._old(marker) or any(used.startswith(path + os.sep) for used in running):
                self._keep_environment(path, marker)
            else:
                going.append((path, self._age(marker)))
        for path, age in going:
            yield self._item("environment", path, age)

    def _keep_environment(self, path: str, marker: str) -> None:
        self.kept_environments.add(os.path.basename(path))
        self._wheels.update(fs.read_optional(marker).get("wheels", ()))
        self._staying.update(info.st_ino for info in files_of(path))

    # --- files --------------------------------------------------------------------------------------------------------
    def _blobs(self) -> Iterator[Unused]:
        """Yield wheels that no kept environment was built from, and code that no kept run was started with."""
        for path in sorted(glob.glob(os.path.join(glob.escape(self._base), "store", "[0-9a-f]*"))):
            name = os.path.basename(path)
            if name.endswith(".part"):
                if self._age(path) > UNUSED_S and not _is_locked(path):
                    yield self._item("part", path)
                continue
            if name in self._wheels or name in self._codes or not self._old(path):
                continue
            folder = os.path.join(self._base, "wheels", name)
            links = glob.glob(os.path.join(glob.escape(folder), "*")) or [path]
            yield Unused(
                "wheel" if os.path.isdir(folder) else "file",
                os.path.basename(links[0]),
                path,
                sum(info.st_blocks * 512 for info in files_of(path)),
                self._age(path),
            )
            if os.path.isdir(folder):
                yield Unused("wheel", "link", folder, 0, self._age(folder))

    def _cache(self) -> Iterator[Unused]:
        """Yield folders that uv unpacked, without a file in a kept environment. Installations are locked out."""
        for path in sorted(glob.glob(os.path.join(glob.escape(self._base), "uv-cache", "archive-*", "*"))):
            if self._age(path) > UNUSED_S and not any(info.st_ino in self._staying for info in files_of(path)):
                yield self._item("cache", path)

    def _data(self) -> Iterator[Unused]:
        """Yield versions of pushed data folders. Every push and every start touches the record of its version."""
        going: List[Tuple[str, float]] = []
        for tree in self._versions():
            last = next((path for path in (tree + ".json", tree + ".part", tree) if not fs.is_gone(path)), tree)
            if self._old(last) and not self._in_use(last):
                going.append((tree, self._age(last)))
            else:
                self._staying.update(info.st_ino for info in files_of(tree))
        for tree, age in going:
            parts = [path for path in (tree, tree + ".part", tree + ".json") if os.path.lexists(path)]
            name = os.path.basename(os.path.dirname(tree))[1:]
            link = os.path.join(os.path.dirname(os.path.dirname(tree)), name)
            if os.path.islink(link) and os.path.realpath(link) == os.path.realpath(tree):
                parts.append(link)
            for path in parts:
                yield Unused("data", name, path, self._freeable(path), age)

    def _versions(self) -> List[str]:
        """Return the paths of all versions of data folders, complete or not."""
        found = glob.glob(os.path.join(glob.escape(self._base), "data", "*", ".*", "[0-9a-f]*"))
        return sorted({os.path.join(os.path.dirname(path), os.path.basename(path).split(".")[0]) for path in found})

    def _leftovers(self) -> Iterator[Unused]:
        yield from self._tools()
        yield from self._packages()
        for pattern in ("tools/*.part", "wheels/*.part", "worker/.new-*", "runs/.*", "data/*/.*/.[0-9a-f]*"):
            yield from self._broken_off(pattern)

    def _tools(self) -> Iterator[Unused]:
        """Yield programs that no live run may have been started with. Each use touches its program."""
        for path in sorted(glob.glob(os.path.join(glob.escape(self._base), "tools", "*"))):
            if not path.endswith(".part") and self._old(path) and not self._in_use(path):
                yield self._item("tool", path)

    def _packages(self) -> Iterator[Unused]:
        """Yield workers of other versions, if every run is over.

        A supervisor may import more of its own version at any time, and no record names that version.
        """
        own = os.path.realpath(os.path.dirname(os.path.dirname(os.path.abspath(ddpctl_worker.__file__))))
        for path in sorted(glob.glob(os.path.join(glob.escape(self._base), "worker", "[0-9a-f]*"))):
            if self._live_since is None and self._old(path) and os.path.realpath(path) != own:
                yield self._item("worker", path)

    def _broken_off(self, pattern: str) -> Iterator[Unused]:
        """Yield old files below base_dir that a killed start, stop or transfer has left."""
        for path in sorted(glob.glob(os.path.join(glob.escape(self._base), pattern))):
            if self._age(path) > UNUSED_S:
                yield self._item("part", path)


def mapped_paths() -> Set[str]:
    """Return the files from which this user's processes run: first argument and mapped libraries."""
    found: Set[str] = set()
    for pid in proc.pids():
        program = (proc.read_file(pid, "cmdline") or b"").split(b"\0")[0]
        lines = (proc.read_file(pid, "maps") or b"").split(b"\n")
        mapped = (line.split(None, 5)[5] for line in lines if line.count(b" ") >= 5 and b"/" in line)
        found.update(map(os.fsdecode, [program, *mapped]))
    return found


def files_of(path: str) -> Iterator[os.stat_result]:
    """Yield the status of every regular file below ``path``, or of ``path`` itself."""
    if not fs.is_folder(path):
        with contextlib.suppress(OSError):
            yield os.lstat(path)
        return
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                info = os.lstat(os.path.join(folder, name))
                if stat.S_ISREG(info.st_mode):
                    yield info


def _begun(paths: RunPaths) -> float:
    """Return when the record of a run was made: the time of its oldest file, since some files are written again later.

    The time in the record comes from the controller, whose clock may be wrong.
    """
    times = []
    for path in glob.glob(os.path.join(glob.escape(paths.node), "*")):
        with contextlib.suppress(OSError):  # removed just now
            times.append(os.lstat(path).st_mtime)
    return min(times, default=0.0)


def _ended(paths: RunPaths) -> float:
    """Return the end of a run that is over. A lost run without a stop has no exit record; then its last sign counts."""
    try:
        return os.lstat(paths.exit).st_mtime
    except OSError:
        return last_sign(paths)


def _is_empty(folder: str) -> bool:
    try:
        return not os.listdir(folder)
    except FileNotFoundError:  # removed just now
        return False


def _is_locked(path: str) -> bool:
    """Return whether a transfer is writing this part."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
