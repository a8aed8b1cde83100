"""The control group of a run, if the machine allows it (version 2, writable).

The kernel kills all processes of the group at once, and tells when the group is empty.

Protocol: https://docs.kernel.org/admin-guide/cgroup-v2.html, ``cgroup.procs``, ``cgroup.events``, ``cgroup.kill``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections import deque
from typing import Any, Deque, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from ddpctl_worker.machine.fs import read_text
from ddpctl_worker.machine.limits import NO_LIMIT, OOM_LOOK_S

ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")  # of version 2 alone, and beside version 1


class ControlGroup:
    """An existing group. Its processes may make groups of their own below it."""

    def __init__(self, path: str) -> None:
        self.path = path

    def pids(self) -> Set[int]:
        found: Set[int] = set()
        for folder in self._folders():
            with contextlib.suppress(OSError), open(os.path.join(folder, "cgroup.procs"), encoding="ascii") as file:
                found.update(int(line) for line in file)
        return found

    def empty(self) -> bool:
        """Return whether the group and the groups below have no process but zombies. A removed group was empty."""
        try:
            with open(os.path.join(self.path, "cgroup.events"), encoding="ascii") as file:
                return "populated 0" in file.read().splitlines()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV):  # ENODEV: removed after it was opened
                return True
            raise

    def kill(self) -> None:
        """Send SIGKILL to all processes of the group, and to the children that they fork meanwhile."""
        try:
            _write(os.path.join(self.path, "cgroup.kill"), b"1")
        except OSError:  # Linux before 5.14
            for pid in self.pids():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)

    def enter(self) -> None:
        """Move the calling process into the group; its later children belong to the group too."""
        _write(os.path.join(self.path, "cgroup.procs"), b"0")

    def remove(self) -> None:
        """Remove the group if it is empty. Otherwise it stays, and shows the survivors."""
        for folder in self._folders():
            with contextlib.suppress(OSError):
                os.rmdir(folder)

    def _folders(self) -> Iterator[str]:
        for folder, _, _ in os.walk(self.path, topdown=False):
            yield folder


def make(run: str, host: str) -> Optional[ControlGroup]:
    """Make the group of a run below this process's group; ``None`` without version 2, or without the right to write."""
    parent = _own()
    if parent is None:
        return None
    group = ControlGroup(os.path.join(parent, "ddpctl-%s.%s" % (run, host)))
    try:
        os.mkdir(group.path, 0o755)
    except FileExistsError:
        pass  # from an earlier start of this run
    except OSError:
        return None
    return group


def of_record(path: Any) -> Optional[ControlGroup]:
    """Return the group at the path in a record; ``None`` for any value that is no path of such a group."""
    inside = isinstance(path, str) and path == os.path.normpath(path) and path.startswith(ROOTS[0] + "/")
    return ControlGroup(path) if inside and os.path.basename(path).startswith("ddpctl-") else None


def _own() -> Optional[str]:
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
            path = next((line.rstrip("\n")[3:] for line in file if line.startswith("0::")), None)
    except OSError:
        return None
    found = (root + path.rstrip("/") for root in ROOTS) if path is not None else iter(())
    return next((folder for folder in found if os.path.exists(os.path.join(folder, "cgroup.procs"))), None)


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def oom_kills() -> int:
    """Return how many processes the kernel has killed for memory in this process's cgroup, else on the machine."""
    for path in _memory_events():
        count = _field(path, "oom_kill")
        if count is not None:
            return count
    return _field("/proc/vmstat", "oom_kill") or 0


class Limit(NamedTuple):
    """A limit of a control group."""

    most: int  # bytes, or processes and threads
    group: str  # the group's path as this process sees it, such as ``/user.slice/user-1000.slice``; "": the root


class LimitHistory:
    """The limits that control groups have reached since the beginning, and the times of the kernel's OOM kills.

    Only a kill right before a rank's death explains that death: the kernel may kill other processes of the cgroup at
    any time. Frequent looks at the kernel's counter find the times.
    """

    def __init__(self) -> None:
        self._count, self._looked = oom_kills(), time.time()
        self._hits_before = _count_memory_hits()
        self._refusals_before = _count_refusals()
        self._rises: Deque[Tuple[float, float]] = deque(maxlen=16)

    def look(self) -> None:
        """Read the counter if the last look is old enough. Called once a second or more often."""
        if not 0.0 <= time.time() - self._looked < OOM_LOOK_S:
            self._count_now()

    def rises(self) -> List[Tuple[float, float]]:
        """Return the intervals (Unix seconds) with a kill, up to now."""
        self._count_now()
        return list(self._rises)

    def find_memory_limit(self) -> Optional[Limit]:
        """Return the least memory limit that was reached.

        ``None``: no limit was reached, so a kill was for lack of memory on the machine.
        """
        now = _count_memory_hits()
        return min((limit for limit, count in now.items() if count > self._hits_before.get(limit, 0)), default=None)

    def find_task_limit(self) -> Optional[Limit]:
        """Return the limit by which the kernel has refused a process or thread; ``None``: it has refused none.

        The kernel counts a refusal in the group with the limit, or in the group of the process that was refused. So the
        limit with the least room is the answer.
        """
        now = _count_refusals()
        if all(count <= self._refusals_before.get(group, 0) for group, count in now.items()):
            return None
        return min(_read_task_limits(), default=(0, None))[1]

    def _count_now(self) -> None:
        count, now = oom_kills(), time.time()
        if count > self._count:
            self._rises.append((self._looked, now))
        self._count, self._looked = count, now


def _count_memory_hits() -> Dict[Limit, int]:
    """Return memory limit -> how often it was reached, for this process's group and the groups above it."""
    found: Dict[Limit, int] = {}
    for root, group, first in _groups("memory"):
        limit_file, count = ("memory.limit_in_bytes", "memory.failcnt") if first else ("memory.max", "memory.events")
        for folder in _upward(root, group):
            limit = read_text(os.path.join(folder, limit_file)).strip()
            path = os.path.join(folder, count)
            full = read_text(path).strip() if first else _field(path, "oom")
            if limit.isdigit() and int(limit) < NO_LIMIT and full is not None:
                found[Limit(int(limit), folder[len(root) :])] = int(full or 0)
    return found


def _count_refusals() -> Dict[str, int]:
    """Return group -> how often the kernel has refused a process or thread there."""
    folders = (folder for root, group, _ in _groups("pids") for folder in _upward(root, group))
    counts = ((folder, _field(os.path.join(folder, "pids.events"), "max")) for folder in folders)
    return {folder: count for folder, count in counts if count is not None}


def _read_task_limits() -> Iterator[Tuple[int, Limit]]:
    """Yield the room below each limit of processes and threads, and the limit."""
    for root, group, _ in _groups("pids"):
        for folder in _upward(root, group):
            most, used = (read_text(os.path.join(folder, "pids." + name)).strip() for name in ("max", "current"))
            if most.isdigit() and used.isdigit():
                yield int(most) - int(used), Limit(int(most), folder[len(root) :])


def _upward(root: str, group: str) -> Iterator[str]:
    """Yield the folder of a group, and the folders of the groups above it."""
    folder = root + group.rstrip("/")
    while folder.startswith(root):
        yield folder
        folder = os.path.dirname(folder)


def _memory_events() -> List[str]:
    found = [
        "%s%s/%s" % (root, group, "memory.oom_control" if first else "memory.events")
        for root, group, first in _groups("memory")
    ]
    return [path for path in found if os.path.exists(path)]


def _groups(controller: str) -> Iterator[Tuple[str, str, bool]]:
    """Yield the root, the path of this process's group below it, and whether the interface is that of version 1."""
    entries = [line.split(":", 2) for line in read_text("/proc/self/cgroup").splitlines()]
    for _, controllers, group in (entry for entry in entries if len(entry) == 3):
        if controller in controllers.split(","):
            yield "/sys/fs/cgroup/%s" % controller, group, True
        elif not controllers:
            for root in ROOTS:
                yield root, group, False


def _field(path: str, name: str) -> Optional[int]:
    for words in map(str.split, read_text(path).splitlines()):
        if len(words) == 2 and words[0] == name and words[1].isdigit():
            return int(words[1])
    return None
