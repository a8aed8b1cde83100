"""Identifies, signals and finds the processes of a run, and proves that no process is left.

The identity of a process is boot id + pid + start time (clock ticks since boot), since pids are reused. The processes
of a run are the tree below its supervisor (a child subreaper, so orphans stay in the tree) and every process with the
run's cookie in its environment. No other process is ever signalled.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set

from ddpctl_worker.machine import proc
from ddpctl_worker.machine.cgroup import ControlGroup
from ddpctl_worker.machine.limits import CHASE_S
from ddpctl_worker.wire.contract import ENV_COOKIE

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36


class ProcessId(NamedTuple):
    """The identity of a process, which no other process ever has."""

    boot: str
    pid: int
    start: int

    def to_json(self) -> Dict[str, Any]:
        return {"boot": self.boot, "pid": self.pid, "start": self.start}


def has_ended(child: int) -> Optional[int]:
    """Return the wait status of a child that has ended, without reaping it; ``None`` while it runs."""
    try:
        found = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    if found is None:
        return None
    core = 0x80 if found.si_code == os.CLD_DUMPED else 0
    return found.si_status << 8 if found.si_code == os.CLD_EXITED else found.si_status | core


def collect_exit(child: int) -> bool:
    """Reap a child if it has ended; return whether it is gone."""
    try:
        return os.waitpid(child, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def open_pidfd(pid: int) -> Optional[int]:
    """Return a descriptor that becomes readable when ``pid`` dies; ``None`` without pidfds or without the process."""
    opener = getattr(os, "pidfd_open", None)  # Python 3.9, Linux 5.3
    try:
        return int(opener(pid)) if opener is not None else None
    except OSError:
        return None


def identify(pid: int) -> Optional[ProcessId]:
    """Return the identity of ``pid`` now; ``None`` if there is no such process."""
    found = proc.read_stat(pid)
    return ProcessId(proc.boot_id(), pid, found.start) if found else None


def identity_from_json(value: Any) -> Optional[ProcessId]:
    """Return the identity in a record; ``None`` for null or any other value."""
    try:
        return ProcessId(str(value["boot"]), int(value["pid"]), int(value["start"]))
    except (TypeError, KeyError, ValueError, OverflowError):
        return None


def is_alive(who: Optional[ProcessId]) -> bool:
    """Return whether exactly this process still runs."""
    if who is None or who.boot != proc.boot_id():
        return False
    found = proc.read_stat(who.pid)
    return found is not None and found.start == who.start and found.alive


def filter_alive(*these: ProcessId) -> List[int]:
    """Return the pids of the processes that still run. The pid of a dead process may be reused by now."""
    return [who.pid for who in these if is_alive(who)]


def send(who: ProcessId, number: int) -> bool:
    """Signal exactly this process; return False if it is gone. With pidfds a reused pid is never hit."""
    pidfd_send = getattr(signal, "pidfd_send_signal", None)
    fd = open_pidfd(who.pid) if pidfd_send is not None else None
    try:
        if not is_alive(who):  # checked after the open: an alive process owns the descriptor
            return False
        if fd is not None and pidfd_send is not None:
            pidfd_send(fd, number)
        else:
            os.kill(who.pid, number)
        return True
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if fd is not None:
            os.close(fd)


def find_carriers(cookie: str, among: Iterable[int]) -> Set[int]:
    """Return the pids of this user's processes that were started with the run's cookie."""
    mark = ("%s=%s" % (ENV_COOKIE, cookie)).encode("utf-8", "replace")
    mine = os.geteuid()
    found = set()
    for pid in among:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if os.stat("/proc/%d" % pid).st_uid == mine and mark in (proc.read_file(pid, "environ") or b"").split(
                b"\0"
            ):
                found.add(pid)
    return found


def find_members(
    cookie: str,
    roots: Iterable[int],
    keep: Iterable[int],
    known: Iterable[Sequence[int]] = (),
    group: Optional[ControlGroup] = None,
) -> Dict[int, proc.Stat]:
    """Return every living process of the run.

    These are the processes below ``roots``, with the cookie, of ``known`` [pid, start], in the run's control group, and
    all their descendants. ``keep``: pids that are never in the answer (roots, the caller, the guardian).
    """
    inside = group.pids() if group is not None else set()
    everyone = proc.snapshot()
    found = inside & everyone.keys()
    found |= {pid for pid, start in known if pid in everyone and everyone[pid].start == start}
    found |= proc.descendants([*roots, *found], everyone)
    # Only the rest is searched for the cookie: reading the environment of a process in a hung disk may hang too.
    marked = find_carriers(cookie, everyone.keys() - found) if cookie else set()
    found = (found | marked | proc.descendants(marked, everyone)) - set(keep) - {os.getpid()}
    return {pid: everyone[pid] for pid in found if everyone[pid].alive}


def guardian_argv_tail(run: str, host: str) -> List[str]:
    """Return the last words of a guardian's command line."""
    return ["ddpctl-guardian", run, host]


def guardians(run: str, host: str) -> Set[int]:
    """Return the pids of the run's guardian and supervisor by their command lines, before their claim is written."""
    tail = b"\0" + b"".join(os.fsencode(word) + b"\0" for word in guardian_argv_tail(run, host))
    alive = (stat.pid for stat in proc.snapshot().values() if stat.alive)
    return {pid for pid in alive if (proc.read_file(pid, "cmdline") or b"").endswith(tail)}


def _prctl(option: int, value: Any) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def become_subreaper() -> None:
    """Make this process adopt its orphaned descendants from now on, instead of init."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_name(name: str) -> None:
    """Set the name (15 bytes) of the calling thread for ``ps`` and ``top``; the main thread names the process."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode("ascii")))


def die_with_parent(number: int) -> None:
    """Have the kernel send this process the signal ``number`` when the thread that started it ends."""
    _prctl(_PR_SET_PDEATHSIG, number)


class DeathSignal:
    """Called in a new child: the kernel sends it the signal ``number`` when the spawning thread ends.

    The object is made before the fork, since no import and no look-up is safe between fork and exec. ``parent``: the
    parent's pid where the object is made in the child.
    """

    def __init__(self, number: int, parent: Optional[int] = None) -> None:
        self._libc = ctypes.CDLL(None)
        self._number = number
        self._parent = parent or os.getpid()

    def __call__(self) -> None:
        self._libc.prctl(_PR_SET_PDEATHSIG, self._number, 0, 0, 0)
        if os.getppid() != self._parent:  # the parent has died meanwhile
            os.kill(os.getpid(), signal.SIGKILL)


class Proof:
    """Proves that no process of a run is left, by its control group or by this process's children.

    ``subreaper``: this process adopts the run's orphans. ``spare`` returns its children that do not belong to the run.
    With neither a group nor a subreaper two empty looks are the only proof (stopper.py).
    """

    def __init__(
        self, group: Optional[ControlGroup] = None, *, subreaper: bool = False, spare: Callable[[], List[int]] = list
    ) -> None:
        self._group, self._subreaper, self._spare = group, subreaper, spare

    def given(self) -> bool:
        """Return whether no process of the run is left, as far as this process can prove it."""
        if self._group is not None and not self._group.empty():
            return False
        return not self._subreaper or self._childless()

    def pids(self) -> Set[int]:
        """Return the pids that are left, as far as this process sees them."""
        found = self._group.pids() if self._group is not None else set()
        return found | (self._children() if self._subreaper else set())

    def kill(self) -> None:
        """Kill also the processes that appear and fork between two looks at /proc."""
        if self._group is not None:
            self._group.kill()
        elif self._subreaper:
            self._chase()

    def _chase(self) -> None:
        killed: Set[int] = set()
        until = time.monotonic() + CHASE_S
        while time.monotonic() < until:
            for pid in self._children() - killed:
                killed.add(pid)  # only this process reaps it, so its pid is not reused
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)

    def _childless(self) -> bool:
        if self._children():
            return False
        if self._spare():
            return True
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # ECHILD: the kernel says that there is no child
            return True
        return False

    def _children(self) -> Set[int]:
        return set(proc.children_of(os.getpid())) - set(self._spare())
