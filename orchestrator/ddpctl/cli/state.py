"""What comes before the command on the command line, and what follows ``--``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass
class Globals:
    """Set once by the root command; read where errors are reported and the user's script is run."""

    debug: bool = False
    inventory: Path | None = None
    script: list[str] | None = None


GLOBAL = Globals()
