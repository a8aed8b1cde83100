"""Passes files on to other nodes: mutual TLS with the run's own certificate, then lines and chunks.

The client sends one JSON line, ``{"to": host, "files": [[sha256, offset], ...]}``. The server answers each file with
chunks: a header of length and watermark (the server's own bytes of the file), then that many bytes. Length 0 is a sign
of life from a server that waits for bytes itself; GONE means that it cannot continue with this file. A request
``{"to": host, "status": sha256}`` is answered by one empty chunk with the watermark.
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
from ddpctl_worker.store.limits import (
    ALIVE_S,
    CHUNK_BYTES,
    CONNECT_S,
    HANDSHAKE_S,
    LEAST_BYTES,
    LEAST_S,
    LINE_BYTES,
    MAX_CONNECTIONS,
    SEND_S,
    SILENT_S,
)
from ddpctl_worker.wire.channel import WorkerError
from ddpctl_worker.wire.contract import NO_PORT

HEADER = struct.Struct(">IQ")
GONE = 0xFFFFFFFF


class PeerGone(Exception):
    """The peer cannot be used any more: ``str()`` says why."""


def context(certificate: str, key: str, folder: str, server: bool) -> ssl.SSLContext:
    """Return TLS settings that accept only peers with the run's own certificate (PEM texts).

    Both sides use this certificate and trust no other. Names are not compared, since nodes connect to addresses.
    ``folder`` takes a temporary file on kernels without memfd.
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
    """Yield the path of a file with ``text``, since the ssl module reads keys from files only: in memory if possible,
    else with mode 0600 for a moment."""
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
    """Connect to a peer that has the run's certificate. Raises OSError, ssl.SSLError included."""
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
    """Read one JSON line. Raises PeerGone if it is late, too long or invalid, and OSError."""
    line = bytearray()
    until = None  # set by the first byte: a peer that begins a line must end it
    while not line.endswith(b"\n"):
        piece = sock.recv(1 if len(line) > 4096 else 4096)
        until = until or time.monotonic() + LEAST_S
        if time.monotonic() > until:
            raise PeerGone("its answer took more than %d s" % LEAST_S)
        if not piece or len(line) > LINE_BYTES:
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
    """Gives up a peer that trickles: LEAST_S seconds of waiting for it must bring LEAST_BYTES bytes."""

    def __init__(self) -> None:
        self._waited, self._got = 0.0, 0

    def count(self, count: int, waited: float) -> None:
        """Count bytes and seconds of one read. Raises PeerGone."""
        self._got += count
        self._waited += waited
        if self._got >= LEAST_BYTES:
            self._waited, self._got = 0.0, 0
        elif self._waited >= LEAST_S:
            raise PeerGone("it sent only %d bytes in %d s" % (self._got, self._waited))


class ChunkReader:
    """Reads chunks from a peer; ``read`` returns (bytes, or ``None`` for GONE; watermark) and raises PeerGone."""

    def __init__(self, sock: ssl.SSLSocket, least: Optional[LeastRate] = None) -> None:
        self._sock, self._least = sock, least
        self._buffer = bytearray(CHUNK_BYTES + HEADER.size)

    def read(self) -> Tuple[Optional[bytes], int]:
        length, watermark = HEADER.unpack(self._exactly(HEADER.size))
        if length == GONE:
            return None, watermark
        if length > CHUNK_BYTES:
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
                self._least.count(count if size != HEADER.size else 0, time.monotonic() - begun)
        return bytes(view)


class Serving:
    """Server for the nodes that have the certificate; answers each connection in a thread of its own."""

    def __init__(self, host: str, tls: ssl.SSLContext, listener: socket.socket) -> None:
        self._host, self._tls = host, tls
        self.port: int = listener.getsockname()[1]
        self._acceptor = Acceptor(listener, self._meet, "serving", MAX_CONNECTIONS)
        self._acceptor.start()

    def _answer(self, sock: ssl.SSLSocket, request: Dict[str, Any]) -> None:
        """Answer the request in a peer's first line."""
        raise NotImplementedError

    def close(self) -> None:
        self._acceptor.close()

    def _meet(self, plain: socket.socket) -> Session:
        secure = self._tls.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
        return _Handshake(secure, self._serve)

    def _serve(self, secure: ssl.SSLSocket) -> None:
        try:
            secure.settimeout(HANDSHAKE_S)
            request = read_line(secure)
            secure.settimeout(SEND_S)
            if request.get("to") == self._host:  # else the address leads to another machine from there
                self._answer(secure, request)
        except (OSError, PeerGone, WorkerError, ValueError, KeyError, TypeError):
            pass  # the peer asks another node


class _Handshake(Session):
    """Session that is proved once its TLS handshake is over."""

    def __init__(self, sock: ssl.SSLSocket, serve: Callable[[ssl.SSLSocket], None]) -> None:
        super().__init__(sock)
        self._secure, self._serve = sock, serve

    def read(self) -> bool:
        self.spoken = True  # the handshake raises if the peer has closed the connection
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
        """Listen on the first free port of ``ports`` (0: any). Raises WorkerError no_port."""
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
        """Send a file from ``offset``, while it still arrives here; return False if it fails here."""
        fd, generation = self._incoming.open(item)
        if fd is None:
            return False
        try:
            while offset < item.size:
                there = self._incoming.wait(item, offset, generation, ALIVE_S)
                if there is None:
                    return False
                data = os.pread(fd, min(CHUNK_BYTES, there - offset), offset) if there > offset else b""
                send_chunk(sock, data, there)
                offset += len(data)
                self.sent += len(data)
            return True
        finally:
            os.close(fd)


def listen_on(ports: Iterable[int]) -> socket.socket:
    """Listen on every address of this host, on the first free port; the certificate protects the connections.

    Raises:
        WorkerError: no_port.
    """
    problem = "no port was offered"
    for port in ports:
        try:
            return listen(port, BACKLOG)
        except OSError as error:
            problem = "port %d: %s" % (port, error.strerror or error)
    raise WorkerError(
        NO_PORT, "cannot listen for the other nodes (%s)" % problem, "see what listens: ddpctl exec -- ss -ltnp"
    )
