"""Questions of OpenSSH's ssh (passwords, second factors, PINs) to the person at the terminal.

ssh runs the program in $SSH_ASKPASS for each question, with the question as its argument, and takes the first line that
the program prints as the answer (ssh(1)). This program passes the question over a socket to the process that started
ssh. The socket lies in a folder that only this account can enter.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from ddpctl.transport.limits import POLL_S, QUESTION_BYTES
from ddpctl.transport.prompts import Prompter, Say

# $SSH_ASKPASS names a program without arguments.
_PROGRAM = """\
#!/bin/sh
exec "$DDPCTL_ASKPASS_PYTHON" -I -S "$0.py" "$1"
"""
_SCRIPT = """\
import json, os, signal, socket, sys
answer = None
try:
    line = socket.socket(socket.AF_UNIX)
    line.connect(os.environ["DDPCTL_ASKPASS_SOCKET"])
    kind = os.environ.get("SSH_ASKPASS_PROMPT", "")
    line.sendall(json.dumps([os.environ["DDPCTL_ASKPASS_HOST"], kind, sys.argv[1]]).encode("ascii") + b"\\n")
    answer = json.loads(line.makefile().readline() or "null")
except OSError:
    pass
if answer is None:
    os.kill(os.getppid(), signal.SIGTERM)  # ssh would log in with an empty answer, again and again
    sys.exit(1)
print(answer)
"""
_NOTICE = "none"  # SSH_ASKPASS_PROMPT of a message without an answer: ssh ends the program when the message is obsolete


class Askpass:
    """Answers the questions of all ssh processes of a fleet, one question at a time."""

    def __init__(self, folder: Path, prompter: Prompter, say: Say) -> None:
        self._prompter, self._say = prompter, say
        self._turn = threading.Lock()
        self._counting = threading.Lock()
        self._open: Counter[str] = Counter()
        self._before: dict[str, Callable[[], None]] = {}  # host -> shows what the server said so far
        self._closed = False
        self.has_asked = False
        self.gave_up = False  # the person gave no answer: no further question is asked
        self._program = folder / "askpass"
        self._program.write_text(_PROGRAM)
        self._program.chmod(0o700)
        Path(f"{self._program}.py").write_text(_SCRIPT)
        self._path = folder / "questions"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True, name="ddpctl-askpass").start()

    def environment(self, host: str) -> dict[str, str]:
        """Return the environment variables that make an ssh process ask here."""
        return {
            "SSH_ASKPASS": str(self._program),
            "SSH_ASKPASS_REQUIRE": "force",
            "DISPLAY": os.environ.get("DISPLAY") or "none",  # OpenSSH before 8.4 asks a program only with a display
            "DDPCTL_ASKPASS_HOST": host,
            "DDPCTL_ASKPASS_PYTHON": sys.executable,
            "DDPCTL_ASKPASS_SOCKET": str(self._path),
        }

    @property
    def can_run(self) -> bool:
        """Return whether the program may be executed: its file system may forbid that (noexec)."""
        return os.access(self._program, os.X_OK)

    def show_first(self, host: str, show: Callable[[], None]) -> None:
        """Call ``show`` before each question of this host: the server may have said what the answer is about."""
        self._before[host] = show

    def is_asking(self, host: str) -> bool:
        """Return whether a question of this host has no answer yet."""
        return self._open[host] > 0

    def close(self) -> None:
        """Take no more questions."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(POLL_S)  # too many open files
                continue
            threading.Thread(target=self._serve, args=(line,), daemon=True, name="ddpctl-question").start()

    def _serve(self, line: socket.socket) -> None:
        with line, contextlib.suppress(OSError, ValueError):
            host, kind, question = json.loads(line.makefile().readline(QUESTION_BYTES))
            if kind == _NOTICE:
                self._say(f"{host}: {question}")
                line.recv(1)  # until ssh ends the program
                return
            self.has_asked = True
            self._count(host, 1)
            try:
                with self._turn:
                    answer = None if self._closed or self.gave_up or _has_hung_up(line) else self._ask(host, question)
                line.sendall(json.dumps(answer).encode("ascii") + b"\n")
            finally:
                self._count(host, -1)

    def _count(self, host: str, number: int) -> None:
        with self._counting:
            self._open[host] += number

    def _ask(self, host: str, question: str) -> str | None:
        if host in self._before:
            self._before[host]()
        # A question is never answered from memory: a server may imitate the words of another question.
        text = " ".join(question.split()).rstrip(": ")
        answer = self._prompter.answer(f"{host}: {text}")
        self.gave_up = answer is None
        return answer


def _has_hung_up(line: socket.socket) -> bool:
    """Return whether the program has ended: its login is over."""
    try:
        return line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
