"""`ddpctl` in processes that have its imports already: a fork costs a twentieth of a start.

A pytest process has a parent for its commands: this file as a program. It imports all of ddpctl once and forks for each
command. The child then is what the installed script would be: a session of its own, the arguments, environment, folder
and files of the request, and `main` of the command line. Only /proc shows a difference: the command line and the
environment there are of the parent.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NoReturn

REQUEST_BYTES = 65536  # a larger request does not fit into a packet; such a command is started without this file
START_S = 180.0  # until the parent has forked: its imports take seconds on a busy machine


class Child:
    """A forked command, with the part of ``subprocess.Popen`` that tests use."""

    def __init__(self, parent: Parent, pid: int) -> None:
        self.parent = parent
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self.parent.read_status(self.pid, 0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            left = 60.0 if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired("ddpctl", timeout or 0.0)
            self.returncode = self.parent.read_status(self.pid, left)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class Parent:
    """The process that forks the commands, and what it has said of them."""

    def __init__(self) -> None:
        self.line, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.statuses: dict[int, int] = {}
        with other:
            self.process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(other.fileno())],
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ},
            )
        atexit.register(self.close)

    def start(self, request: bytes, files: Sequence[int]) -> Child:
        socket.send_fds(self.line, [request], files)
        deadline = time.monotonic() + START_S
        while (message := self._read(deadline - time.monotonic())) is not None:
            if "started" in message:
                return Child(self, message["started"])
        raise AssertionError(f"no command was forked within {START_S} s")

    def read_status(self, pid: int, within: float) -> int | None:
        """Return the exit status of a child as ``subprocess`` does, or None after ``within`` seconds."""
        deadline = time.monotonic() + within
        while pid not in self.statuses:
            if self._read(deadline - time.monotonic()) is None:
                return None
        return self.statuses.pop(pid)

    def close(self) -> None:
        self.line.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        self.process.kill()
        self.process.wait()

    def _read(self, within: float) -> dict[str, int] | None:
        self.line.settimeout(max(within, 0.000001))
        try:
            packet = self.line.recv(REQUEST_BYTES)
        except TimeoutError:
            return None
        assert packet, "the process that forks the commands has ended"
        message: dict[str, int] = json.loads(packet)
        if "ended" in message:
            self.statuses[message["ended"]] = message["status"]
        return message


@cache
def parent() -> Parent:
    return Parent()


def start_preloaded(
    words: Sequence[str], files: Sequence[int], env: Mapping[str, str], cwd: str, *, terminal: bool = False
) -> Child | None:
    """Start ``ddpctl``; ``files`` are its stdin, stdout and stderr. None if only a start of its own can serve."""
    request = json.dumps({"words": list(words), "env": dict(env), "cwd": cwd, "terminal": terminal}).encode()
    interpreter_reads = any(name.startswith(("PYTHON", "LD_", "LC_")) for name in env)
    if interpreter_reads or env.get("LANG") != "C.UTF-8" or len(request) > REQUEST_BYTES:
        return None
    return parent().start(request, files)


def main() -> None:
    """Serve until the pytest process is gone."""
    line = socket.socket(fileno=int(sys.argv[1]))
    import_all()
    gc.collect()
    gc.freeze()  # a child that collects garbage must not copy the pages of the imports
    watched = selectors.DefaultSelector()
    watched.register(line, selectors.EVENT_READ)
    while True:
        for key, _ in watched.select():
            if key.data is not None:
                watched.unregister(key.fd)
                os.close(key.fd)
                status = os.waitstatus_to_exitcode(os.waitpid(key.data, 0)[1])
                line.send(json.dumps({"ended": key.data, "status": status}).encode())
                continue
            packet, files, _, _ = socket.recv_fds(line, REQUEST_BYTES, 3)
            if not packet:
                os._exit(0)
            reader, writer = os.pipe()
            pid = os.fork()
            if not pid:
                watched.close()
                line.close()
                os.close(reader)
                os.setsid()
                os.close(writer)
                run(json.loads(packet), files)
            os.close(writer)
            os.read(reader, 1)  # until the child has its session: from then on signals to its group reach it
            for file in (reader, *files):
                os.close(file)
            watched.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
            line.send(json.dumps({"started": pid}).encode())


def import_all() -> None:
    """Import every module of ddpctl, and with them its libraries."""
    import ddpctl

    for module in pkgutil.walk_packages(ddpctl.__path__, "ddpctl."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def run(request: dict[str, object], files: Sequence[int]) -> NoReturn:
    """Become the command."""
    import fcntl
    import termios

    from ddpctl.cli.app import main as command

    words, env = request["words"], request["env"]
    assert isinstance(words, list)
    assert isinstance(env, dict)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    if request["terminal"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    sys.argv = words
    sys.stdin = open(0, closefd=False, errors="surrogateescape")  # noqa: SIM115  # open until the end, as the next two
    sys.stdout = open(1, "w", closefd=False, errors="surrogateescape")  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, errors="backslashreplace", buffering=1)  # noqa: SIM115
    command()
    sys.exit()


if __name__ == "__main__":
    main()
