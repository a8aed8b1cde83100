"""The global state of a command line: global options, the words after ``--``, and the debug log."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from ddpctl.render.clean import clean


@dataclass
class Globals:
    """Set once from the command line, before the command runs."""

    command: str | None = None
    debug: bool = False
    inventory: Path | None = None
    script: list[str] | None = None
    named: str = ""  # names the inventory in printed commands: `-i FILE` and a space, empty where ddpctl finds the file


GLOBAL = Globals()


# Only these loggers: the downloader's may log addresses that contain a login.
LOGGERS = ("ddpctl", "paramiko")


class _Clean(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return clean(super().format(record))


def show_debug_log() -> None:
    """Send the debug log to stderr from now on."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Clean("%(asctime)s %(name)s: %(message)s"))
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(logging.DEBUG)
        logger.addHandler(handler)
