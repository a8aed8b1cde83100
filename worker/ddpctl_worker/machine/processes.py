"""Processes of a run: who they are, how to signal them and no stranger, and proof that none is left.

A process is boot id + pid + start time (clock ticks since boot): a pid alone is reused. What belongs to a run is the
tree below its supervisor (a child subreaper, so orphans stay in it) and every process that carries the run's cookie in
the environment. Nothing else is ever signalled.
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
    """A process that cannot be mistaken for another one."""

    boot: str
    pid: int
    start: int

    def to_json(self) -> Dict[str, Any]:
        return {"boot": self.boot, "pid": self.pid, "start": self.start}


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


def collected(child: int) -> bool:
    """Collect a child of this process, if it has ended: whether it is no zombie, and none any more."""
    try:
        return os.waitpid(child, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def open_pidfd(pid: int) -> Optional[int]:
    """A descriptor that becomes readable when ``pid`` dies; None without support for it, or without the process."""
    opener = getattr(os, "pidfd_open", None)  # Python 3.9, Linux 5.3
    try:
        return int(opener(pid)) if opener is not None else None
    except OSError:
        return None


def identify(pid: int) -> Optional[ProcessId]:
    """Who ``pid`` is now; None when there is no such process."""
    found = proc.read_stat(pid)
    return ProcessId(proc.boot_id(), pid, found.start) if found else None


def from_json(value: Any) -> Optional[ProcessId]:
    """The identity kept in a record; None for null or nonsense."""
    try:
        return ProcessId(str(value["boot"]), int(value["pid"]), int(value["start"]))
    except (TypeError, KeyError, ValueError, OverflowError):
        return None


def is_alive(who: Optional[ProcessId]) -> bool:
    """Whether that very process still runs."""
    if who is None or who.boot != proc.boot_id():
        return False
    found = proc.read_stat(who.pid)
    return found is not None and found.start == who.start and found.alive


def living(*these: ProcessId) -> List[int]:
    """The pids of those that still run: that of a dead one may be a stranger's, or the job's, by now."""
    return [who.pid for who in these if is_alive(who)]


def send(who: ProcessId, number: int) -> bool:
    """Signal that very process; False when it is gone. A reused pid is never hit where the kernel has pidfds."""
    pidfd_send = getattr(signal, "pidfd_send_signal", None)
    fd = open_pidfd(who.pid) if pidfd_send is not None else None
    try:
        if not is_alive(who):  # looked at after the open: if it is alive now, the descriptor is that process's
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


def carriers(cookie: str, among: Iterable[int]) -> Set[int]:
    """The processes of this user that were started with the run's cookie."""
    mark = ("%s=%s" % (ENV_COOKIE, cookie)).encode("utf-8", "replace")
    mine = os.geteuid()
    found = set()
    for pid in among:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if os.stat("/proc/%d" % pid).st_uid == mine and mark in (proc.read(pid, "environ") or b"").split(b"\0"):
                found.add(pid)
    return found


def members(
    cookie: str,
    roots: Iterable[int],
    keep: Iterable[int],
    known: Iterable[Sequence[int]] = (),
    group: Optional[ControlGroup] = None,
) -> Dict[int, proc.Stat]:
    """Every living process of the run: below ``roots``, with the cookie, ``known`` [pid, start], in its control group,
    or below any of these.

    ``keep`` are pids that are never in the answer: roots, the caller, the guardian.
    """
    inside = group.pids() if group is not None else set()
    everyone = proc.snapshot()
    found = inside & everyone.keys()
    found |= {pid for pid, start in known if pid in everyone and everyone[pid].start == start}
    found |= proc.descendants([*roots, *found], everyone)
    # Who belongs to it by birth need not be asked: reading the environment of one that waits for a hung disk may wait.
    marked = carriers(cookie, everyone.keys() - found) if cookie else set()
    found = (found | marked | proc.descendants(marked, everyone)) - set(keep) - {os.getpid()}
    return {pid: everyone[pid] for pid in found if everyone[pid].alive}


def guardian_words(run: str, host: str) -> List[str]:
    """How the command line of a run's guardian ends."""
    return ["ddpctl-guardian", run, host]


def guardians(run: str, host: str) -> Set[int]:
    """The run's guardian, and its supervisor, as their command lines tell: before they have said who they are."""
    tail = b"\0" + b"".join(os.fsencode(word) + b"\0" for word in guardian_words(run, host))
    alive = (one.pid for one in proc.snapshot().values() if one.alive)
    return {pid for pid in alive if (proc.read(pid, "cmdline") or b"").endswith(tail)}


def _prctl(option: int, value: Any) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def become_subreaper() -> None:
    """From now on orphaned descendants become children of this process instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_name(name: str) -> None:
    """What ``ps`` and ``top`` show for this process (15 bytes); called in another thread, for that thread."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode("ascii")))


def die_with_parent(number: int) -> None:
    """From now on the kernel sends this process ``number`` when the thread that started it ends."""
    _prctl(_PR_SET_PDEATHSIG, number)


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


class Proof:
    """``subreaper``: this process adopts the run's orphans; ``spare`` are those of its children that are not the run's.

    With neither a group nor a subreaper two empty looks must do (stopper.py).
    """

    def __init__(
        self, group: Optional[ControlGroup] = None, *, subreaper: bool = False, spare: Callable[[], List[int]] = list
    ) -> None:
        self._group, self._subreaper, self._spare = group, subreaper, spare

    def given(self) -> bool:
        """Whether nothing of the run is left, as far as can be proved here."""
        if self._group is not None and not self._group.empty():
            return False
        return not self._subreaper or self._childless()

    def pids(self) -> Set[int]:
        """Who is left, as far as can be told."""
        found = self._group.pids() if self._group is not None else set()
        return found | (self._children() if self._subreaper else set())

    def kill(self) -> None:
        """End what no look at /proc is quick enough for."""
        if self._group is not None:
            self._group.kill()
        elif self._subreaper:
            self._chase()

    def _chase(self) -> None:
        killed: Set[int] = set()
        until = time.monotonic() + CHASE_S
        while time.monotonic() < until:
            for pid in self._children() - killed:
                killed.add(pid)  # nobody else collects it, so its number stays its own
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)

    def _childless(self) -> bool:
        if self._children():
            return False
        if self._spare():
            return True
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # ECHILD: the kernel's own word
            return True
        return False

    def _children(self) -> Set[int]:
        return set(proc.children_of(os.getpid())) - set(self._spare())
