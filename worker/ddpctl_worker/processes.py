"""Processes: who they are, who belongs to a run, and how they are signalled without ever hitting a stranger.

A process is boot id + pid + start time (clock ticks since boot): a pid alone is reused. What belongs to a run is the
tree below its supervisor (a child subreaper, so orphans stay in it) and every process that carries the run's cookie in
the environment. Nothing else is ever signalled.
"""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set

from ddpctl_worker.cgroup import ControlGroup
from ddpctl_worker.contract import ENV_COOKIE

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36


class ProcessId(NamedTuple):
    """A process that cannot be mistaken for another one."""

    boot: str
    pid: int
    start: int

    def to_json(self) -> Dict[str, Any]:
        return {"boot": self.boot, "pid": self.pid, "start": self.start}


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


def ended(child: int) -> Optional[int]:
    """The wait status of a child of this process that has ended, which stays to be collected; None while it runs."""
    try:
        found = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    if found is None:
        return None
    core = 0x80 if found.si_code == os.CLD_DUMPED else 0
    return found.si_status << 8 if found.si_code == os.CLD_EXITED else found.si_status | core


def open_pidfd(pid: int) -> Optional[int]:
    """A descriptor that becomes readable when ``pid`` dies; None without support for it, or without the process."""
    opener = getattr(os, "pidfd_open", None)  # Python 3.9, Linux 5.3
    try:
        return int(opener(pid)) if opener is not None else None
    except OSError:
        return None


def identify(pid: int) -> Optional[ProcessId]:
    """Who ``pid`` is now; None when there is no such process."""
    found = read_stat(pid)
    return ProcessId(boot_id(), pid, found.start) if found else None


def from_json(value: Any) -> Optional[ProcessId]:
    """The identity kept in a record; None for null or nonsense."""
    try:
        return ProcessId(str(value["boot"]), int(value["pid"]), int(value["start"]))
    except (TypeError, KeyError, ValueError, OverflowError):
        return None


def is_alive(who: Optional[ProcessId]) -> bool:
    """Whether that very process still runs."""
    if who is None or who.boot != boot_id():
        return False
    found = read_stat(who.pid)
    return found is not None and found.start == who.start and found.alive


def living(*these: ProcessId) -> List[int]:
    """The pids of those that still run: that of a dead one may be a stranger's, or the job's, by now."""
    return [who.pid for who in these if is_alive(who)]


def send(who: ProcessId, number: int) -> bool:
    """Signal that very process; False when it is gone. A reused pid is never hit where the kernel has pidfds."""
    if who.boot != boot_id():
        return False
    pidfd_open = getattr(os, "pidfd_open", None)
    pidfd_send = getattr(signal, "pidfd_send_signal", None)
    if pidfd_open is None or pidfd_send is None:
        return _send_checked(who, number)
    try:
        fd = pidfd_open(who.pid)
    except ProcessLookupError:
        return False
    except OSError:  # a kernel before 5.3, or a sandbox
        return _send_checked(who, number)
    try:
        if not is_alive(who):
            return False
        pidfd_send(fd, number)
        return True
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(fd)


def _send_checked(who: ProcessId, number: int) -> bool:
    if not is_alive(who):
        return False
    try:
        os.kill(who.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


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


def carriers(cookie: str, among: Iterable[int]) -> Set[int]:
    """The processes of this user that were started with the run's cookie."""
    mark = ("%s=%s" % (ENV_COOKIE, cookie)).encode("utf-8", "replace")
    mine = os.geteuid()
    found = set()
    for pid in among:
        try:
            if os.stat("/proc/%d" % pid).st_uid != mine:
                continue
            with open("/proc/%d/environ" % pid, "rb") as file:
                if mark in file.read().split(b"\0"):
                    found.add(pid)
        except OSError:
            continue
    return found


def members(
    cookie: str,
    roots: Iterable[int],
    keep: Iterable[int],
    known: Iterable[Sequence[int]] = (),
    group: Optional[ControlGroup] = None,
) -> Dict[int, Stat]:
    """Every living process of the run: below ``roots``, with the cookie, ``known`` [pid, start], in its control group,
    or below any of these.

    ``keep`` are pids that are never in the answer: roots, the caller, the guardian.
    """
    inside = group.pids() if group is not None else set()
    everyone = snapshot()
    found = inside & everyone.keys()
    found |= {pid for pid, start in known if pid in everyone and everyone[pid].start == start}
    found |= descendants([*roots, *found], everyone)
    # Who belongs to it by birth need not be asked: reading the environment of one that waits for a hung disk may wait.
    marked = carriers(cookie, everyone.keys() - found) if cookie else set()
    found = (found | marked | descendants(marked, everyone)) - set(keep) - {os.getpid()}
    return {pid: everyone[pid] for pid in found if everyone[pid].alive}


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


def guardian_words(run: str, host: str) -> List[str]:
    """How the command line of a run's guardian ends."""
    return ["ddpctl-guardian", run, host]


def guardians(run: str, host: str) -> Set[int]:
    """The run's guardian, and its supervisor, as their command lines tell: before they have said who they are."""
    tail = b"\0" + b"".join(os.fsencode(word) + b"\0" for word in guardian_words(run, host))
    found = set()
    for one in snapshot().values():
        try:
            with open("/proc/%d/cmdline" % one.pid, "rb") as file:
                if one.alive and file.read().endswith(tail):
                    found.add(one.pid)
        except OSError:
            continue
    return found


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


def _prctl(option: int, value: Any) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def become_subreaper() -> None:
    """From now on orphaned descendants become children of this process instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_name(name: str) -> None:
    """What ``ps`` and ``top`` show for this process (15 bytes)."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode("ascii")))


class DeathSignal:
    """Callable in a fresh child: the kernel sends it ``number`` when the spawning thread ends.

    Made before the fork: nothing may be imported or looked up between fork and exec.
    """

    def __init__(self, number: int) -> None:
        self._libc = ctypes.CDLL(None)
        self._number = number
        self._parent = os.getpid()

    def __call__(self) -> None:
        self._libc.prctl(_PR_SET_PDEATHSIG, self._number, 0, 0, 0)
        if os.getppid() != self._parent:  # it died in between
            os.kill(os.getpid(), signal.SIGKILL)
