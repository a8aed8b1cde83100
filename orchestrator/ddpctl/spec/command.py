"""A command as a value: it is never shell text, except where a person reads it."""

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

    ``secrets`` are environment variables too, but no command line ever holds them: they travel on a pipe.
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


def display(argv: tuple[str, ...] | list[str]) -> str:
    """A command line as a person would type it."""
    return shlex.join(argv)
