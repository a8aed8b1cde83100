"""A rank as the launcher of a run starts it, through the real shim: with the doctor's way in, and without."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddpctl_worker.doctor import server
from ddpctl_worker.record.paths import RunPaths
from ddpctl_worker.run.launcher import ENV_WATCHER, make_shim

LIMIT_S = 120.0


@dataclass(frozen=True)
class Ended:
    """How a rank ended, byte by byte; ``seconds`` from its start."""

    code: int
    out: str
    err: str
    seconds: float = field(compare=False)


class Living:
    """A rank that runs; ``first`` is the first line that it has printed. Fails when it ends before that."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process, self.pid = process, process.pid
        self.first = self.line()

    def line(self) -> str:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        return self._process.stdout.readline().rstrip("\n") or "no line; on stderr: " + self._process.stderr.read()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self) -> Ended:
        """Wait for the end; return the rest of the output and the exit code.

        Raises:
            subprocess.TimeoutExpired: the rank hangs.
        """
        begun = time.monotonic()
        out, err = self._process.communicate(timeout=LIMIT_S)
        return Ended(self._process.returncode, out, err, time.monotonic() - begun)


class Start:
    """Starts ranks with the same shim.

    ``doctor``: the doctor can see the ranks. ``env``: more environment variables, for the shim and the ranks.
    """

    def __init__(self, folder: Path, python: str, doctor: bool, env: Mapping[str, str] | None = None) -> None:
        folder.mkdir(parents=True)
        self.paths, self.doctor = RunPaths(str(folder)), doctor
        os.mkdir(self.paths.metrics)
        self._env = env or {}
        # 0: no FIFO, so the pipes of a test
        assert make_shim(self.paths, python, {**os.environ, **self._env}, 0, doctor=doctor)

    @property
    def folder(self) -> str:
        return self.paths.doctor

    def environment(self, changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
        """Return the environment of a rank.

        The variables PYTHON*, DDPCTL_* and TORCH* of this process are left out, so a rank has only the values from the
        test. A value of None in ``changes`` sets nothing.
        """
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DDPCTL_", "TORCH"))}
        env.update(self._env, RANK="0", LOCAL_RANK="0", OMP_NUM_THREADS="1", LC_ALL="C.UTF-8")
        if self.doctor:
            env[ENV_WATCHER] = str(os.getpid())
        env.update({name: value for name, value in (changes or {}).items() if value is not None})
        return env

    def start(
        self,
        *args: str,
        env: Mapping[str, str | None] | None = None,
        before: Sequence[str] = (),
        cwd: Path | None = None,
    ) -> subprocess.Popen[str]:
        """``before``: a program that execs the rank, with its arguments."""
        pipe = subprocess.PIPE
        argv = [*before, self.paths.shim, "-u", *args]
        return subprocess.Popen(
            argv, env=self.environment(env), stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, cwd=cwd
        )

    def run(
        self,
        *args: str,
        env: Mapping[str, str | None] | None = None,
        before: Sequence[str] = (),
        cwd: Path | None = None,
        seconds: float = LIMIT_S,
    ) -> Ended:
        """To its end. Raises subprocess.TimeoutExpired: it hangs."""
        begun = time.monotonic()
        with self.start(*args, env=env, before=before, cwd=cwd) as process:
            try:
                out, err = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return Ended(process.returncode, out, err, time.monotonic() - begun)

    @contextmanager
    def living(self, code: str, *, env: Mapping[str, str | None] | None = None) -> Iterator[Living]:
        """A rank that has printed a line and lives on; it is killed at the end."""
        with self.start("-c", code, env=env) as process:
            try:
                yield Living(process)
            finally:
                process.kill()

    def ask(self, pid: int, handler: str = "ping", seconds: float = 60.0) -> bytes | None:
        return server.ask(self.folder, pid, handler, seconds)

    def files(self) -> set[str]:
        """Return the names of the files that ranks have left: sockets and stacks."""
        return set(os.listdir(self.folder)) - {"boot", "nccl"}


MakeStart = Callable[..., Start]


class Both:
    """The same rank twice: with the doctor and without."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self.doctor = Start(folder / "one", python, doctor=True)
        self.plain = Start(folder / "two", python, doctor=False)

    def run(self, *args: str, **options: Any) -> Ended:
        """Fails where they differ in anything but the names of their folders."""
        mine, theirs = (self._anonymous(one, one.run(*args, **options)) for one in (self.doctor, self.plain))
        assert mine == theirs
        return mine

    @staticmethod
    def _anonymous(start: Start, ended: Ended) -> Ended:
        """Without the names of folders, and the addresses of threads."""
        texts = (text.replace(start.paths.node, "RUN") for text in (ended.out, ended.err))
        out, err = (re.sub("0x[0-9a-f]{8,}", "0x0", text) for text in texts)
        return Ended(ended.code, out, err, ended.seconds)


def program(folder: Path, text: str, name: str = "train.py") -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def reported(ended: Ended) -> dict[str, Any]:
    assert ended.code == 0, ended.err
    found: dict[str, Any] = json.loads(ended.out)
    return found
