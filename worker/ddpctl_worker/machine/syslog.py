"""Writes lines to the log of the system (`journalctl -t ddpctl`), where an administrator looks for the load of a host.

Protocol: logger(1), RFC 3164.
"""

from __future__ import annotations

import contextlib
import os
import socket

PATH = "/dev/log"
_USER_INFO = 14  # facility 1, severity 6


def log_line(text: str) -> None:
    """Send a line to the log of the system, if there is one. Does not wait for that log."""
    line = "<%d>ddpctl[%d]: %s" % (_USER_INFO, os.getpid(), " ".join(text.split()))
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.connect(PATH)
        sender.send(line.encode("utf-8", "replace"))
