"""Asking a person. Whether there is one depends on the controlling terminal alone: output may be piped or plain."""

from __future__ import annotations

import contextlib
import getpass
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO

from ddpctl.spec.ranges import fold

TERMINAL = "/dev/tty"


class TerminalPrompter:
    """Answers the transport's questions; it asks each once, before the fan-out."""

    def passphrase(self, path: str) -> str | None:
        """The passphrase of a key file; None when the person pressed Ctrl-D."""
        return _secret(f"passphrase of {path}")

    def password(self, user: str, hosts: Sequence[str]) -> str | None:
        """The password of an account; None when the person pressed Ctrl-D."""
        return _secret(f"password of {user} on {fold(hosts)}")


def _secret(question: str) -> str | None:
    try:
        return getpass.getpass(f"{question}: ")
    except EOFError:
        return None


def can_ask() -> bool:
    """Whether there is a controlling terminal, and this program is in its foreground.

    A job in the background would be stopped by the kernel when it reads from the terminal.
    """
    try:
        with _opened() as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def choose(question: str, options: Mapping[str, str]) -> str | None:
    """One of ``options`` (key -> meaning), by its key or the beginning of its meaning; None at the end of input."""
    listed = " / ".join(f"[{meaning[0]}]{meaning[1:]}" for meaning in options.values())
    while (answer := ask(f"{question} {listed}: ")) is not None:
        for key, meaning in options.items():
            if answer and (answer == key or meaning.startswith(answer)):
                return key
    return None


def confirm(question: str) -> bool:
    """Whether the answer is yes; Enter means no."""
    while (answer := ask(f"{question} [y/N]: ")) is not None:
        if answer in ("y", "yes"):
            return True
        if answer in ("", "n", "no"):
            return False
    return False


def ask(question: str) -> str | None:
    """One line from the terminal, without blanks around it and in small letters; None at the end of input."""
    try:
        with _opened() as terminal:
            terminal.write(question)
            terminal.flush()
            line = terminal.readline()
    except OSError:  # the terminal is gone
        return None
    return line.strip().lower() if line else None


@contextlib.contextmanager
def _opened() -> Iterator[TextIO]:
    number = os.open(TERMINAL, os.O_RDWR | os.O_NOCTTY)
    with io.TextIOWrapper(io.FileIO(number, "r+"), encoding="utf-8", errors="replace", write_through=True) as terminal:
        yield terminal
