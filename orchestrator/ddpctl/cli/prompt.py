"""Asking a person. Whether there is one depends on the controlling terminal alone: output may be piped or plain."""

from __future__ import annotations

import atexit
import contextlib
import getpass
import io
import os
import termios
from collections.abc import Iterator, Sequence
from typing import TextIO

from ddpctl.errors import UsageError
from ddpctl.render.clean import clean
from ddpctl.render.progress import quiet

TERMINAL = "/dev/tty"


class TerminalPrompter:
    """Answers the transport's questions; a live display stands back meanwhile."""

    def __init__(self) -> None:
        self._passphrases: dict[str, str | None] = {}

    def passphrase(self, path: str) -> str | None:
        """The passphrase of a key file, asked for once a command; None when the person pressed Ctrl-D."""
        if path not in self._passphrases:
            self._passphrases[path] = _secret(f"passphrase of {path}")
        return self._passphrases[path]

    def password(self, account: str, same_as: str) -> str | None:
        """The password of an account; None when the person pressed Ctrl-D."""
        return _secret(f"password of {account}" + (f" (Enter: the one of {same_as})" if same_as else ""))


def _secret(question: str) -> str | None:
    with quiet(), _echo_comes_back():
        try:
            return getpass.getpass(f"{question}: ")
        except EOFError:
            return None


@contextlib.contextmanager
def _echo_comes_back() -> Iterator[None]:
    """Ctrl-C goes to the main thread, and the program may end while this one waits for an answer with the echo off."""
    try:
        terminal = os.open(TERMINAL, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:  # none: getpass asks on stdin
        yield
        return
    before = termios.tcgetattr(terminal)

    def restore() -> None:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)

    atexit.register(restore)
    try:
        yield
    finally:
        atexit.unregister(restore)
        os.close(terminal)


def can_ask() -> bool:
    """Whether there is a controlling terminal, and this program is in its foreground.

    A job in the background would be stopped by the kernel when it reads from the terminal.
    """
    try:
        with _opened() as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def require_terminal(why: str, *, otherwise: str) -> None:
    """For a command that needs a person's word: ``why`` it asks, and the command that needs no answer.

    Raises:
        UsageError: there is nobody to ask.
    """
    if not can_ask():
        raise UsageError(f"{why}, but there is no terminal", hint=otherwise)


def choose(question: str, *options: str) -> str | None:
    """One of ``options``, by its beginning; None at the end of input."""
    listed = " / ".join(f"[{option[0]}]{option[1:]}" for option in options)
    while (answer := ask(f"{question} {listed}: ")) is not None:
        for option in options:
            if answer and option.startswith(answer):
                return option
    return None


def confirm(question: str) -> bool:
    """Whether the answer is yes; Enter means no."""
    while (answer := ask(f"{question} [y/N]: ")) is not None:
        if answer in ("y", "yes"):
            return True
        if answer in ("", "n", "no"):
            return False
    return False


def pick(question: str, options: Sequence[str]) -> int | None:
    """The index of one of ``options``, chosen by its number; Enter means the first. None at the end of input."""
    show("".join(f"  {number}  {option}\n" for number, option in enumerate(options, 1)))
    while (answer := ask(f"{question} [1]: ")) is not None:
        if answer in ("", *(str(number) for number in range(1, len(options) + 1))):
            return int(answer or 1) - 1
    return None


def show(text: str) -> None:
    """Put text on the terminal on which the next question is asked."""
    with contextlib.suppress(OSError), _opened() as terminal:
        terminal.write(clean(text))


def ask(question: str) -> str | None:
    """One line from the terminal, without blanks around it and in small letters; None at the end of input."""
    line = ask_line(question)
    return line.lower() if line is not None else None


def ask_line(question: str) -> str | None:
    """The same as it was typed."""
    try:
        with _opened() as terminal:
            terminal.write(question)
            terminal.flush()
            line = terminal.readline()
    except OSError:  # the terminal is gone
        return None
    return line.strip() if line else None


@contextlib.contextmanager
def _opened() -> Iterator[TextIO]:
    number = os.open(TERMINAL, os.O_RDWR | os.O_NOCTTY)
    with io.TextIOWrapper(io.FileIO(number, "r+"), encoding="utf-8", errors="replace", write_through=True) as terminal:
        yield terminal
