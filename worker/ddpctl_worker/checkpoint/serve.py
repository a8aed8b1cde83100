"""Serves a job's checkpoints to the other nodes: files that valid manifests name, and no other file.

Over a connection of ``store/relay.py`` (mutual TLS with the run's own certificate) come requests, one JSON line each:

* ``{"to": host, "k": "list", "by": host or null, "have": {entry: version}}``: ``{"entries": [{"writer", "entry",
  "version", "time", "serial", "run", "attempt"}], "removed": [entry], "mark": text, "final": bool}``. ``have``: copies
  that ``by`` has of this host's own entries. ``removed``: own entries that were removed for good. ``mark``: of the own
  folder. ``final``: the run is over and writes no more.
* ``{"to": host, "k": "manifest", "writer", "entry"}``: that manifest.
* ``{"to": host, "k": "orders", "for": host, "digest": hex}``: ``{"orders": [...]}``, the files that the host has to put
  in place for the choice with that digest (``Restore.order``); null: this host has not made the choice.
* ``{"to": host, "k": "file", "writer", "entry", "path", "sha256", "offset"}``: that file from ``offset`` on.

An answer is a line ``{"size": bytes}`` and that many bytes in chunks, or ``{"size": null}`` for a missing file.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import time
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

from ddpctl_worker.checkpoint import manifest
from ddpctl_worker.checkpoint.jobfolder import JobFolder
from ddpctl_worker.checkpoint.throttle import Throttle
from ddpctl_worker.store.limits import CHUNK_BYTES
from ddpctl_worker.store.relay import Serving, read_line, send_chunk, send_gone, send_line

_ROW = ("entry", "version", "time", "serial", "run", "attempt")  # fields of a manifest in a list


class CheckpointServer(Serving):
    """Serves from ``folder``, under the name of its host. ``rate``: bytes/s for all receivers together."""

    def __init__(
        self, folder: JobFolder, tls: ssl.SSLContext, listener: socket.socket, rate: Optional[float] = None
    ) -> None:
        self._folder, self._throttle = folder, Throttle(rate)
        self.moved = time.monotonic()  # monotonic time of the last bytes sent
        self.final = False
        self.copies: Dict[
            str, Tuple[Mapping[str, str], float]
        ] = {}  # host -> its copies of this host's entries, and when it reported them
        self._told: Dict[str, Mapping[str, str]] = {}  # host that was answered ``final`` -> its copies at that time
        self.orders: Callable[[str, str], Optional[Sequence[Mapping[str, Any]]]] = lambda *asked: None
        self._kinds: Dict[str, Callable[[ssl.SSLSocket, Dict[str, Any]], None]] = {
            "list": self._list,
            "manifest": self._manifest,
            "orders": self._orders,
            "file": self._file,
        }
        super().__init__(folder.host, tls, listener)

    def has_told(self, host: str, own: Mapping[str, str]) -> bool:
        """Return whether ``host`` knows that this host writes nothing more, and had copies of ``own`` when it asked.

        ``own``: entry -> version. Then ``host`` does not need this server any more.
        """
        return host in self._told and own.items() <= self._told[host].items()

    def _answer(self, sock: ssl.SSLSocket, request: Dict[str, Any]) -> None:
        while True:
            self._kinds[request["k"]](sock, request)
            request = read_line(sock)

    def _list(self, sock: ssl.SSLSocket, request: Dict[str, Any]) -> None:
        final, rows, by, have = self.final, [], request.get("by"), request.get("have")
        if isinstance(by, str) and isinstance(have, dict):
            self.copies[by] = have, time.monotonic()
        for writer in self._folder.writers():
            for one in self._folder.manifests(writer).values():
                rows.append({"writer": writer, **{key: value for key, value in one.items() if key in _ROW}})
        removed, mark = self._folder.removed(), self._folder.mark()
        _send(sock, {"entries": rows, "removed": removed, "mark": mark, "final": final})
        if final and isinstance(by, str) and isinstance(have, dict):  # only now: the answer has left this host
            self._told[by] = have

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
        # The entry may not stand just now, because this host adds missing files itself. The receiver checks the hash.
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
        """Send exactly the announced number of bytes, or GONE once the file has become shorter. The hash reveals other
        changes."""
        while offset < size:
            data = os.pread(fd, min(CHUNK_BYTES, size - offset), offset)
            if not data:
                send_gone(sock)
                return
            send_chunk(sock, data, 0)
            self.moved = time.monotonic()
            self._throttle.count(len(data))
            offset += len(data)


def _send(sock: ssl.SSLSocket, value: Mapping[str, Any]) -> None:
    data = json.dumps(value, separators=(",", ":")).encode("ascii")
    send_line(sock, {"size": len(data)})
    for at in range(0, len(data), CHUNK_BYTES):
        send_chunk(sock, data[at : at + CHUNK_BYTES], 0)
