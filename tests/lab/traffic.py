"""Connections between hosts, and how they end."""

from __future__ import annotations

import socket

from tests.lab.host import Host

UNREACHABLE = "timed out|No route to host|unreachable"  # this machine's errors for a host that it cannot reach
LISTEN = """
import socket, sys
listener = socket.create_server(("", int(sys.argv[1])))
print("listening", flush=True)
while True:
    taken, _ = listener.accept()
    taken.sendall(b"x" * int(sys.argv[2]))
    taken.close()
"""
FETCH = """
import socket, sys, time
began = time.monotonic()
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3])) as link:
        size = 0
        while data := link.recv(65536):
            size += len(data)
    print("got", size, time.monotonic() - began)
except OSError as error:
    print(type(error).__name__, 0, time.monotonic() - began)
"""


def serve(host: Host, port: int, size: int = 1) -> None:
    """Listen, and hand out this many bytes to each that comes, until the host is healed."""
    server = host.popen(["/usr/bin/python3", "-c", LISTEN, str(port), str(size)])
    assert server.stdout
    assert server.stdout.readline() == "listening\n"


def fetch(host: Host, peer: Host, port: int, timeout: float = 60) -> tuple[str, int, float]:
    """Return how a download from the peer ended: the word, the size and the seconds."""
    argv = ["/usr/bin/python3", "-c", FETCH, peer.fabric_address, str(port), str(timeout)]
    word, size, seconds = host.run(argv).stdout.split()
    return word, int(size), float(seconds)


def banner(host: Host, patience: float = 60) -> bytes:
    """The first bytes that its port 22 says within so many seconds, having accepted."""
    with socket.create_connection((host.address, 22), timeout=60) as link:
        link.settimeout(patience)
        try:
            return link.recv(8)
        except TimeoutError:
            return b""
