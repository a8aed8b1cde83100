"""Asks a person on the controlling terminal, even where the output is piped."""

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
    """Asks a person the transport's questions, and hides a live display meanwhile."""

    def __init__(self) -> None:
        self._passphrases: dict[str, str | None] = {}

    def passphrase(self, path: str) -> str | None:
        """Ask for the passphrase of a key file, once per command; ``None`` after Ctrl-D."""
        if path not in self._passphrases:
            self._passphrases[path] = _secret(f"passphrase of {path}")
        return self._passphrases[path]

    def password(self, account: str, same_as: str) -> str | None:
        """Ask for the password of an account; ``None`` after Ctrl-D."""
        return _secret(f"password of {account}" + (f" (Enter: the one of {same_as})" if same_as else ""))

    def answer(self, question: str) -> str | None:
        """Ask a question of OpenSSH's ssh, without showing the answer; ``None`` after Ctrl-D."""
        return _secret(clean(question))


def _secret(question: str) -> str | None:
    with quiet(), _echo_comes_back():
        try:
            return getpass.getpass(f"{question}: ")
        except EOFError:
            return None


@contextlib.contextmanager
def _echo_comes_back() -> Iterator[None]:
    """Turn the terminal's echo on again at exit.

    Ctrl-C goes to the main thread, so the program may end while this thread waits for an answer with the echo off.
    """
    try:
        terminal = os.open(TERMINAL, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:  # without a terminal getpass asks on stdin
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
    """Return whether there is a controlling terminal with this program in its foreground.

    A job in the background would be stopped by the kernel when it reads from the terminal.
    """
    try:
        with _opened() as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def require_terminal(why: str, *, otherwise: str) -> None:
    """Refuse to continue without a person to ask.

    ``why``: the reason for the question. ``otherwise``: a command that asks no question.

    Raises:
        UsageError: there is no terminal.
    """
    if not can_ask():
        raise UsageError(f"{why}, but there is no terminal", hint=otherwise)


def choose(question: str, *options: str) -> str | None:
    """Ask for an option, by its beginning; ``None`` at the end of input."""
    listed = " / ".join(f"[{option[0]}]{option[1:]}" for option in options)
    while (answer := ask(f"{question} {listed}: ")) is not None:
        for option in options:
            if answer and option.startswith(answer):
                return option
    return None


def confirm(question: str) -> bool:
    """Ask for a yes or no; Enter means no."""
    while (answer := ask(f"{question} [y/N]: ")) is not None:
        if answer in ("y", "yes"):
            return True
        if answer in ("", "n", "no"):
            return False
    return False


def pick(question: str, options: Sequence[str]) -> int | None:
    """Ask for an option by number, and return its index; Enter means the first. ``None`` at the end of input."""
    show("".join(f"  {number}  {option}\n" for number, option in enumerate(options, 1)))
    while (answer := ask(f"{question} [1]: ")) is not None:
        if answer in ("", *(str(number) for number in range(1, len(options) + 1))):
            return int(answer or 1) - 1
    return None


def show(text: str) -> None:
    """Write text to the terminal, without control characters."""
    with contextlib.suppress(OSError), _opened() as terminal:
        terminal.write(clean(text))


def ask(question: str) -> str | None:
    """Ask for a line; return it stripped and in lower case, ``None`` at the end of input."""
    line = ask_line(question)
    return line.lower() if line is not None else None


def ask_line(question: str) -> str | None:
    """Ask for a line; return it stripped, ``None`` at the end of input."""
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
