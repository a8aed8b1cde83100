"""The first steps to a server: its name, a TCP connection, its first byte; each with a deadline."""

from __future__ import annotations

import errno
import ipaddress
import select
import socket
import threading
import time
from typing import Any

from ddpctl.errors import ConnectError, NameUnknown, Unreachable
from ddpctl.transport.limits import (
    CONNECT_S,
    FIRST_BYTE_S,
    KEEPALIVE_COUNT,
    KEEPALIVE_EVERY_S,
    KEEPALIVE_IDLE_S,
    NAMES,
    REFUSAL_S,
    RESOLVE_DEAD_S,
    RESOLVE_S,
    USER_TIMEOUT_MS,
)
from ddpctl.transport.route import Hop

Target = tuple[int, tuple[Any, ...]]  # family, and the argument of connect()
_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}


class Dropped(Exception):
    """The server hung up before its version line, most likely because of too many logins (MaxStartups). Worth a retry.

    ``said`` is the server's text instead of a version line, often empty.
    """

    def __init__(self, said: bytes = b"") -> None:
        super().__init__()
        self.said = said


class Resolver:
    """Asks the name server: a bounded number of questions at once, and short waits once the server seems dead."""

    def __init__(self) -> None:
        self._turn = threading.BoundedSemaphore(NAMES)
        self._unanswered = 0

    def resolve(self, hop: Hop) -> list[Target]:
        """Return every address of the server, in the resolver's order.

        Raises:
            NameUnknown: the name has no address, or the name server does not answer.
        """
        literal = _literal(hop)
        if literal is not None:
            return [literal]
        with self._turn:
            patience = RESOLVE_DEAD_S if self._unanswered > NAMES else RESOLVE_S
            answer: list[list[Target] | OSError] = []
            # In a separate thread, because the C library's deadline is longer than RESOLVE_S.
            asking = threading.Thread(target=_ask_name, args=(answer, hop), daemon=True, name=f"ddpctl-{hop.label}")
            asking.start()
            asking.join(patience)
        hint = f"check the name, or give `address:` for {hop.label} in the inventory"
        if not answer:
            self._unanswered += 1
            raise NameUnknown(f"the name server does not answer for {hop.address} ({patience:g} s)", hint=hint)
        self._unanswered = 0
        if isinstance(answer[0], OSError):
            raise NameUnknown(f"no address is known for {hop.address} ({answer[0].strerror})", hint=hint)
        return answer[0]


def dial(hop: Hop, names: Resolver) -> socket.socket:
    """Return a TCP connection to ``hop`` on which the server has begun to speak.

    Raises:
        ConnectError: no address, no route, refused, no answer, or a server that accepts and stays silent.
        Dropped: the server hung up at once.
    """
    sock = _connect(hop, names.resolve(hop))
    try:
        tune(sock)
        await_first_byte(sock, hop)
    except BaseException:
        sock.close()
        raise
    return sock


def _literal(hop: Hop) -> Target | None:
    """Return the host's address where it is given as a number, else None."""
    try:
        version = ipaddress.ip_address(hop.address).version
    except ValueError:
        return None
    if "%" in hop.address:  # fe80::1%eth0: only the resolver can number the interface
        return None
    return (socket.AF_INET if version == 4 else socket.AF_INET6, (hop.address, hop.port))


def _ask_name(answer: list[list[Target] | OSError], hop: Hop) -> None:
    try:
        found = socket.getaddrinfo(hop.address, hop.port, _FAMILIES.get(hop.family, 0), socket.SOCK_STREAM)
        answer.append([(int(family), address) for family, _, _, _, address in found])
    except (OSError, UnicodeError) as error:
        answer.append(error if isinstance(error, OSError) else OSError(0, "not a valid name"))


def _connect(hop: Hop, addresses: list[Target]) -> socket.socket:
    until = time.monotonic() + CONNECT_S
    failure: OSError = TimeoutError()
    for number, (family, address) in enumerate(addresses):
        left = until - time.monotonic()
        if left <= 0:
            break
        sock = None
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.settimeout(left / (len(addresses) - number))  # a dead address must leave time for the next address
            sock.connect(address)
            return sock
        except OSError as error:
            failure = error
            if sock is not None:
                sock.close()
    raise connect_error(hop, failure)


def tune(sock: socket.socket) -> None:
    """Set socket options so that a dead peer is noticed in seconds instead of the kernel's quarter of an hour."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle = "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE"
    options = ((idle, KEEPALIVE_IDLE_S), ("TCP_KEEPINTVL", KEEPALIVE_EVERY_S), ("TCP_KEEPCNT", KEEPALIVE_COUNT))
    for name, value in (*options, ("TCP_USER_TIMEOUT", USER_TIMEOUT_MS)):
        number = getattr(socket, name, None)  # macOS lacks some of these
        if number is not None:
            sock.setsockopt(socket.IPPROTO_TCP, number, value)


def await_first_byte(sock: socket.socket, hop: Hop) -> None:
    """Wait for the server's first byte, without taking it from the socket: in SSH the server speaks first.

    Raises:
        Unreachable: the server stays silent.
        Dropped: the server hung up.
    """
    if not wait_until_readable(sock, FIRST_BYTE_S):
        raise silent_server(hop)
    try:
        first = sock.recv(256, socket.MSG_PEEK)
    except OSError:
        raise Dropped from None
    # A server may send lines before its version. Lines and then the end are a refusal (``Exceeded MaxStartups``).
    if not first.startswith(b"SSH-") and (not first or _ended(sock, len(first))):
        raise Dropped(first)


def wait_until_readable(sock: socket.socket, timeout: float) -> bool:
    """Return whether data or the end of the stream arrive within ``timeout`` seconds."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(timeout * 1000))


def _ended(sock: socket.socket, seen: int) -> bool:
    """Return whether the server closes the connection within REFUSAL_S of its first words."""
    until = time.monotonic() + REFUSAL_S
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP if hasattr(select, "POLLRDHUP") else select.POLLHUP)
    while time.monotonic() < until:
        if poll.poll(50):
            return True
        if len(sock.recv(4096, socket.MSG_PEEK)) > seen:
            return False
    return False


def silent_server(hop: Hop) -> Unreachable:
    return Unreachable(
        f"{hop.where} accepts the connection but sends nothing for {FIRST_BYTE_S:g} s",
        hint="is that an SSH server? if so, restart sshd on it",
    )


def connect_error(hop: Hop, error: OSError) -> ConnectError:
    """Return the error for a TCP connection that failed."""
    where = hop.where
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return Unreachable(
            f"no answer from {where} within {CONNECT_S:g} s",
            hint="is the host down, or is a firewall dropping packets?",
        )
    if error.errno == errno.ECONNREFUSED:
        return Unreachable(f"{where} refuses the connection", hint="is sshd running there, and is `port:` right?")
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN):
        return Unreachable(f"no route to {where} ({error.strerror})", hint="is the host up, and is its address right?")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return Unreachable(f"{error.strerror} on this machine", hint="raise `ulimit -n`")
    return Unreachable(f"cannot connect to {where}: {error.strerror or error}")
