"""Asks torch's debug server inside a rank (``torch/csrc/distributed/c10d/control_plane``): HTTP over a Unix socket."""

from __future__ import annotations

import os
import socket
import time
from typing import Optional

from ddpctl_worker.doctor.limits import SERVER_S
from ddpctl_worker.machine.answer_socket import read_all


def ask(folder: str, pid: int, handler: str, seconds: float = SERVER_S) -> Optional[bytes]:
    """Return the body of the answer, or ``None`` without a server or without a complete answer in time."""
    until = time.monotonic() + seconds
    try:
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(seconds)
            sock.connect("/proc/self/fd/%d/%d.sock" % (place, pid))  # a socket's path ends at 107 bytes
            head = "POST /handler/%s HTTP/1.1\r\nHost: rank\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            sock.sendall((head % handler).encode("ascii"))
            return _body(read_all(sock, until - time.monotonic()))
    except OSError:
        return None
    finally:
        os.close(place)


def _body(answer: bytes) -> Optional[bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    if lines[0].split()[1:2] != [b"200"]:
        return None
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and value.strip() != b"%d" % len(body):
            return None  # the answer was cut off
    return body
