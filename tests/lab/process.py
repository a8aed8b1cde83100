"""Running commands, and ending processes by identity: a pid alone may belong to another process by now."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.suite.speed import stretch
from tests.suite.waiting import poll

Text = subprocess.CompletedProcess[str]
ENVIRON = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}


class LabError(RuntimeError):
    """The laboratory itself did not work; never what a test is about."""


def wait_until(done: Callable[[], bool], trouble: str, seconds: float = 10.0, pause: float = 0.01) -> None:
    """Raises a LabError with the trouble if the end does not come in time."""
    if not poll(done, seconds, pause):
        raise LabError(f"{trouble} (after {stretch(seconds):.0f} s)")


def call(
    argv: Sequence[str],
    *,
    check: bool = True,
    stdin: str | None = None,
    timeout: float = 60,
    env: Mapping[str, str] | None = None,
) -> Text:
    """Run a command in a session of its own, so that a time-out ends everything it started."""
    with subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="surrogateescape",
        start_new_session=True,
        env=None if env is None else dict(env),
    ) as process:
        try:
            out, err = process.communicate(stdin, timeout=timeout)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if check and process.returncode:
        raise LabError(f"{' '.join(argv)} ended with {process.returncode}: {(err or out).strip()}")
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


@dataclass(frozen=True)
class Identity:
    """One process for good: pids are used again, a pid with its start time is not."""

    pid: int
    start: int

    @classmethod
    def of(cls, pid: int) -> Identity:
        return cls(pid, start_time(Path("/proc"), pid))

    def alive(self) -> bool:
        try:
            return start_time(Path("/proc"), self.pid) == self.start
        except OSError:
            return False

    def kill(self, timeout: float = 60) -> None:
        """SIGKILL, and come back when the process has really ended (with its pid namespace, where it was the init)."""
        try:
            handle = os.pidfd_open(self.pid)
        except OSError:
            return
        try:
            if not self.alive():
                return
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            waiter = select.poll()
            waiter.register(handle, select.POLLIN)
            if not waiter.poll(timeout * 1000):
                raise LabError(f"process {self.pid} did not die within {timeout} s")
        except ProcessLookupError:
            return
        finally:
            os.close(handle)


@dataclass(frozen=True)
class Process:
    """A process, read from the host's own /proc."""

    pid: int
    ppid: int
    state: str
    start: int
    argv: tuple[str, ...]
    environ: Mapping[str, str]

    @property
    def system(self) -> bool:
        """True for the processes of every host: its init and the sshd with its sessions."""
        return self.pid == 1 or (bool(self.argv) and self.argv[0].split(":")[0].endswith("sshd"))


def stat_fields(proc: Path, pid: int) -> list[str]:
    """The fields after the command's name, which may hold blanks and brackets itself: state is 0, ppid 1, start 19."""
    return (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()


def start_time(proc: Path, pid: int) -> int:
    return int(stat_fields(proc, pid)[19])


def read_process(proc: Path, pid: int) -> Process | None:
    """``None`` if the process ended during the look."""
    try:
        fields = stat_fields(proc, pid)
        argv = _strings(proc / str(pid) / "cmdline")
        environ = dict(item.partition("=")[::2] for item in _strings(proc / str(pid) / "environ"))
    except OSError:
        return None
    return Process(pid, int(fields[1]), fields[0], int(fields[19]), tuple(argv), environ)


def read_processes(proc: Path) -> list[Process]:
    pids = sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal())
    return [process for process in (read_process(proc, pid) for pid in pids) if process]


def _strings(path: Path) -> list[str]:
    items = path.read_bytes().decode(errors="surrogateescape").split("\0")
    return items[:-1] if items[-1] == "" else items
