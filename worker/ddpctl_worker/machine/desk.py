"""Questions to a process of ddpctl's own from another one of this user on this machine: a Unix socket below the run's
folder. Who connects gets the answer; there is one question a socket."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import struct
import time
from typing import Any, Callable, Dict, List, Optional

from ddpctl_worker.machine.acceptor import Acceptor, Plain
from ddpctl_worker.machine.limits import ANSWER_BYTES, ANSWER_S, MOST_QUESTIONS
from ddpctl_worker.machine.notes import note


def ask(path: str, seconds: float = ANSWER_S) -> Optional[Dict[str, Any]]:
    """What the process at ``path`` answers; None when it does not."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(seconds)
        try:
            with _short(path) as short:
                sock.connect(short)
            return _object(read_all(sock, seconds))
        except (OSError, ValueError, RecursionError):
            return None


def read_all(sock: socket.socket, seconds: float) -> bytes:
    """All that comes until the other side closes. Raises OSError: it takes too long, or is more than ANSWER_BYTES."""
    until = time.monotonic() + seconds
    pieces: List[bytes] = []
    size = 0
    while size < ANSWER_BYTES:
        left = until - time.monotonic()
        if left <= 0:
            raise socket.timeout("the answer takes too long")
        sock.settimeout(left)
        data = sock.recv(1 << 16)
        if not data:
            return b"".join(pieces)
        pieces.append(data)
        size += len(data)
    raise OSError(errno.EMSGSIZE, "the answer is too long")


def _object(text: bytes) -> Optional[Dict[str, Any]]:
    made = json.loads(text)
    return made if isinstance(made, dict) else None


@contextlib.contextmanager
def _short(path: str) -> Any:
    """The path through its folder's descriptor: a socket's path ends at 107 bytes."""
    place = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield "/proc/self/fd/%d/%s" % (place, os.path.basename(path))
    finally:
        os.close(place)


class Desk:
    """Answers who connects, in a thread of its own, with what ``tell`` gives then."""

    def __init__(self, path: str, tell: Callable[[], Dict[str, Any]]) -> None:
        self._path, self._tell = path, tell
        self._acceptor: Optional[Acceptor] = None

    def open(self) -> None:
        """Where the file system takes no socket, nobody gets an answer."""
        sock = socket.socket(socket.AF_UNIX)
        try:
            with _short(self._path) as short:
                sock.bind(short)
            sock.listen(16)
        except OSError as error:
            sock.close()
            note("nobody can ask here: %s" % error)
            return
        self._acceptor = Acceptor(sock, lambda line: Plain(line, self._answer), "desk", MOST_QUESTIONS)
        self._acceptor.start()

    def close(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()

    def _answer(self, line: socket.socket) -> None:
        line.settimeout(ANSWER_S)
        try:
            if _same_user(line):
                told = self._tell()
                line.sendall(json.dumps(told).encode("ascii"))
        except Exception as error:  # who asked has gone, or there is no answer to give
            note("a question on this machine was not answered: %r" % error)


def _same_user(line: socket.socket) -> bool:
    """The folder is closed to others already; this holds where somebody has opened it."""
    found = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return found[1] in (os.geteuid(), 0)
