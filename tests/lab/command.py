"""The installed `ddpctl`, run as a user runs it: a process of its own, with a home, a folder and nothing inherited."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab.preloaded import Child, start_preloaded
from tests.suite.speed import stretch

CommandProcess = Child | subprocess.Popen[bytes]
PROGRAM = Path(sys.prefix, "bin", "ddpctl")
PATH = f"{PROGRAM.parent}:/usr/local/bin:/usr/bin:/bin"
ROWS, COLUMNS = 40, 120


@dataclass(frozen=True)
class Done:
    """How a run ended."""

    args: tuple[str, ...]
    rc: int
    stdout: str
    stderr: str
    seconds: float

    def json(self) -> Any:
        """Return the only document on stdout."""
        return json.loads(self.stdout)

    def ok(self) -> Done:
        """Itself where it succeeded; all that it said otherwise."""
        assert self.rc == 0, f"ddpctl {' '.join(self.args)}: exit {self.rc}\n{self.stdout}\n{self.stderr}"
        return self


class Running:
    """A `ddpctl` that goes on. Its output goes to files, so that it never waits for a reader.

    ``script``: start the installed script itself, for a test that reads the process in /proc or replaces a library.
    """

    def __init__(
        self,
        args: tuple[str, ...],
        folder: Path,
        env: Mapping[str, str],
        cwd: Path,
        stdin: str = "",
        shell: str = "",
        script: bool = False,
    ) -> None:
        self.args = args
        self.words = ["bash", "-c", shell, "bash", *args] if shell else [str(PROGRAM), *args]
        self.preloaded = not (shell or script)
        self.folder = folder
        self.began = time.monotonic()
        (folder / "stdin").write_text(stdin)
        self.process = self._start(env, cwd)

    def _start(self, env: Mapping[str, str], cwd: Path) -> CommandProcess:
        with (
            open(self.folder / "stdin") as stdin,
            open(self.folder / "stdout", "w") as stdout,
            open(self.folder / "stderr", "w") as stderr,
        ):
            return self._start_with((stdin.fileno(), stdout.fileno(), stderr.fileno()), env, cwd)

    def _start_with(
        self, files: tuple[int, int, int], env: Mapping[str, str], cwd: Path, terminal: bool = False
    ) -> CommandProcess:
        if self.preloaded and (child := start_preloaded(self.words, files, env, str(cwd), terminal=terminal)):
            return child
        stdin, stdout, stderr = files
        take = _take_terminal if terminal else None
        return subprocess.Popen(
            self.words,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=env,
            cwd=cwd,
            start_new_session=True,
            preexec_fn=take,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stdout(self) -> str:
        return (self.folder / "stdout").read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr").read_text(errors="replace")

    def wait(self, timeout: float = 60) -> Done:
        """Until it ends; an error, and its death, where that takes longer."""
        deadline = time.monotonic() + stretch(timeout)
        while (rc := self.process.poll()) is None:
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"no end within {timeout} s: {self._said()}")
            self._pause(0.02)
        return Done(self.args, rc, self.stdout, self.stderr, time.monotonic() - self.began)

    def wait_for(self, pattern: str, timeout: float = 60) -> re.Match[str]:
        """Wait until the pattern is in the output. Raises an AssertionError if the command ends or the time is up
        before.
        """
        deadline = time.monotonic() + stretch(timeout)
        while True:
            over = self.process.poll() is not None or time.monotonic() > deadline
            if match := re.search(pattern, self.stdout + self.stderr):
                return match
            if over:
                raise AssertionError(f"{pattern!r} never came: {self._said()}")
            self._pause(0.02)

    def signal(self, number: int) -> None:
        """As a terminal sends it, to the whole process group: `signal.SIGINT` is Ctrl-C."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()

    def _pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def _said(self) -> str:
        return f"ddpctl {' '.join(self.args)}\n{self.stdout}\n{self.stderr}"


class AtTerminal(Running):
    """A `ddpctl` at a terminal: prompts, colours and the live display are on, and all it says is in `stdout`."""

    master = -1  # our end of the terminal
    screen = b""

    def type(self, keys: str) -> None:
        """Press keys: `"\\x03"` is Ctrl-C, `"y\\n"` an answer."""
        os.write(self.master, keys.encode())

    @property
    def stdout(self) -> str:
        self._pause(0)
        return self.screen.decode(errors="replace")

    @property
    def stderr(self) -> str:
        return ""

    def kill(self) -> None:
        super().kill()
        if self.master >= 0:
            os.close(self.master)
            self.master = -1

    def _start(self, env: Mapping[str, str], cwd: Path) -> CommandProcess:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        try:
            return self._start_with((slave, slave, slave), {**env, "TERM": "xterm-256color"}, cwd, terminal=True)
        finally:
            os.close(slave)

    def _pause(self, seconds: float) -> None:
        """Read for so long: a process that writes to a terminal without a reader comes to a halt."""
        deadline = time.monotonic() + seconds
        while self.master >= 0:
            ready, _, _ = select.select([self.master], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return
            try:
                data = os.read(self.master, 65536)
            except OSError:  # EIO: the other end is closed
                data = b""
            self.screen += data
            if not data:
                time.sleep(max(0.0, deadline - time.monotonic()))
                return


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Ddpctl:
    """Runs `ddpctl`, and ends its remaining processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs: list[Running] = []

    def __call__(self, *args: str, timeout: float = 60, stdin: str = "", **where: Any) -> Done:
        """Run to the end. Where: `inventory`, `home`, `cwd`, `env` as for `start`."""
        return self.start(*args, stdin=stdin, **where).wait(timeout)

    def start(
        self,
        *args: str,
        inventory: Path | str | None = None,
        home: Path | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        terminal: bool = False,
        shell: str = "",
        script: bool = False,
    ) -> Running:
        """Start and come back. The inventory goes in as $DDPCTL_INVENTORY; without ``home`` it gets an empty home.

        ``shell`` is a line of bash in which ``ddpctl "$@"`` stands for the command.
        """
        folder = self.folder / f"run{len(self.runs)}"
        folder.mkdir()
        home, cwd = home or self._folder("home"), cwd or self._folder("cwd")
        environ = {"PATH": PATH, "HOME": str(home), "LANG": "C.UTF-8", "USER": "root", "LOGNAME": "root"}
        environ["DDPCTL_SLOTS_DIR"] = str(self.folder / "slots")  # of local hosts: tests run side by side
        if inventory:
            environ["DDPCTL_INVENTORY"] = str(inventory)
        kind = AtTerminal if terminal else Running
        run = kind(args, folder, {**environ, **(env or {})}, cwd, stdin, shell, script)
        self.runs.append(run)
        return run

    def stop(self) -> None:
        for run in self.runs:
            run.kill()

    def _folder(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return folder
