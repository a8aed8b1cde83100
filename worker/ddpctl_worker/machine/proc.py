"""Readers of /proc: who runs here, what the kernel says of a process, and which machine this is."""

from __future__ import annotations

import contextlib
import os
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

from ddpctl_worker.machine.fs import read_text


class Stat(NamedTuple):
    """What /proc/PID/stat says."""

    pid: int
    name: str
    state: str
    parent: int
    start: int
    threads: int
    ticks: int  # of processor time that it has used

    @property
    def alive(self) -> bool:
        """Not a zombie; a leader that ended before its threads shows as one and is not."""
        return self.state not in "ZX" or self.threads > 1


def boot_id() -> str:
    """This boot of this machine."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def machine() -> Dict[str, str]:
    """Which machine this is, over its reboots (``id``, ``name``), and what a pid means there (``boot``, ``pids``).

    Neither name nor id says it alone: containers share an id or have none, and machines of one image share both until
    somebody names them. A short name, since one boot may know the domain and the next one not.
    """
    number = read_text("/etc/machine-id", limit=64).strip()
    try:
        pids = os.readlink("/proc/self/ns/pid")
    except OSError:  # a sandbox without it
        pids = ""
    return {"boot": boot_id(), "pids": pids, "id": number, "name": os.uname().nodename.partition(".")[0]}


def pids() -> Iterator[int]:
    """The number of every process that may be seen from here."""
    return (int(entry) for entry in os.listdir("/proc") if entry.isdigit())


def read(pid: int, name: str) -> Optional[bytes]:
    """/proc/PID/NAME; None when there is no such process, or none that we may see (/proc mounted with hidepid)."""
    try:
        with open("/proc/%d/%s" % (pid, name), "rb") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def written_to(paths: Iterable[str]) -> bool:
    """Whether a process that may be looked at has one of these files open for writing, under whatever name."""
    wanted = set()
    for path in paths:
        with contextlib.suppress(OSError):
            about = os.stat(path)
            wanted.add((about.st_dev, about.st_ino))
    return any(_writes(pid, wanted) for pid in pids())


def _writes(pid: int, wanted: Set[Tuple[int, int]]) -> bool:
    folder = "/proc/%d/fd" % pid
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    for name in names:
        with contextlib.suppress(OSError, ValueError, IndexError):
            about = os.stat("%s/%s" % (folder, name))
            if (about.st_dev, about.st_ino) in wanted:
                told = (read(pid, "fdinfo/%s" % name) or b"").split(b"flags:", 1)[1].split()[0]
                if int(told, 8) & os.O_ACCMODE:
                    return True
    return False


def sockets(pid: int) -> Set[int]:
    """The inodes of the sockets that ``pid`` holds.

    Raises:
        OSError: it has ended, or is not ours to look at (PermissionError).
    """
    found = set()
    for fd in os.listdir("/proc/%d/fd" % pid):
        with contextlib.suppress(FileNotFoundError):  # closed just now
            target = os.readlink("/proc/%d/fd/%s" % (pid, fd))
            if target.startswith("socket:["):
                found.add(int(target[len("socket:[") : -1]))
    return found


def read_stat(pid: int) -> Optional[Stat]:
    """/proc/PID/stat; None when there is no such process, or none that we may see."""
    blob = read(pid, "stat")
    if blob is None:
        return None
    # The name is in parentheses and may itself hold spaces and parentheses.
    left, right = blob.find(b"("), blob.rfind(b")")
    rest = blob[right + 2 :].split()
    name = blob[left + 1 : right].decode("utf-8", "replace")
    parent, user, system, threads, start = (int(rest[index]) for index in (1, 11, 12, 17, 19))
    return Stat(pid, name, rest[0].decode("ascii"), parent, start, threads, user + system)


def exit_status(pid: int, start: int) -> Optional[int]:
    """The wait status of a process that has died and was not collected yet; None when it was, or still runs."""
    rest = (read(pid, "stat") or b"").rpartition(b")")[2].split()
    try:
        return int(rest[49]) if rest[0] in (b"Z", b"X") and int(rest[19]) == start else None
    except (IndexError, ValueError):
        return None


def catches(pid: int, number: int) -> bool:
    """Whether ``pid`` has a handler of its own for that signal: neither the default, which may end it, nor to ignore
    it. False when it is gone."""
    for line in (read(pid, "status") or b"").splitlines():
        if line.startswith(b"SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def snapshot() -> Dict[int, Stat]:
    """Every process of the machine as it is now."""
    found = (read_stat(pid) for pid in pids())
    return {one.pid: one for one in found if one is not None}


def descendants(of: Iterable[int], among: Dict[int, Stat]) -> Set[int]:
    """The pids below ``of`` (which are not in the answer themselves unless below one another)."""
    children: Dict[int, List[int]] = {}
    for one in among.values():
        children.setdefault(one.parent, []).append(one.pid)
    found: Set[int] = set()
    todo = list(of)
    while todo:
        for pid in children.get(todo.pop(), ()):
            if pid not in found:
                found.add(pid)
                todo.append(pid)
    return found


def environment(pid: int) -> Optional[Dict[bytes, bytes]]:
    """The environment that ``pid`` was started with; None when it is gone or not ours to read."""
    blob = read(pid, "environ")
    if blob is None:
        return None
    pairs = (entry.partition(b"=") for entry in blob.split(b"\0") if b"=" in entry)
    return {key: value for key, _, value in pairs}


def variables(pid: int) -> Dict[str, str]:
    """``environment`` as text; empty when it is gone or not ours to read."""
    found = environment(pid) or {}
    return {key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, value in found.items()}


def command_line(pid: int, limit: int = 200) -> str:
    """What ``pid`` runs, for a person; its name when the command line is empty."""
    words = (read(pid, "cmdline") or b"")[:4096]
    text = words.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
    if not text:
        found = read_stat(pid)
        text = "[%s]" % found.name if found else ""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def children_of(pid: int) -> List[int]:
    """The direct children, cheaply where the kernel lists them."""
    try:
        found: List[int] = []
        for task in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/children" % (pid, task), encoding="ascii") as file:
                found.extend(int(word) for word in file.read().split())
        return found
    except FileNotFoundError:
        if not os.path.exists("/proc/%d" % pid):
            return []
    except (ProcessLookupError, PermissionError):
        return []
    return [one.pid for one in snapshot().values() if one.parent == pid]
