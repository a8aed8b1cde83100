"""What holds for every command: what comes before it on the command line, what follows ``--``, and ``--debug``."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from ddpctl.render.clean import clean


@dataclass
class Globals:
    """Set once by the root command; read where errors are reported and the user's script is run."""

    command: str | None = None
    debug: bool = False
    inventory: Path | None = None
    script: list[str] | None = None


GLOBAL = Globals()


# Only these: others (the downloader) may log addresses with a login in them.
LOGGERS = ("ddpctl", "paramiko")


class _Clean(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return clean(super().format(record))


def show_debug_log() -> None:
    """From now on the debug log goes to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Clean("%(asctime)s %(name)s: %(message)s"))
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(logging.DEBUG)
        logger.addHandler(handler)
