"""Answers questions of other processes of this user on this machine, over a Unix socket below the run's folder.

Each socket stands for a single question: a process that connects gets the answer.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import struct
import time
from typing import Any, Callable, Dict, List, Optional

from ddpctl_worker.machine.acceptor import Acceptor, UnprovedSession
from ddpctl_worker.machine.limits import ANSWER_BYTES, ANSWER_S, MOST_QUESTIONS
from ddpctl_worker.machine.notes import note


def ask(path: str, seconds: float = ANSWER_S) -> Optional[Dict[str, Any]]:
    """Return the answer of the process at ``path``; ``None`` without an answer within ``seconds``."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(seconds)
        try:
            with _short(path) as short:
                sock.connect(short)
            return _object(read_all(sock, seconds))
        except (OSError, ValueError, RecursionError):
            return None


def read_all(sock: socket.socket, seconds: float) -> bytes:
    """Read until the other side closes.

    Raises:
        OSError: the answer takes longer than ``seconds``, or has more than ANSWER_BYTES.
    """
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
    """Yield a short path to ``path`` through its folder's descriptor: a socket's path may have 107 bytes."""
    place = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield "/proc/self/fd/%d/%s" % (place, os.path.basename(path))
    finally:
        os.close(place)


class AnswerSocket:
    """Answers each connection with the result of ``tell``, in a thread of its own."""

    def __init__(self, path: str, tell: Callable[[], Dict[str, Any]]) -> None:
        self._path, self._tell = path, tell
        self._acceptor: Optional[Acceptor] = None

    def open(self) -> None:
        """Listen at the path. A file system without sockets leaves all questions without an answer."""
        sock = socket.socket(socket.AF_UNIX)
        try:
            with _short(self._path) as short:
                sock.bind(short)
            sock.listen(16)
        except OSError as error:
            sock.close()
            note("nobody can ask here: %s" % error)
            return
        self._acceptor = Acceptor(sock, lambda line: UnprovedSession(line, self._answer), "answers", MOST_QUESTIONS)
        self._acceptor.start()

    def close(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()

    def _answer(self, line: socket.socket) -> None:
        line.settimeout(ANSWER_S)
        try:
            if _same_user(line):
                line.sendall(json.dumps(self._tell()).encode("ascii"))
        except Exception as error:  # the other process has gone, or ``tell`` failed
            note("a question on this machine was not answered: %r" % error)


def _same_user(line: socket.socket) -> bool:
    """Return whether the peer is this user or root. This check counts if the folder was opened to other users."""
    found = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return found[1] in (os.geteuid(), 0)
