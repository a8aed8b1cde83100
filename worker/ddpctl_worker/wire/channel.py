"""The pipe to the orchestrator: frames out, request and body in, and a signal when the other side is gone."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any, Dict, Iterator, Optional

from ddpctl_worker.wire.contract import CORRUPT, KEEPALIVE, KEEPALIVE_S


class WorkerError(Exception):
    """An error that the orchestrator can show: ``kind`` from contract.py, ``message``, and the next step."""

    def __init__(self, kind: str, message: str, hint: Optional[str] = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.hint = hint


class Channel:
    """Frames over two descriptors; ``send`` may be called from several threads."""

    def __init__(self, fd_in: int = 0, fd_out: int = 1) -> None:
        self._in = fd_in
        self._out = fd_out
        self._lock = threading.Lock()
        self._buffer = b""
        self.closed = threading.Event()
        self.login_umask = 0o022  # the login's umask, before the worker set its own

    def fileno(self) -> int:
        """Return the descriptor that becomes readable before ``closed`` is set, for a verb that calls ``select``."""
        return self._in

    def send(self, data: Dict[str, Any], raw: bytes = b"") -> None:
        """Send a frame. If the reader is gone this sets ``closed``, and never raises into a verb."""
        if raw:
            data = dict(data, raw=len(raw))
        blob = json.dumps(data, separators=(",", ":")).encode("ascii") + b"\n" + raw
        with self._lock:
            view = memoryview(blob)
            try:
                while view:
                    view = view[os.write(self._out, view) :]
            except OSError:
                self.closed.set()

    def read_line(self, limit: int = 64 << 20) -> bytes:
        """Return the next line, without its end; empty at the end of input."""
        while b"\n" not in self._buffer and len(self._buffer) <= limit:
            chunk = os.read(self._in, 1 << 16)
            if not chunk:
                break
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def forget(self) -> None:
        """Drop the bytes read beyond a request: they are the request's body, for the child that serves it."""
        self._buffer = b""

    def body(self, size: int, chunk: int = 1 << 20) -> Iterator[bytes]:
        """Yield exactly ``size`` bytes in pieces. Raises WorkerError: the input ends early."""
        left = size
        while left:
            piece = self._buffer[:left] or os.read(self._in, min(chunk, left))
            self._buffer = self._buffer[len(piece) :] if self._buffer else b""
            if not piece:
                raise WorkerError(CORRUPT, "the transfer stopped with %d of %d bytes missing" % (left, size))
            left -= len(piece)
            yield piece

    def watch(self) -> None:
        """Send keepalives from now on, and set ``closed`` once stdin ends. No body can be read after this."""
        self.keep_alive()
        self.watch_end()

    def watch_end(self) -> None:
        """Set ``closed`` once stdin ends: for a verb that has read its body to the end."""
        threading.Thread(target=self._wait_for_end, daemon=True).start()

    def keep_alive(self) -> None:
        """Send keepalives only: for a verb that still reads its body."""
        threading.Thread(target=self._keep_alive, daemon=True).start()

    def _keep_alive(self) -> None:
        while not self.closed.wait(KEEPALIVE_S):
            self.send({KEEPALIVE: 1})

    def _wait_for_end(self) -> None:
        try:
            while os.read(self._in, 1 << 16):
                pass
        except OSError:
            pass
        self.closed.set()


def echo(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """Exercise the pipe, for tests and measurements.

    Takes ``size`` bytes of body, sends ``frames`` frames of ``raw`` bytes ``every`` seconds, and reports the received
    bytes. With ``fail`` it ends in an error of that kind. The stream ends early when the other side is gone.
    """
    import hashlib

    digest, got = hashlib.sha256(), 0
    for piece in channel.body(int(request.get("size", 0))):
        digest.update(piece)
        got += len(piece)
    channel.watch_end()
    raw, sent = bytes(int(request.get("raw", 0))), 0
    for number in range(int(request.get("frames", 0))):
        if channel.closed.wait(float(request.get("every", 0))):
            break
        channel.send({"n": number, "time": time.time()}, raw)
        sent += 1
    if request.get("fail"):
        raise WorkerError(str(request["fail"]), "asked to fail", "do not ask")
    return {"got": got, "sha256": digest.hexdigest(), "sent": sent, "text": request.get("text")}
