"""A command as a value. One function quotes it, one redacts it; nobody else writes shell text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

REDACTED = "********"
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True)
class Command:
    """What to run: ``argv`` (never a shell line), extra ``env``, ``cwd``, and secrets that only the process may see.

    ``secrets`` are environment variables too, but they never enter ``shell()`` (an SSH command line is
    visible to every user of the node): whoever runs the command must hand them over on a pipe.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self.argv:
            raise ValueError("a command needs at least a program")
        for text in (*self.argv, *self.env.values(), *self.secrets.values(), self.cwd or ""):
            if "\0" in text:
                raise ValueError("a NUL byte cannot be passed to a process")
        for name in (*self.env, *self.secrets):
            if not _ENV_NAME.match(name):
                raise ValueError(f"not a name for an environment variable: {name!r}")

    def shell(self) -> str:
        """The command as one line for a POSIX shell; no value in it is ever interpreted by that shell."""
        words = [shlex.quote(word) for word in self.argv]
        if self.env:
            words = ["env", *(shlex.quote(f"{name}={value}") for name, value in sorted(self.env.items())), *words]
        line = " ".join(words)
        return f"cd {shlex.quote(self.cwd)} && exec {line}" if self.cwd else line

    def redacted(self, text: str) -> str:
        """``text`` with every secret's value replaced, longest first so that no part of one is left over."""
        for value in sorted(set(self.secrets.values()), key=len, reverse=True):
            if value:
                text = text.replace(value, REDACTED)
        return text


def display(argv: tuple[str, ...] | list[str]) -> str:
    """A command line as a person would type it."""
    return shlex.join(argv)
