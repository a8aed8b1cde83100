"""Asking a person on the terminal."""

from __future__ import annotations

import atexit
import contextlib
import getpass
import os
import termios
from collections.abc import Iterator

import typer

from ddpctl.render.progress import quiet


class TerminalPrompter:
    """Answers the transport's questions; a live display stands back meanwhile."""

    def __init__(self) -> None:
        self._passphrases: dict[str, str | None] = {}

    def passphrase(self, path: str) -> str | None:
        """The passphrase of a key file, asked for once a command; None when the person pressed Ctrl-D."""
        if path not in self._passphrases:
            self._passphrases[path] = _ask(f"passphrase of {path}")
        return self._passphrases[path]

    def password(self, account: str, same_as: str) -> str | None:
        """The password of an account; None when the person pressed Ctrl-D."""
        return _ask(f"password of {account}" + (f" (Enter: the one of {same_as})" if same_as else ""))


def _ask(question: str) -> str | None:
    with quiet(), _echo_comes_back():
        try:
            return getpass.getpass(f"{question}: ")
        except EOFError:
            return None


@contextlib.contextmanager
def _echo_comes_back() -> Iterator[None]:
    """Ctrl-C goes to the main thread, and the program may end while this one waits for an answer with the echo off."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
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


def choose(question: str, options: dict[str, str]) -> str:
    """One of ``options`` (key -> meaning), by its key or its first letter."""
    listed = " / ".join(f"[{meaning[0]}]{meaning[1:]}" for meaning in options.values())
    while True:
        answer = typer.prompt(f"{question} {listed}", default="", show_default=False, err=True).strip().lower()
        for key, meaning in options.items():
            if answer and (answer == key or meaning.startswith(answer)):
                return key
