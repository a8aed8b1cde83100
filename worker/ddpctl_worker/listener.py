"""The listening half of the mesh: one thread, any number of ports, bounded in time, connections and memory."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import time
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from ddpctl_worker import meshwire

MAX_CONNECTIONS = 1024
IDLE_S = 20.0  # a connection that says nothing for so long is closed
_CHUNK = 1 << 16
_TICK_S = 0.1


def bind(port: int) -> socket.socket:
    """A listening socket on every address of this node, IPv4 and IPv6.

    SO_REUSEADDR as torch sets it: a port in TIME_WAIT is free. Raises OSError (EADDRINUSE) when a program listens
    there on any address, 127.0.0.1 included.
    """
    try:
        return _bind(socket.AF_INET6, "::", port)
    except OSError as error:
        if not _without_ipv6(error):
            raise
    return _bind(socket.AF_INET, "0.0.0.0", port)


def _without_ipv6(error: OSError) -> bool:
    import errno

    return error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT)


def _bind(family: int, address: str, port: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((address, port))
        sock.listen(512)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


class _Connection:
    """One dialer: what it said so far, and what is still to be read from it or written to it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.inbox = b""
        self.outbox = b""
        self.sink = 0  # bytes of a push that are still to come
        self.pushed = 0
        self.source = 0  # bytes of a pull that are still to go
        self.theirs: Optional[str] = None
        self.mine = meshwire.new_challenge()
        self.trusted = False
        self.seen = time.monotonic()


class Listener:
    """Answers on the given sockets until told to end."""

    def __init__(self, key: bytes, host: str, sockets: Iterable[socket.socket]) -> None:
        self._key = key
        self._host = host
        self._block = os.urandom(_CHUNK)
        self._selector = selectors.DefaultSelector()
        self._listening = list(sockets)
        self._connections: Dict[socket.socket, _Connection] = {}
        self.accepted = 0
        for sock in self._listening:
            self._selector.register(sock, selectors.EVENT_READ)

    def serve(self, ended: Callable[[], bool], seconds: float, wake: Optional[int] = None) -> None:
        """Until ``ended()`` or ``seconds`` have passed; every socket is closed then. ``ended`` is looked at ten times a
        second, and at once when the descriptor ``wake`` can be read."""
        until = time.monotonic() + seconds
        if wake is not None:
            with contextlib.suppress(OSError):  # a regular file cannot be waited for
                self._selector.register(wake, selectors.EVENT_READ)
        try:
            while not ended() and time.monotonic() < until:
                for key, events in self._selector.select(_TICK_S):
                    sock: Any = key.fileobj
                    if sock in self._connections:
                        self._turn(self._connections[sock], events)
                    elif sock in self._listening:
                        self._accept(sock)
                self._drop_idle()
        finally:
            for connection in list(self._connections.values()):
                self._close(connection)
            for sock in self._listening:
                sock.close()
            self._selector.close()

    def _accept(self, listening: socket.socket) -> None:
        if len(self._connections) >= MAX_CONNECTIONS:
            return  # it waits in the kernel's queue: hung up on, it would look like a foreign program
        try:
            sock, _ = listening.accept()
        except OSError:
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.accepted += 1
        self._connections[sock] = _Connection(sock)
        self._selector.register(sock, selectors.EVENT_READ)

    def _turn(self, connection: _Connection, events: int) -> None:
        connection.seen = time.monotonic()
        try:
            alive = True
            if events & selectors.EVENT_READ:
                alive = self._read(connection)
            if alive:
                self._write(connection)
        except BlockingIOError:
            alive = True
        except OSError:
            alive = False
        if not alive:
            self._close(connection)
            return
        wanted = selectors.EVENT_READ
        if connection.outbox or connection.source:
            wanted |= selectors.EVENT_WRITE
        self._selector.modify(connection.sock, wanted)

    def _read(self, connection: _Connection) -> bool:
        """Take what came; False when the connection is over."""
        data = connection.sock.recv(_CHUNK)
        if not data:
            return False
        taken = min(connection.sink, len(data))
        if taken:
            connection.sink -= taken
            if connection.sink == 0:
                connection.outbox += b"got %d\n" % connection.pushed
        connection.inbox += data[taken:]
        while b"\n" in connection.inbox and not connection.sink:
            line, _, connection.inbox = connection.inbox.partition(b"\n")
            if not self._line(connection, line):
                return False
        return len(connection.inbox) <= meshwire.LINE_LIMIT

    def _line(self, connection: _Connection, line: bytes) -> bool:
        """One line of a dialer; False for anything that is not the protocol."""
        if connection.theirs is None:
            connection.theirs = meshwire.read_greeting(line)
            if connection.theirs is None:
                return False
            connection.outbox += meshwire.answer(self._key, self._host, connection.theirs, connection.mine)
            return True
        if not connection.trusted:
            connection.trusted = meshwire.auth_is_right(self._key, line, connection.theirs, connection.mine)
            return connection.trusted
        return self._command(connection, line)

    @staticmethod
    def _command(connection: _Connection, line: bytes) -> bool:
        word, _, number = line.partition(b" ")
        if word == b"echo":
            connection.outbox += b"echo\n"
            return True
        if word not in (b"push", b"pull") or not number.isdigit() or not 0 < int(number) <= meshwire.BULK_LIMIT:
            return False
        if word == b"pull":
            connection.source += int(number)
            return True
        connection.sink = connection.pushed = int(number)
        taken = min(connection.sink, len(connection.inbox))
        connection.sink -= taken
        connection.inbox = connection.inbox[taken:]
        if connection.sink == 0:
            connection.outbox += b"got %d\n" % connection.pushed
        return True

    def _write(self, connection: _Connection) -> None:
        if connection.outbox:
            sent = connection.sock.send(connection.outbox)
            connection.outbox = connection.outbox[sent:]
        while connection.source and not connection.outbox:
            connection.source -= connection.sock.send(self._block[: min(connection.source, _CHUNK)])

    def _drop_idle(self) -> None:
        old = time.monotonic() - IDLE_S
        for connection in [c for c in self._connections.values() if c.seen < old]:
            self._close(connection)

    def _close(self, connection: _Connection) -> None:
        self._connections.pop(connection.sock, None)
        self._selector.unregister(connection.sock)
        connection.sock.close()


def bind_wanted(ports: Iterable[int], wait_s: float) -> Tuple[List[socket.socket], List[Dict[str, Any]]]:
    """Sockets for these ports, and {"port", "errno", "error"} of those that are taken.

    A port that a preflight which just ended still holds is waited for, up to ``wait_s`` seconds.
    """
    until = time.monotonic() + wait_s
    sockets: List[socket.socket] = []
    taken: List[Dict[str, Any]] = []
    for port in ports:
        while True:
            try:
                sockets.append(bind(port))
            except OSError as error:
                if time.monotonic() < until:
                    time.sleep(0.1)
                    continue
                taken.append({"port": port, "errno": error.errno, "error": os.strerror(error.errno or 0)})
            break
    return sockets, taken
