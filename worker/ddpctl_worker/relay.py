"""The side of a node that hands files on: a TLS listener that answers the run's own nodes and nobody else."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
from typing import Any, Dict, Iterable, List, Set

from ddpctl_worker.link import WorkerError
from ddpctl_worker.relaywire import (
    ALIVE_S,
    CHUNK,
    HANDSHAKE_S,
    PeerGone,
    read_line,
    send_chunk,
    send_gone,
)
from ddpctl_worker.shelf import Incoming, IncomingFile, read_at

MAX_CONNECTIONS = 64
SEND_S = 20.0  # a peer that takes nothing for this long is given up


class Relay:
    """Serves the files of ``shelf`` as they grow, from a thread for each connection."""

    def __init__(self, shelf: Incoming, tls: ssl.SSLContext, host: str, ports: Iterable[int]) -> None:
        """Listens on the first of ``ports`` that is free (0: any). Raises WorkerError when none is."""
        self._shelf, self._tls, self._host = shelf, tls, host
        self._listener = _listen(ports)
        self._closed = threading.Event()
        self._open: Set[socket.socket] = set()
        self._lock = threading.Lock()
        self._places = threading.Semaphore(MAX_CONNECTIONS)
        self.sent = 0
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            for sock in [self._listener, *self._open]:
                with contextlib.suppress(OSError):
                    # Below TLS: the thread that uses the connection finds it ended, whatever it is at.
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)

        self._acceptor.join(5.0)

    def _accept(self) -> None:
        with self._listener:
            self._accept_all()

    def _accept_all(self) -> None:
        while not self._closed.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            if self._closed.is_set() or not self._places.acquire(blocking=False):
                sock.close()
                continue
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        """One connection. Whatever a stranger does ends in a closed socket and costs nobody else anything."""
        with self._lock:
            self._open.add(plain)
        try:
            plain.settimeout(HANDSHAKE_S)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            secure = self._tls.wrap_socket(plain, server_side=True)
            with self._lock:
                self._open.discard(plain)
                self._open.add(secure)
                plain = secure
            request = read_line(secure)
            secure.settimeout(SEND_S)
            self._answer(secure, request)
        except (OSError, PeerGone, WorkerError, ValueError, KeyError, TypeError):
            pass  # the peer goes elsewhere, a stranger goes away
        finally:
            with self._lock:
                self._open.discard(plain)
            plain.close()
            self._places.release()

    def _answer(self, sock: ssl.SSLSocket, request: Dict[str, Any]) -> None:
        if request.get("to") != self._host:
            return  # they dialled an address that means another machine to them
        if "status" in request:
            item = self._shelf.items.get(request["status"])
            send_chunk(sock, b"", item.done if item else 0)
            return
        files: List[List[Any]] = request["files"]
        for sha256, offset in files:
            item = self._shelf.items.get(sha256)
            if item is None or not self._send(sock, item, int(offset)):
                send_gone(sock)
                return

    def _send(self, sock: ssl.SSLSocket, item: IncomingFile, offset: int) -> bool:
        """All of a file from ``offset``, while it still arrives here; False when it does not go on."""
        fd, generation = self._shelf.open(item)
        if fd is None:
            return False
        try:
            while offset < item.size:
                there = self._shelf.wait(item, offset, generation, ALIVE_S)
                if there is None:
                    return False
                data = read_at(fd, min(CHUNK, there - offset), offset) if there > offset else b""
                send_chunk(sock, data, there)
                offset += len(data)
                self.sent += len(data)
            return True
        finally:
            os.close(fd)


def _listen(ports: Iterable[int]) -> socket.socket:
    """On every address: who may talk is decided by the certificate."""
    problem = "no port was offered"
    for port in ports:
        for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "")):
            sock = None
            try:
                sock = socket.socket(family, socket.SOCK_STREAM)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                sock.bind((address, port))
                sock.listen(64)
                return sock
            except OSError as error:
                problem = "port %d: %s" % (port, error.strerror or error)
                if sock is not None:
                    sock.close()
    raise WorkerError("no_port", "cannot listen for the other nodes (%s)" % problem, "see what listens: ss -ltnp")
