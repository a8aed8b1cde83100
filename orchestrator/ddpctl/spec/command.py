"""A command as a value, never shell text except where a person reads it; and what one did on a host."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ddpctl.spec.values import is_env_name

REDACTED = "********"


@dataclass(frozen=True)
class Command:
    """What to run: ``argv`` (never a shell line), extra ``env``, and ``cwd``. No secret is in one."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None

    def __post_init__(self) -> None:
        if not self.argv:
            raise ValueError("a command needs at least a program")
        for text in (*self.argv, *self.env.values(), self.cwd or ""):
            if "\0" in text:
                raise ValueError("a NUL byte cannot be passed to a process")
        for name in self.env:
            if not is_env_name(name):
                raise ValueError(f"not a name for an environment variable: {name!r}")


def display(argv: tuple[str, ...] | list[str]) -> str:
    """A command line as a person would type it."""
    return shlex.join(argv)


@dataclass(frozen=True)
class Ran:
    """What a plain command did on a host: its exit code (128 + s for a signal s), and the end of each stream (1 MiB).

    ``exit_code`` is None where it did not come to an end by itself, or did not run; ``error`` says why.
    """

    exit_code: int | None
    stdout: str = ""
    stderr: str = ""
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def trouble(self) -> str:
        """Why it is not ok."""
        return self.error or f"exit code {self.exit_code}"

    def to_json(self, host: str) -> dict[str, Any]:
        """As the contract fixes it."""
        return {"host": host, **asdict(self)}
