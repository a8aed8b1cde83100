"""Serves a job's checkpoints to the other nodes: what valid manifests name, and nothing else.

Over a connection of ``store/relay.py`` (mutual TLS with the run's own certificate) come requests, one JSON line each:

* ``{"to": host, "k": "list"}``: ``{"entries": [{"writer", "entry", "version", "time"}], "removed": [entry], "mark":
  text, "final": bool}``. ``removed`` are this host's own entries that are gone for good; ``mark`` names its own folder;
  ``final``: its run is over, and it writes nothing more.
* ``{"to": host, "k": "manifest", "writer", "entry"}``: that manifest.
* ``{"to": host, "k": "orders", "for": host, "digest": hex}``: ``{"orders": [...]}``, what that host has to put in place
  for the choice with that digest (``Restore.order``); null: this host has not made it.
* ``{"to": host, "k": "file", "writer", "entry", "path", "sha256", "offset"}``: that file from ``offset`` on.

An answer is a line ``{"size": bytes}`` and that many bytes in chunks, or ``{"size": null}``: it is not here (any more).
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import time
from typing import Any, Callable, Dict, Mapping, Optional, Sequence

from ddpctl_worker.checkpoint import manifest
from ddpctl_worker.checkpoint.jobfolder import JobFolder
from ddpctl_worker.checkpoint.throttle import Throttle
from ddpctl_worker.store.relay import CHUNK, Serving, read_line, send_chunk, send_gone, send_line


class CheckpointServer(Serving):
    """Serves from ``folder``, under the name of its host. ``rate``: bytes/s that all receivers together get."""

    def __init__(
        self, folder: JobFolder, tls: ssl.SSLContext, listener: socket.socket, rate: Optional[float] = None
    ) -> None:
        self._folder, self._throttle = folder, Throttle(rate)
        self.moved = time.monotonic()  # when bytes of a file were sent last
        self.final = False
        self.orders: Callable[[str, str], Optional[Sequence[Mapping[str, Any]]]] = lambda *asked: None
        self._kinds: Dict[str, Callable[[ssl.SSLSocket, Dict[str, Any]], None]] = {
            "list": self._list,
            "manifest": self._manifest,
            "orders": self._orders,
            "file": self._file,
        }
        super().__init__(folder.host, tls, listener)

    def _answer(self, sock: ssl.SSLSocket, request: Dict[str, Any]) -> None:
        while True:
            self._kinds[request["k"]](sock, request)
            request = read_line(sock)

    def _list(self, sock: ssl.SSLSocket, request: Dict[str, Any]) -> None:
        final, rows = self.final, []
        for writer in self._folder.writers():
            for one in self._folder.manifests(writer).values():
                rows.append({"writer": writer, **{key: one[key] for key in ("entry", "version", "time")}})
        told = {"entries": rows, "removed": self._folder.removed(), "mark": self._folder.mark(), "final": final}
        _send(sock, told)

    def _manifest(self, sock: ssl.SSLSocket, request: Dict[str, Any]) -> None:
        found = self._folder.manifests(request["writer"]).get(request["entry"])
        if found is None:
            send_line(sock, {"size": None})
        else:
            _send(sock, found)

    def _orders(self, sock: ssl.SSLSocket, request: Dict[str, Any]) -> None:
        _send(sock, {"orders": self.orders(request["for"], request["digest"])})

    def _file(self, sock: ssl.SSLSocket, request: Dict[str, Any]) -> None:
        writer, entry, path = request["writer"], request["entry"], request["path"]
        # The entry may not stand just now: this host adds what it lacked itself. Who gets the file checks its hash.
        found = manifest.read(self._folder.of(writer), entry)
        file = found["files"].get(path) if found is not None and found["host"] == writer else None
        if file is None or file["sha256"] != request["sha256"]:
            send_line(sock, {"size": None})
            return
        fd = self._folder.open(writer, entry, path)
        try:
            offset = int(request["offset"])
            send_line(sock, {"size": max(0, file["size"] - offset)})
            self._send_file(sock, fd, offset, file["size"])
        finally:
            os.close(fd)

    def _send_file(self, sock: ssl.SSLSocket, fd: int, offset: int, size: int) -> None:
        """Exactly as many bytes as were announced, or GONE once the file has become shorter. Other changes show by its
        hash."""
        while offset < size:
            data = os.pread(fd, min(CHUNK, size - offset), offset)
            if not data:
                send_gone(sock)
                return
            send_chunk(sock, data, 0)
            self.moved = time.monotonic()
            self._throttle.took(len(data))
            offset += len(data)


def _send(sock: ssl.SSLSocket, value: Dict[str, Any]) -> None:
    data = json.dumps(value, separators=(",", ":")).encode("ascii")
    send_line(sock, {"size": len(data)})
    for at in range(0, len(data), CHUNK):
        send_chunk(sock, data[at : at + CHUNK], 0)
