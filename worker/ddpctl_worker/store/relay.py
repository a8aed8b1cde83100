"""How a node hands files on: mutual TLS with the run's own certificate, then lines and chunks.

The client sends one JSON line, ``{"to": host, "files": [[sha256, offset], ...]}``; the server answers each file with
chunks: a header of length and *watermark* (how far the server itself is, in bytes), then that many bytes. Length 0 is
a sign of life from a server that waits for bytes itself; GONE means that it cannot continue with this file.
A request ``{"to": host, "status": sha256}`` is answered by one empty chunk with the watermark.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import struct
import tempfile
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

from ddpctl_worker.machine.acceptor import Acceptor, Session
from ddpctl_worker.machine.limits import BACKLOG
from ddpctl_worker.machine.net import listen
from ddpctl_worker.store.incoming import Incoming, IncomingFile
from ddpctl_worker.wire.channel import WorkerError
from ddpctl_worker.wire.contract import NO_PORT

HEADER = struct.Struct(">IQ")
GONE = 0xFFFFFFFF
CHUNK = 256 << 10
CONNECT_S = 2.5
HANDSHAKE_S = 5.0
SILENT_S = 8.0  # a peer that sends nothing at all for this long, not even a sign of life, is dead
ALIVE_S = 1.5  # how often a waiting server says that it lives
_LINE_LIMIT = 1 << 20
MAX_CONNECTIONS = 64
LEAST, LEAST_S = 256 << 10, 30.0  # bytes in seconds from a peer that has them: less is as good as nothing
SEND_S = 20.0  # a peer that takes nothing for this long is given up


class PeerGone(Exception):
    """The peer cannot be used any more: ``str()`` says why."""


def context(certificate: str, key: str, folder: str, server: bool) -> ssl.SSLContext:
    """TLS that accepts exactly who holds the run's certificate (PEM texts). ``folder`` is used where memfd is missing.

    The certificate is both our own and the only one trusted; names are not compared, since nodes go by addresses.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.check_hostname = False
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_verify_locations(cadata=certificate)
    with _as_file(certificate + "\n" + key, folder) as path:
        made.load_cert_chain(path)
    return made


@contextlib.contextmanager
def _as_file(text: str, folder: str) -> Iterator[str]:
    """``text`` as a file, which is all that the ssl module reads keys from: in memory, or 0600 and removed at once."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("ddpctl", os.MFD_CLOEXEC)
        path, remove = "/proc/self/fd/%d" % fd, False
    else:
        fd, path = tempfile.mkstemp(dir=folder)
        remove = True
    try:
        os.write(fd, text.encode("ascii"))
        yield path
    finally:
        os.close(fd)
        if remove:
            os.unlink(path)


def connect(address: Tuple[str, int], tls: ssl.SSLContext) -> ssl.SSLSocket:
    """A connection to a peer whose certificate is the run's. Raises OSError (ssl.SSLError is one)."""
    plain = socket.create_connection(address, timeout=CONNECT_S)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.settimeout(HANDSHAKE_S)
        secure = tls.wrap_socket(plain)
        secure.settimeout(SILENT_S)
        return secure
    except BaseException:
        plain.close()
        raise


def send_line(sock: ssl.SSLSocket, data: Dict[str, Any]) -> None:
    sock.sendall(json.dumps(data).encode("ascii") + b"\n")


def read_line(sock: ssl.SSLSocket) -> Dict[str, Any]:
    """One JSON line; raises PeerGone when there is none."""
    line = bytearray()
    until = None  # who begins a line has to end it
    while not line.endswith(b"\n"):
        piece = sock.recv(1 if len(line) > 4096 else 4096)
        until = until or time.monotonic() + LEAST_S
        if time.monotonic() > until:
            raise PeerGone("its answer took more than %d s" % LEAST_S)
        if not piece or len(line) > _LINE_LIMIT:
            raise PeerGone("its answer is not understood")
        line += piece
    try:
        data = json.loads(bytes(line))
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise PeerGone("its answer is not understood")
    return data


def send_chunk(sock: ssl.SSLSocket, data: bytes, watermark: int) -> None:
    # One write: a header alone would travel in a TLS record and a packet of its own.
    sock.sendall(HEADER.pack(len(data), watermark) + data)


def send_gone(sock: ssl.SSLSocket) -> None:
    sock.sendall(HEADER.pack(GONE, 0))


class LeastRate:
    """Gives up a peer that trickles: LEAST_S seconds of waiting for it must bring LEAST bytes."""

    def __init__(self) -> None:
        self._waited, self._got = 0.0, 0

    def took(self, count: int, waited: float) -> None:
        """Raises PeerGone."""
        self._got += count
        self._waited += waited
        if self._got >= LEAST:
            self._waited, self._got = 0.0, 0
        elif self._waited >= LEAST_S:
            raise PeerGone("it sent only %d bytes in %d s" % (self._got, self._waited))


class ChunkReader:
    """Reads chunks from a peer; ``read`` returns (bytes or None for GONE, watermark)."""

    def __init__(self, sock: ssl.SSLSocket, least: Optional[LeastRate] = None) -> None:
        self._sock, self._least = sock, least
        self._buffer = bytearray(CHUNK + HEADER.size)

    def read(self) -> Tuple[Optional[bytes], int]:
        length, watermark = HEADER.unpack(self._exactly(HEADER.size))
        if length == GONE:
            return None, watermark
        if length > CHUNK:
            raise PeerGone("it sent a chunk of %d bytes" % length)
        return (self._exactly(length) if length else b""), watermark

    def _exactly(self, size: int) -> bytes:
        view = memoryview(self._buffer)[:size]
        got = 0
        while got < size:
            begun = time.monotonic()
            try:
                count = self._sock.recv_into(view[got:])
            except socket.timeout:
                raise PeerGone("it has been silent for %g s" % SILENT_S) from None
            except OSError as error:
                raise PeerGone("the connection broke: %s" % error) from None
            if not count:
                raise PeerGone("it closed the connection")
            got += count
            if self._least is not None:
                self._least.took(count if size != HEADER.size else 0, time.monotonic() - begun)
        return bytes(view)


class Serving:
    """Listens for the nodes that hold the certificate, and answers each connection in a thread of its own."""

    def __init__(self, host: str, tls: ssl.SSLContext, listener: socket.socket) -> None:
        self._host, self._tls = host, tls
        self.port: int = listener.getsockname()[1]
        self._acceptor = Acceptor(listener, self._meet, "serving", MAX_CONNECTIONS)
        self._acceptor.start()

    def _answer(self, sock: ssl.SSLSocket, request: Dict[str, Any]) -> None:
        """What a peer asks for in its first line."""
        raise NotImplementedError

    def close(self) -> None:
        self._acceptor.close()

    def _meet(self, plain: socket.socket) -> Session:
        secure = self._tls.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
        return _Handshake(secure, self._serve)

    def _serve(self, secure: ssl.SSLSocket) -> None:
        """A connection of a node that holds the certificate."""
        try:
            secure.settimeout(HANDSHAKE_S)
            request = read_line(secure)
            secure.settimeout(SEND_S)
            if request.get("to") == self._host:  # otherwise they dialled an address that means another machine to them
                self._answer(secure, request)
        except (OSError, PeerGone, WorkerError, ValueError, KeyError, TypeError):
            pass  # the peer goes elsewhere


class _Handshake(Session):
    """A connection that is proved once its TLS handshake is over."""

    def __init__(self, sock: ssl.SSLSocket, serve: Callable[[ssl.SSLSocket], None]) -> None:
        super().__init__(sock)
        self._secure, self._serve = sock, serve

    def read(self) -> bool:
        self.said = True  # there is something to read; if it is the end, that is raised below
        try:
            self._secure.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        self.proved = True
        return True

    def work(self) -> bool:
        self._serve(self._secure)
        return False


class Relay(Serving):
    """Serves the files of ``incoming`` as they grow."""

    def __init__(self, incoming: Incoming, tls: ssl.SSLContext, host: str, ports: Iterable[int]) -> None:
        """Listens on the first of ``ports`` that is free (0: any). Raises WorkerError when none is."""
        self._incoming, self.sent = incoming, 0
        super().__init__(host, tls, listen_on(ports))

    def _answer(self, sock: ssl.SSLSocket, request: Dict[str, Any]) -> None:
        if "status" in request:
            item = self._incoming.items.get(request["status"])
            send_chunk(sock, b"", item.done if item else 0)
            return
        files: List[List[Any]] = request["files"]
        for sha256, offset in files:
            item = self._incoming.items.get(sha256)
            if item is None or not self._send(sock, item, int(offset)):
                send_gone(sock)
                return

    def _send(self, sock: ssl.SSLSocket, item: IncomingFile, offset: int) -> bool:
        """All of a file from ``offset``, while it still arrives here; False when no more will come."""
        fd, generation = self._incoming.open(item)
        if fd is None:
            return False
        try:
            while offset < item.size:
                there = self._incoming.wait(item, offset, generation, ALIVE_S)
                if there is None:
                    return False
                data = os.pread(fd, min(CHUNK, there - offset), offset) if there > offset else b""
                send_chunk(sock, data, there)
                offset += len(data)
                self.sent += len(data)
            return True
        finally:
            os.close(fd)


def listen_on(ports: Iterable[int]) -> socket.socket:
    """On every address: who may talk is decided by the certificate."""
    problem = "no port was offered"
    for port in ports:
        try:
            return listen(port, BACKLOG)
        except OSError as error:
            problem = "port %d: %s" % (port, error.strerror or error)
    raise WorkerError(
        NO_PORT, "cannot listen for the other nodes (%s)" % problem, "see what listens: ddpctl exec -- ss -ltnp"
    )
