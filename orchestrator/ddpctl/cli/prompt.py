"""Asking a person on the terminal."""

from __future__ import annotations

import getpass
from collections.abc import Sequence

import typer

from ddpctl.spec.ranges import fold


class TerminalPrompter:
    """Answers the transport's questions; it asks each once, before the fan-out."""

    def passphrase(self, path: str) -> str | None:
        """The passphrase of a key file; None when the person pressed Ctrl-D."""
        return _ask(f"passphrase of {path}")

    def password(self, user: str, hosts: Sequence[str]) -> str | None:
        """The password of an account; None when the person pressed Ctrl-D."""
        return _ask(f"password of {user} on {fold(hosts)}")


def _ask(question: str) -> str | None:
    try:
        return getpass.getpass(f"{question}: ")
    except EOFError:
        return None


def choose(question: str, options: dict[str, str]) -> str:
    """One of ``options`` (key -> meaning), by its key or its first letter."""
    listed = " / ".join(f"[{meaning[0]}]{meaning[1:]}" for meaning in options.values())
    while True:
        answer = typer.prompt(f"{question} {listed}", default="", show_default=False, err=True).strip().lower()
        for key, meaning in options.items():
            if answer and (answer == key or meaning.startswith(answer)):
                return key
