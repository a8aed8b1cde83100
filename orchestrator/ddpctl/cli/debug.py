"""What ``--debug`` shows besides tracebacks: what nodes said on stderr, and what the SSH library does."""

from __future__ import annotations

import logging

from ddpctl.render.clean import clean

# Only these: others (the downloader) may log addresses with a login in them.
LOGGERS = ("ddpctl", "paramiko")


class _Clean(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return clean(super().format(record))


def show() -> None:
    """From now on the debug log goes to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Clean("%(asctime)s %(name)s: %(message)s"))
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(logging.DEBUG)
        logger.addHandler(handler)
