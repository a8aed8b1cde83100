"""Starts the helper processes of ddpctl and talks to them: agent, guardian, keeper, notifier and so on.

``command`` is the command line of each of them. ``launch``, ``read_order``, ``reply_to_starter`` and ``detach`` are for
the processes that outlive the login that starts them: the guardian of a run, and the agent of a run with restarts.
``MessageWriter`` and ``MessageReader`` are the two ends of a pipe between two such processes: one JSON object a line.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
from typing import Any, Dict, List, Mapping, Optional, Sequence

import ddpctl_worker
from ddpctl_worker.machine.core_files import login_core_limit, refuse_core_files
from ddpctl_worker.machine.limits import MESSAGE_READ_BYTES

_CODE = "import sys; sys.path.insert(0, sys.argv[1]); from ddpctl_worker.machine.child import run; run(sys.argv[2:])"

Message = Dict[str, Any]


def code_path() -> str:
    """Return the zipapp or folder from which this worker was imported."""
    return os.path.dirname(os.path.dirname(os.path.abspath(ddpctl_worker.__file__)))


def command(module: str, *arguments: str, options: Sequence[str] = ()) -> List[str]:
    """Return the command line that calls ``main(*arguments)`` of ``module``. ``options`` are the interpreter's."""
    limit = str(login_core_limit())
    return [sys.executable, "-I", *options, "-c", _CODE, code_path(), limit, module, *arguments]


def run(words: Sequence[str]) -> None:
    """Call ``main`` of the module that the command line names, without core files.

    No signal is blocked, whatever the parent blocks.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    core_limit, module, *arguments = words
    refuse_core_files(int(core_limit))
    importlib.import_module(module).main(*arguments)


def launch(module: str, order: Mapping[str, Any], words: Sequence[str], fds: Sequence[int] = ()) -> Dict[str, Any]:
    """Start ``main`` of ``module`` with ``order``; return its answer {"refused": ``None`` or the reason, ...}.

    The order holds secrets, so it goes through a pipe. The process inherits only ``fds`` from the caller, so that the
    caller's SSH channel can close. ``words`` end its command line, by which other processes find it.
    """
    reply_r, reply_w = os.pipe()
    argv = command(module, str(reply_w), *words)
    null, own = subprocess.DEVNULL, (reply_w, *fds)
    child = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=null, stderr=null, pass_fds=own, start_new_session=True, cwd="/"
    )
    os.close(reply_w)
    try:
        assert child.stdin is not None
        child.stdin.write(json.dumps(order).encode("ascii"))
        child.stdin.close()
        child.wait()  # it forks and ends at once (read_order)
        with os.fdopen(reply_r, "rb") as pipe:
            answer = pipe.read()
    except BrokenPipeError:
        answer = b""
    if not answer:
        return {"refused": "the supervisor did not start; see supervisor.log in the run's folder"}
    reply: Dict[str, Any] = json.loads(answer)
    return reply


def reply_to_starter(fd: int, reply: Mapping[str, Any]) -> None:
    """Send the answer that ``launch`` returns, and close ``fd``."""
    with contextlib.suppress(BrokenPipeError):  # the starter was killed; the run continues
        os.write(fd, json.dumps(reply).encode("ascii"))
    os.close(fd)


def read_order() -> Dict[str, Any]:
    """Read the order in the started process; continue in a child, while the process itself ends."""
    order: Dict[str, Any] = json.loads(sys.stdin.buffer.read())
    if os.fork():
        os._exit(0)
    return order


def detach(log: str) -> None:
    """Leave the login: ignore its signals, leave its folder, and send stdout and stderr to the file ``log``."""
    os.umask(0o077)
    os.chdir("/")
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    debug = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    os.dup2(null, 0)
    os.dup2(debug, 1)
    os.dup2(debug, 2)
    os.close(null)
    os.close(debug)


def encode(message: Message) -> bytes:
    """Return the line for ``message``. An empty message is an empty line: a heartbeat that costs one byte."""
    return (json.dumps(message).encode("ascii") if message else b"") + b"\n"


class MessageWriter:
    """The writing end of a pipe or a socket. No call waits for the reader: the rest of a message waits here.

    Raises (each method): OSError: the reader has closed its end.
    """

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd, self._rest = fd, b""

    @property
    def waiting(self) -> bool:
        """Whether the pipe has not taken everything yet."""
        return bool(self._rest)

    def send(self, message: Message) -> None:
        """Write ``message`` after all earlier messages. A later call writes the part for which the pipe is too full."""
        self._rest += encode(message)
        self.flush()

    def offer(self, message: Message) -> bool:
        """Write ``message`` if the pipe has room for it now; return whether it had.

        A message of at most ``select.PIPE_BUF`` bytes is written as a whole or not at all.
        """
        self.flush()
        if self._rest:
            return False
        line = self._rest = encode(message)
        self.flush()
        if self._rest == line:
            self._rest = b""
            return False
        return True

    def flush(self) -> None:
        """Write as much as the pipe takes."""
        try:
            while self._rest:
                self._rest = self._rest[os.write(self._fd, self._rest) :]
        except BlockingIOError:
            pass  # the pipe is full: its reader is busy, or stopped


class MessageReader:
    """The reading end. ``ended``: the writer has closed its end, so no message will come any more."""

    def __init__(self, fd: int) -> None:
        self._fd, self._rest = fd, b""
        self._poll = select.poll()  # unlike select(2) it takes descriptors above 1023
        self._poll.register(fd, select.POLLIN)
        self.ended = False

    def receive(self, timeout: Optional[float]) -> List[Message]:
        """Wait up to ``timeout`` seconds (``None``: without limit) for bytes; return the messages that they complete.

        An empty list means silence, half a message, or, with ``ended``, the end of the pipe.

        Raises:
            ValueError: a line is no JSON.
        """
        if not self._poll.poll(None if timeout is None else max(0.0, timeout) * 1000):
            return []
        try:
            data = os.read(self._fd, MESSAGE_READ_BYTES)
        except ConnectionResetError:  # a socket whose other end was closed with bytes unread
            data = b""
        self.ended = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) if line else {} for line in lines]
