"""Reads /proc: the processes of this machine, their state, and the machine's identity."""

from __future__ import annotations

import contextlib
import os
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

from ddpctl_worker.machine.fs import read_text


class Stat(NamedTuple):
    """The fields of /proc/PID/stat."""

    pid: int
    name: str
    state: str
    parent: int
    start: int
    threads: int
    ticks: int  # of used processor time

    @property
    def alive(self) -> bool:
        """Return whether it is no zombie. A leader that ended before its threads looks like a zombie but is alive."""
        return self.state not in "ZX" or self.threads > 1


def boot_id() -> str:
    """Return the kernel's id of this boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def machine() -> Dict[str, str]:
    """Return the machine's identity over reboots (``id``, ``name``), and the scope of its pids (``boot``, ``pids``).

    Name and id are both needed: containers share an id or have no id, and machines of the same image share both until a
    user names them. The name is short, since one boot may know the domain and the next may not.
    """
    number = read_text("/etc/machine-id", limit=64).strip()
    try:
        pids = os.readlink("/proc/self/ns/pid")
    except OSError:  # a sandbox without it
        pids = ""
    return {"boot": boot_id(), "pids": pids, "id": number, "name": os.uname().nodename.partition(".")[0]}


def parse_meminfo(text: str) -> Dict[str, int]:
    """Return the sizes in /proc/meminfo in bytes, by name. A line without a size in kB is left out."""
    lines = (line.replace(":", " ").split() for line in text.splitlines())
    return {words[0]: int(words[1]) * 1024 for words in lines if words[2:] == ["kB"] and words[1].isdecimal()}


def pids() -> Iterator[int]:
    """Yield the pid of every process that is visible from here."""
    return (int(entry) for entry in os.listdir("/proc") if entry.isdigit())


def read_file(pid: int, name: str) -> Optional[bytes]:
    """Return /proc/PID/NAME; ``None`` if there is no such process, or it is hidden (/proc mounted with hidepid)."""
    try:
        with open("/proc/%d/%s" % (pid, name), "rb") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def bytes_written(paths: Iterable[str]) -> bool:
    """Return whether a readable process has one of these files open for writing, under any name."""
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
                flags = (read_file(pid, "fdinfo/%s" % name) or b"").split(b"flags:", 1)[1].split()[0]
                if int(flags, 8) & os.O_ACCMODE:
                    return True
    return False


def sockets(pid: int) -> Set[int]:
    """Return the inodes of the sockets that ``pid`` holds.

    Raises:
        OSError: it has ended, or belongs to another user (PermissionError).
    """
    found = set()
    for fd in os.listdir("/proc/%d/fd" % pid):
        with contextlib.suppress(FileNotFoundError):  # closed just now
            target = os.readlink("/proc/%d/fd/%s" % (pid, fd))
            if target.startswith("socket:["):
                found.add(int(target[len("socket:[") : -1]))
    return found


def read_stat(pid: int) -> Optional[Stat]:
    """Return /proc/PID/stat; ``None`` if there is no such process, or it is hidden."""
    blob = read_file(pid, "stat")
    if blob is None:
        return None
    # The name is in parentheses and may itself hold spaces and parentheses.
    left, right = blob.find(b"("), blob.rfind(b")")
    rest = blob[right + 2 :].split()
    name = blob[left + 1 : right].decode("utf-8", "replace")
    parent, user, system, threads, start = (int(rest[index]) for index in (1, 11, 12, 17, 19))
    return Stat(pid, name, rest[0].decode("ascii"), parent, start, threads, user + system)


def exit_status(pid: int, start: int) -> Optional[int]:
    """Return the wait status of a zombie; ``None`` if the process runs, or was reaped."""
    rest = (read_file(pid, "stat") or b"").rpartition(b")")[2].split()
    try:
        return int(rest[49]) if rest[0] in (b"Z", b"X") and int(rest[19]) == start else None
    except (IndexError, ValueError):
        return None


def catches(pid: int, number: int) -> bool:
    """Return whether ``pid`` has a handler of its own for the signal. The default and "ignore" do not count.

    False if the process is gone.
    """
    for line in (read_file(pid, "status") or b"").splitlines():
        if line.startswith(b"SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def snapshot() -> Dict[int, Stat]:
    """Return pid -> state of every process of the machine."""
    found = (read_stat(pid) for pid in pids())
    return {stat.pid: stat for stat in found if stat is not None}


def descendants(of: Iterable[int], among: Dict[int, Stat]) -> Set[int]:
    """Return the pids below ``of``. A pid of ``of`` is in the answer only if it is below another pid of ``of``."""
    children: Dict[int, List[int]] = {}
    for stat in among.values():
        children.setdefault(stat.parent, []).append(stat.pid)
    found: Set[int] = set()
    todo = list(of)
    while todo:
        for pid in children.get(todo.pop(), ()):
            if pid not in found:
                found.add(pid)
                todo.append(pid)
    return found


def environment(pid: int) -> Optional[Dict[bytes, bytes]]:
    """Return the environment with which ``pid`` was started; ``None`` if it is gone or belongs to another user."""
    blob = read_file(pid, "environ")
    if blob is None:
        return None
    pairs = (entry.partition(b"=") for entry in blob.split(b"\0") if b"=" in entry)
    return {key: value for key, _, value in pairs}


def variables(pid: int) -> Dict[str, str]:
    """Return ``environment`` as text; empty if the process is gone or belongs to another user."""
    found = environment(pid) or {}
    return {key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, value in found.items()}


def command_line(pid: int, limit: int = 200) -> str:
    """Return the command line of ``pid`` for a person; its name if the command line is empty."""
    words = (read_file(pid, "cmdline") or b"")[:4096]
    text = words.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
    if not text:
        found = read_stat(pid)
        text = "[%s]" % found.name if found else ""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def children_of(pid: int) -> List[int]:
    """Return the pids of the direct children, without a look at all processes if the kernel lists them."""
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
    return [stat.pid for stat in snapshot().values() if stat.parent == pid]
