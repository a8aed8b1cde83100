"""Reads the Python stacks of another process: by py-spy, or by a signal if py-spy may not read the process's memory.

py-spy does not disturb the process, and also reads a stopped process. The signal interrupts a sleep or read in C code.
So it is sent only to a process that catches it, and only when a person asks or the run is stuck (look.py).
"""

from __future__ import annotations

import os
import time
from typing import List, NamedTuple, Optional

from ddpctl_worker.doctor.limits import (
    PY_SPY_BYTES,
    PY_SPY_S,
    SIGNAL_LOOK_S,
    SIGNAL_S,
    STACK_BYTES,
    STACK_FILE_BYTES,
    WHOLE_STACK_S,
)
from ddpctl_worker.machine import proc, tool
from ddpctl_worker.rules import frames
from ddpctl_worker.rules.frames import Thread

STACK_SIGNAL = 40


class Stacks(NamedTuple):
    """The threads with their stacks, or the reason (``trouble``) why there are no threads."""

    threads: Optional[List[Thread]]
    trouble: str = ""

    @property
    def main(self) -> Optional[Thread]:
        return next((one for one in self.threads or () if one.main), None)


def by_py_spy(program: str, pid: int, seconds: float = PY_SPY_S) -> Stacks:
    """Return the stacks that py-spy reads, without a pause of the process."""
    argv = [program, "dump", "--nonblocking", "--json", "--locals", "--pid", str(pid)]
    try:
        said = tool.run(argv, seconds, replace_env={"LC_ALL": "C", "PATH": os.defpath}, limit=PY_SPY_BYTES)
    except OSError as error:
        return Stacks(None, "py-spy cannot be run: %s" % (error.strerror or error))
    if said["timed_out"]:
        late = said["seconds"] >= seconds
        return Stacks(None, "py-spy: %s" % ("it did not end within %g s" % seconds if late else said["stderr"]))
    threads = frames.from_py_spy(said["stdout"], pid)
    if threads is None:
        return Stacks(None, _why(said["stderr"]))
    return Stacks(threads)


def _why(text: str) -> str:
    """Return why py-spy has read nothing. Its own text would advise a command that does not help here."""
    if "permission denied" in text.lower() or "SYS_PTRACE" in text:
        return "this host lets nobody read another process's memory (Yama or the container)"
    return "py-spy: %s" % (" ".join(text.split())[:200] or "nothing was read")


def by_signal(folder: str, pid: int) -> Stacks:
    """Return the stack of the main thread, which the process writes into a file when it gets the signal."""
    path = os.path.join(folder, "%d.stack" % pid)
    if not catches(pid, STACK_SIGNAL):
        return Stacks(None, "the rank does not answer the signal that asks for its stack")
    if is_traced(pid):  # the signal would stop the rank for its debugger
        return Stacks(None, "a debugger is attached to the rank")
    if not _holds(pid, path):
        return Stacks(None, "the rank has closed the file for its stack")
    try:
        if os.stat(path).st_size > STACK_FILE_BYTES:  # the rank appends to it, wherever its end is
            os.truncate(path, 0)
        before = os.stat(path).st_size
        os.kill(pid, STACK_SIGNAL)
        _await_stack(path, before)
        with open(path, "rb") as file:
            file.seek(max(before, os.stat(path).st_size - STACK_BYTES))
            text = file.read(STACK_BYTES).decode("utf-8", "replace")
    except OSError as error:
        return Stacks(None, "its stack could not be had: %s" % (error.strerror or error))
    found = frames.from_faulthandler(text)
    if found is None:
        return Stacks(None, "the rank did not write its stack within %g s" % SIGNAL_S)
    return Stacks([Thread("MainThread", True, False, found, {})])


def _await_stack(path: str, before: int) -> None:
    """Wait until the file has grown and rests, because a rank writes line by line; at most SIGNAL_S."""
    size, grown = before, time.monotonic()
    until = grown + SIGNAL_S
    while time.monotonic() < until and (size == before or time.monotonic() < grown + WHOLE_STACK_S):
        time.sleep(SIGNAL_LOOK_S)
        now = os.stat(path).st_size
        if now != size:
            size, grown = now, time.monotonic()


def catches(pid: int, number: int) -> bool:
    """Return whether the process has a handler for the signal; without a handler the signal would kill it."""
    return bool(int(_status(pid, b"SigCgt:"), 16) >> (number - 1) & 1)


def is_traced(pid: int) -> bool:
    """Return whether a debugger is attached to the process, running or not."""
    return int(_status(pid, b"TracerPid:")) != 0


def _status(pid: int, name: bytes) -> bytes:
    """Return a number of /proc/PID/status; 0 if there is no such process."""
    lines = (line.split() for line in (proc.read_file(pid, "status") or b"").splitlines())
    return next((words[1] for words in lines if words[:1] == [name] and len(words) > 1), b"0")


def _holds(pid: int, path: str) -> bool:
    """Return whether the process still has this file open: the descriptor may have become another file's."""
    try:
        wanted = os.stat(path)
        for fd in os.listdir("/proc/%d/fd" % pid):
            try:
                found = os.stat("/proc/%d/fd/%s" % (pid, fd))
            except OSError:
                continue
            if os.path.samestat(wanted, found):
                return True
    except OSError:
        return False
    return False
