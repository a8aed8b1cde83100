"""One command on this machine with all that it starts here: its end, its signals, its CPU and memory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Event, Thread

from tests.bench.peers.tools import Desk
from tests.lab.process import Identity, stat_fields

PROC = Path("/proc")
LOOK_S = 0.5
USER_CPU, SYSTEM_CPU, CHILDREN_USER, CHILDREN_SYSTEM = 11, 12, 13, 14  # fields of /proc/PID/stat after the name
SESSION = 3


class Command:
    """A session of its own, as a terminal gives it. Its output goes to a file, so that it never waits for a reader."""

    def __init__(self, desk: Desk, argv: Sequence[str], programs: Sequence[Path], log: Path) -> None:
        self.log = log
        self.began, self.began_at = time.monotonic(), time.time()
        with open(log, "w") as out:
            self.process = subprocess.Popen(
                desk.inside(argv),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=desk.place,
                env=desk.environ(*programs),
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def code(self) -> int | None:
        return self.process.poll()

    def members(self) -> list[int]:
        """Return its processes on this machine: its session, and all descendants of the session."""
        parents, sessions = {}, {}
        for entry in PROC.glob("[0-9]*"):
            with contextlib.suppress(OSError):
                fields = stat_fields(PROC, int(entry.name))
                parents[int(entry.name)], sessions[int(entry.name)] = int(fields[1]), int(fields[SESSION])
        found = {pid for pid, session in sessions.items() if session == self.process.pid}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return sorted(found)

    def interrupt(self) -> None:
        """Ctrl-C: to the foreground process group, which is that of the command."""
        os.killpg(self.process.pid, signal.SIGINT)

    def kill(self) -> None:
        """The command's own process, and nothing else."""
        self.process.kill()

    def kill_all(self) -> None:
        """All that it has here, as when this machine is lost, but for the goodbyes of its kernel."""
        for pid in self.members():
            with contextlib.suppress(OSError):
                Identity.of(pid).kill()
        self.process.wait()


class Cost:
    """CPU and memory of a command and all that it starts here, looked at until `stop`."""

    def __init__(self, command: Command) -> None:
        self.cpu_s = self.peak_mb = 0.0
        self._command = command
        self._over = Event()
        self._thread = Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            members = self._command.members()
            # A child that has ended counts in its parent's figures.
            self.cpu_s = max(self.cpu_s, sum(map(_cpu, members)))
            self.peak_mb = max(self.peak_mb, sum(map(_memory, members)))


def _cpu(pid: int) -> float:
    with contextlib.suppress(OSError):
        fields = stat_fields(PROC, pid)
        ticks = sum(int(fields[at]) for at in (USER_CPU, SYSTEM_CPU, CHILDREN_USER, CHILDREN_SYSTEM))
        return ticks / os.sysconf("SC_CLK_TCK")
    return 0.0


def _memory(pid: int) -> float:
    """Proportional set size in MB: pages that processes share count once."""
    with contextlib.suppress(OSError):
        for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0
