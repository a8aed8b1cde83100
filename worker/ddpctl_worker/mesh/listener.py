"""The listening half of the mesh: a single thread that answers on any number of ports."""

from __future__ import annotations

import contextlib
import os
import random
import selectors
import socket
import time
from typing import Any, Callable, Dict, Iterable, List, Optional, Set, Tuple

from ddpctl_worker.machine.acceptor import NoRoom, accept_connection, limit_by_descriptors
from ddpctl_worker.machine.net import listen as listen_on
from ddpctl_worker.machine.net import port_range
from ddpctl_worker.machine.strangers import Places
from ddpctl_worker.mesh import wire
from ddpctl_worker.mesh.limits import (
    BIND_PAUSE_S,
    BIND_S,
    BULK_LIMIT,
    CHUNK,
    IDLE_S,
    LINE_LIMIT,
    MAX_CONNECTIONS,
    MAX_LISTEN_S,
    REST_S,
    SELECT_S,
)
from ddpctl_worker.mesh.wire import key_of
from ddpctl_worker.wire.channel import Channel


class _Connection:
    """A dialer's connection: its input so far, and the bytes that are still to be read or written."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.inbox = b""
        self.outbox = b""
        self.sink = 0  # bytes of a push that are still to come
        self.pushed = 0
        self.source = 0  # bytes of a pull that are still to go
        self.theirs: Optional[str] = None
        self.mine = wire.new_challenge()
        self.trusted = False
        self.seen = time.monotonic()

    def take_push(self) -> None:
        """Drop the bytes of a push that have come; confirm the push once all bytes have come."""
        if self.sink:
            taken = min(self.sink, len(self.inbox))
            self.sink, self.inbox = self.sink - taken, self.inbox[taken:]
            if not self.sink:
                self.outbox += b"got %d\n" % self.pushed


class Listener:
    """Answers on the given sockets until told to end."""

    def __init__(self, key: bytes, host: str, sockets: Iterable[socket.socket]) -> None:
        self._key = key
        self._host = host
        self._block = os.urandom(CHUNK)
        self._selector = selectors.DefaultSelector()
        self._listening = list(sockets)
        self._connections: Dict[socket.socket, _Connection] = {}
        self._most = limit_by_descriptors(MAX_CONNECTIONS, 2)
        self._places: Places[_Connection] = Places(self._most + 1)  # connections without a proof of the key so far
        self._resting: Dict[socket.socket, float] = {}  # listening sockets that rest, and until when
        self.accepted = 0
        for sock in self._listening:
            sock.setblocking(False)
            self._selector.register(sock, selectors.EVENT_READ)

    def serve(self, ended: Callable[[], bool], seconds: float, wake: Optional[int] = None) -> None:
        """Answer until ``ended()`` or until ``seconds`` have passed, then close every socket.

        ``ended`` is checked every SELECT_S, and at once when the descriptor ``wake`` becomes readable.
        """
        until = time.monotonic() + seconds
        if wake is not None:
            with contextlib.suppress(OSError):  # no selector can wait for a regular file
                self._selector.register(wake, selectors.EVENT_READ)
        try:
            while not ended() and time.monotonic() < until:
                for key, events in self._selector.select(SELECT_S):
                    sock: Any = key.fileobj
                    if sock in self._connections:
                        self._turn(self._connections[sock], events)
                    elif sock in self._listening:
                        self._accept(sock)
                self._drop_idle()
                self._wake()
        finally:
            for connection in list(self._connections.values()):
                self._close(connection)
            for sock in self._listening:
                sock.close()
            self._selector.close()

    def _accept(self, listening: socket.socket) -> None:
        """Accept a connection. If there is no room, close a stranger's connection, never a dialer's.

        To a dialer a closed connection would look like a foreign program.
        """
        if len(self._connections) >= self._most and not len(self._places):
            self._rest(listening)
            return
        try:
            taken = accept_connection(listening)
        except NoRoom:
            worst = self._places.first_to_close()
            if worst is None:
                self._rest(listening)
            else:
                self._close(worst)
            return
        if taken is None:
            return
        sock, address = taken
        self.accepted += 1
        connection = self._connections[sock] = _Connection(sock)
        full = self._places.first_to_close() if len(self._connections) > self._most else None
        self._places.add(connection, address, time.monotonic())
        self._selector.register(sock, selectors.EVENT_READ)
        if full is not None:
            self._close(full)

    def _rest(self, listening: socket.socket) -> None:
        """Leave the socket alone for a while.

        With connections that cannot be accepted now it would be ready all the time.
        """
        self._selector.unregister(listening)
        self._resting[listening] = time.monotonic() + REST_S

    def _wake(self) -> None:
        now = time.monotonic()
        for sock in [sock for sock, until in self._resting.items() if until <= now]:
            del self._resting[sock]
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
        """Read the data that came; False if the connection is over."""
        data = connection.sock.recv(CHUNK)
        if not data:
            return False
        connection.inbox += data
        connection.take_push()
        while b"\n" in connection.inbox and not connection.sink:
            line, _, connection.inbox = connection.inbox.partition(b"\n")
            if not self._line(connection, line):
                return False
        return len(connection.inbox) <= LINE_LIMIT

    def _line(self, connection: _Connection, line: bytes) -> bool:
        """Answer a line of a dialer; False if it is not the protocol."""
        if connection.theirs is None:
            connection.theirs = wire.read_greeting(line)
            if connection.theirs is None:
                return False
            connection.outbox += wire.answer(self._key, self._host, connection.theirs, connection.mine)
            return True
        if not connection.trusted:
            connection.trusted = wire.auth_is_right(self._key, line, connection.theirs, connection.mine)
            if connection.trusted:
                self._places.remove(connection)
            return connection.trusted
        return self._command(connection, line)

    @staticmethod
    def _command(connection: _Connection, line: bytes) -> bool:
        word, _, number = line.partition(b" ")
        if word == b"echo":
            connection.outbox += b"echo\n"
            return True
        if word not in (b"push", b"pull") or not number.isdigit() or not 0 < int(number) <= BULK_LIMIT:
            return False
        if word == b"pull":
            connection.source += int(number)
            return True
        connection.sink = connection.pushed = int(number)
        connection.take_push()
        return True

    def _write(self, connection: _Connection) -> None:
        if connection.outbox:
            sent = connection.sock.send(connection.outbox)
            connection.outbox = connection.outbox[sent:]
        while connection.source and not connection.outbox:
            connection.source -= connection.sock.send(self._block[: min(connection.source, CHUNK)])

    def _drop_idle(self) -> None:
        old = time.monotonic() - IDLE_S
        for connection in [c for c in self._connections.values() if c.seen < old]:
            self._close(connection)

    def _close(self, connection: _Connection) -> None:
        self._connections.pop(connection.sock, None)
        self._places.remove(connection)
        self._selector.unregister(connection.sock)
        connection.sock.close()


def bind_all(ports: Iterable[int]) -> Tuple[List[socket.socket], List[Dict[str, Any]]]:
    """Return sockets for these ports, and {"port", "errno", "error"} of each port that is taken.

    A taken port is tried again for BIND_S seconds.
    """
    until = time.monotonic() + BIND_S
    sockets: List[socket.socket] = []
    taken: List[Dict[str, Any]] = []
    for port in ports:
        while True:
            try:
                sockets.append(listen_on(port))
            except OSError as error:
                if time.monotonic() < until:
                    time.sleep(BIND_PAUSE_S)
                    continue
                taken.append({"port": port, "errno": error.errno, "error": os.strerror(error.errno or 0)})
            break
    return sockets, taken


def listen(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """Bind ``ports`` and ``samples`` ports of the ephemeral range, send a frame about them, and answer dialers.

    The frame: {"listening": [port], "samples": [port], "taken": [{"port", "errno", "error"}], "range": [low, high]}.
    Ends when ddpctl closes the standard input, or after ``seconds``.
    """
    key = key_of(request)
    wanted = [int(port) for port in request.get("ports", ())]
    sockets, taken = bind_all(wanted)
    listening = [sock.getsockname()[1] for sock in sockets]
    samples = _bind_samples(int(request.get("samples", 0)), set(listening))
    sampled = sorted(sock.getsockname()[1] for sock in samples)
    server = Listener(key, str(request["host"]), sockets + samples)
    channel.send({"listening": listening, "samples": sampled, "taken": taken, "range": list(port_range())})
    seconds = min(float(request.get("seconds", 120.0)), MAX_LISTEN_S)
    server.serve(channel.closed.is_set, seconds, channel.fileno())
    return {"accepted": server.accepted}


def _bind_samples(count: int, used: Set[int]) -> List[socket.socket]:
    """Return sockets for ``count`` free ports: a random port in each equal part of the ephemeral range."""
    low, high = port_range()
    width = max(1, (high - low + 1) // max(1, count))
    sockets = []
    for part in range(count):
        start = low + part * width
        ports = [port for port in range(start, min(start + width, high + 1)) if port not in used]
        random.shuffle(ports)
        for port in ports[:64]:
            try:
                sockets.append(listen_on(port))
            except OSError:
                continue
            break
    return sockets
