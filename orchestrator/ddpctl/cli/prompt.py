"""Asking a person on the terminal."""

from __future__ import annotations

import getpass

import typer


class TerminalPrompter:
    """Answers the transport's questions for passphrases and passwords; each is asked once."""

    def secret(self, question: str) -> str | None:
        """The answer, or None when the person pressed Ctrl-D."""
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
