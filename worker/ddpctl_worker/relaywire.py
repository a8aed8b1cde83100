"""How two nodes talk when they hand files on: mutual TLS with the run's own certificate, then lines and chunks.

The client sends one JSON line, ``{"to": host, "files": [[sha256, offset], ...]}``; the server answers each file with
chunks: a header of length and *watermark* (how far the server itself is, in bytes), then that many bytes. Length 0 is
a sign of life from a server that waits for bytes itself; GONE means that it cannot go on with this file.
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
from typing import Any, Dict, Iterator, Optional, Tuple

HEADER = struct.Struct(">IQ")
GONE = 0xFFFFFFFF
CHUNK = 256 << 10
CONNECT_S = 2.5
HANDSHAKE_S = 5.0
SILENT_S = 8.0  # a peer that sends nothing at all for this long, not even a sign of life, is dead
ALIVE_S = 1.5  # how often a waiting server says that it lives
_LINE_LIMIT = 1 << 20


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
    while not line.endswith(b"\n"):
        piece = sock.recv(1 if len(line) > 4096 else 4096)
        if not piece or len(line) > _LINE_LIMIT:
            raise PeerGone("it said nothing that we understand")
        line += piece
    try:
        data = json.loads(bytes(line))
    except ValueError:
        raise PeerGone("it said nothing that we understand") from None
    if not isinstance(data, dict):
        raise PeerGone("it said nothing that we understand")
    return data


def send_chunk(sock: ssl.SSLSocket, data: bytes, watermark: int) -> None:
    # One write: a header alone would travel in a TLS record and a packet of its own.
    sock.sendall(HEADER.pack(len(data), watermark) + data)


def send_gone(sock: ssl.SSLSocket) -> None:
    sock.sendall(HEADER.pack(GONE, 0))


class ChunkReader:
    """Reads chunks from a peer; ``read`` returns (bytes or None for GONE, watermark)."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
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
            try:
                count = self._sock.recv_into(view[got:])
            except socket.timeout:
                raise PeerGone("it has been silent for %g s" % SILENT_S) from None
            except OSError as error:
                raise PeerGone("the connection broke: %s" % error) from None
            if not count:
                raise PeerGone("it closed the connection")
            got += count
        return bytes(view)
