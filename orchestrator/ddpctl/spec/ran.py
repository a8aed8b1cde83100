"""What a plain command did on a host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ran:
    """Its exit code (128 + s for a signal s), and the end of each of its streams (1 MiB).

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
        return {
            "host": host,
            "exit_code": self.exit_code,
            "stdout": self.stdout,
            "stderr": self.stderr,
            "error": self.error,
        }
