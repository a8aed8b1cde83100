"""Readers of /proc: who runs here, what the kernel says of a process, and which machine this is."""

from __future__ import annotations

import os
from typing import Dict, Iterable, List, NamedTuple, Optional, Set


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
    try:
        with open("/etc/machine-id", encoding="ascii") as file:
            number = file.read().strip()
    except (OSError, ValueError):
        number = ""
    try:
        pids = os.readlink("/proc/self/ns/pid")
    except OSError:  # a sandbox without it
        pids = ""
    return {"boot": boot_id(), "pids": pids, "id": number, "name": os.uname().nodename.partition(".")[0]}


def read_stat(pid: int) -> Optional[Stat]:
    """/proc/PID/stat; None when there is no such process, or none that we may see (/proc mounted with hidepid)."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            blob = file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The name is in parentheses and may itself hold spaces and parentheses.
    left, right = blob.find(b"("), blob.rfind(b")")
    rest = blob[right + 2 :].split()
    name = blob[left + 1 : right].decode("utf-8", "replace")
    parent, user, system, threads, start = (int(rest[index]) for index in (1, 11, 12, 17, 19))
    return Stat(pid, name, rest[0].decode("ascii"), parent, start, threads, user + system)


def exit_status(pid: int, start: int) -> Optional[int]:
    """The wait status of a process that has died and was not collected yet; None when it was, or still runs."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            rest = file.read().rpartition(b")")[2].split()
        return int(rest[49]) if rest[0] in (b"Z", b"X") and int(rest[19]) == start else None
    except (OSError, IndexError, ValueError):
        return None


def snapshot() -> Dict[int, Stat]:
    """Every process of the machine as it is now."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            one = read_stat(int(entry))
            if one is not None:
                found[one.pid] = one
    return found


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
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            blob = file.read()
    except OSError:
        return None
    pairs = (entry.partition(b"=") for entry in blob.split(b"\0") if entry)
    return {key: value for key, _, value in pairs}


def command_line(pid: int, limit: int = 200) -> str:
    """What ``pid`` runs, for a person; its name when the command line is empty."""
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            text = file.read(4096).rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        text = ""
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
