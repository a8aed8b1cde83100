"""What stands before the command on the command line, and what stands behind ``--``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass
class Globals:
    """Set once by the root command; read by whoever reports errors or runs a script of the user's."""

    debug: bool = False
    inventory: Path | None = None
    script: list[str] | None = None


GLOBAL = Globals()
