"""Asks another host for its checkpoints: lists, manifests, orders and files.

Every answer of a peer is checked: the peer may be broken or hostile.
"""

from __future__ import annotations

import json
import ssl
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, cast

from ddpctl_worker.checkpoint import manifest
from ddpctl_worker.checkpoint.jobfolder import inside
from ddpctl_worker.checkpoint.limits import MOST_ANSWER_BYTES
from ddpctl_worker.checkpoint.throttle import Throttle
from ddpctl_worker.rules.attempts import BEFORE_ANY, attempt_of
from ddpctl_worker.rules.complete import Chosen, Manifest
from ddpctl_worker.rules.order import moment_of
from ddpctl_worker.store.blobs import Part
from ddpctl_worker.store.relay import ChunkReader, LeastRate, PeerGone, connect, read_line, send_line
from ddpctl_worker.wire.channel import WorkerError


class CheckpointClient:
    """A client of another host's CheckpointServer. It connects when needed. Every method raises PeerGone."""

    def __init__(self, host: str, addresses: Sequence[Tuple[str, int]], tls: ssl.SSLContext) -> None:
        self.host, self.addresses, self._tls = host, tuple(addresses), tls
        self._in_turn = list(addresses)
        self._sock: Optional[ssl.SSLSocket] = None

    def list(self, by: Optional[str] = None, have: Optional[Dict[str, str]] = None) -> Dict[str, Any]:
        """Return the manifests of the peer, in short; ``serve.py`` describes the form.

        ``by``: the host that asks. ``have``: its copies of the peer's own entries, as entry -> version.
        """
        found = self._value({"k": "list", "by": by, "have": have or {}})
        rows, removed, mark = found.get("entries"), found.get("removed"), found.get("mark")
        plain = isinstance(rows, list) and all(isinstance(row, dict) and _is_row(row) for row in rows)
        if not plain or not isinstance(removed, list) or not isinstance(mark, str):
            raise self._not_understood()
        if not isinstance(found.get("final"), bool):
            raise self._not_understood()
        return found

    def manifest(self, writer: str, entry: str) -> Manifest:
        """Return the manifest of an entry of ``writer``. All its paths stay in the entry's folder."""
        found = self._value({"k": "manifest", "writer": writer, "entry": entry})
        if not manifest.is_well_formed(found) or (found["host"], found["entry"]) != (writer, entry):
            raise self._not_understood()
        of_peer = cast(Manifest, found)
        if not _stays_inside(of_peer):
            raise self._not_understood()
        return of_peer

    def orders(self, host: str, digest: str) -> Optional[List[Mapping[str, Any]]]:
        """Return the orders of ``host`` for the choice with that digest; ``None``: the peer has not chosen yet."""
        found: Optional[List[Mapping[str, Any]]] = self._value({"k": "orders", "for": host, "digest": digest})["orders"]
        if found is not None and not (isinstance(found, list) and all(map(_is_order, found))):
            raise self._not_understood()
        return found

    def file(self, writer: str, entry: str, path: str, part: Part, throttle: Throttle) -> None:
        """Fetch the rest of ``part``."""
        ask = {"k": "file", "writer": writer, "entry": entry, "path": path, "sha256": part.sha256, "offset": part.done}
        left = part.size - part.done
        if self._ask(ask) != left:
            raise PeerGone("%s has changed there, or is gone" % (path or entry))
        for data in self._pieces(left):
            part.write(data)
            throttle.count(len(data))

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
        self._sock = None

    def _value(self, request: Dict[str, Any]) -> Dict[str, Any]:
        size = self._ask(request)
        if not 0 <= size <= MOST_ANSWER_BYTES:
            raise self._not_understood()
        try:
            value = json.loads(b"".join(self._pieces(size)))
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise self._not_understood()
        return value

    def _ask(self, request: Dict[str, Any]) -> int:
        """Send a request and return the size of the answer; -1: the peer does not have it."""
        if self._sock is None:
            self._sock = self._connected()
        try:
            send_line(self._sock, {"to": self.host, **request})
            size = read_line(self._sock).get("size")
        except OSError as error:
            self.close()
            raise PeerGone("the connection broke: %s" % error) from None
        except PeerGone:
            self.close()
            raise
        return size if isinstance(size, int) else -1

    def _pieces(self, size: int) -> Iterator[bytes]:
        assert self._sock is not None
        reader, left = ChunkReader(self._sock, LeastRate()), size
        try:
            while left:
                data, _ = reader.read()
                if data is None:
                    raise PeerGone("the file has become shorter there")
                if len(data) > left:
                    raise self._not_understood()
                left -= len(data)
                yield data
        finally:
            if left:  # the rest of the answer would be taken for the next answer
                self.close()

    def _connected(self) -> ssl.SSLSocket:
        why = "it has no address"
        for address in self._in_turn:
            try:
                sock = connect(address, self._tls)
            except OSError as error:
                why = "%s port %d: %s" % (address[0], address[1], error)
                continue
            self._in_turn.sort(key=lambda other: other != address)  # from now on this address is tried first
            return sock
        raise PeerGone(why)

    def _not_understood(self) -> PeerGone:
        self.close()
        return PeerGone("its answer is not understood")


def _stays_inside(found: Manifest) -> bool:
    """Whether a valid manifest names only files in its entry's folder, with times that a file can have."""
    try:
        for path in found["files"]:
            inside(found["entry"], path)
    except WorkerError:
        return False
    return all(0 <= file["mtime_ns"] < 1 << 63 for file in found["files"].values())


def _is_order(order: Mapping[str, Any]) -> bool:
    try:
        made = manifest.own_manifest(Chosen(**{name: order[name] for name in Chosen._fields}), "")
        sources = order["sources"]
        pairs = [(host, writer) for path in made["files"] for host, writer in sources[path]]
    except (KeyError, TypeError, ValueError, AttributeError):
        return False
    texts = [text for pair in pairs for text in pair]
    return manifest.is_well_formed(made) and _stays_inside(made) and all(isinstance(text, str) for text in texts)


def _is_row(row: Dict[str, Any]) -> bool:
    try:
        moment_of(row["time"])
        return attempt_of(row) >= BEFORE_ANY and all(
            isinstance(row[key], str) for key in ("writer", "entry", "version")
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return False
