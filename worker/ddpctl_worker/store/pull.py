"""Receives files from the nearest node before this node in the chain, or from the controller."""

from __future__ import annotations

import contextlib
import queue
import socket
import ssl
import threading
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from ddpctl_worker.store.incoming import Incoming, IncomingFile
from ddpctl_worker.store.limits import LAG_BYTES, MAX_UNREACHABLE, MIN_GAIN, PACE_LOOK_S, QUEUED_PIECES, STARVED_S
from ddpctl_worker.store.relay import ChunkReader, PeerGone, connect, send_line
from ddpctl_worker.wire.channel import Channel, WorkerError
from ddpctl_worker.wire.contract import CORRUPT, INTERRUPTED


class Peer:
    """A node that passes files on: its addresses, and the files that it had from the start."""

    def __init__(self, data: Dict[str, Any]) -> None:
        self.host: str = data["host"]
        self.addresses: List[Tuple[str, int]] = [(address, int(data["port"])) for address in data["addresses"]]
        self.have: Set[str] = set(data.get("have", ()))
        self.before: bool = bool(data.get("before"))  # before this node in the chain


class Pieces:
    """Queue of file pieces from the controller; the thread that reads stdin fills it."""

    def __init__(self) -> None:
        self._pieces: "queue.Queue[Optional[Tuple[str, int, bytes]]]" = queue.Queue(QUEUED_PIECES)
        self.closed = threading.Event()

    def put(self, sha256: str, offset: int, data: bytes) -> None:
        """Wait for room in the queue, so that the controller sends no faster than the disk writes; drop the piece once
        ``closed``."""
        while not self.closed.is_set():
            try:
                self._pieces.put((sha256, offset, data), timeout=0.5)
                return
            except queue.Full:
                continue

    def get(self) -> Optional[Tuple[str, int, bytes]]:
        """Return the next piece; ``None`` after the last piece."""
        while True:
            try:
                return self._pieces.get(timeout=0.5)
            except queue.Empty:
                if self.closed.is_set():
                    return None


class Puller:
    """Receives all pending files, from peers first and from the controller last."""

    def __init__(
        self, incoming: Incoming, tls: ssl.SSLContext, peers: List[Peer], channel: Channel, pieces: Pieces
    ) -> None:
        self._incoming, self._tls, self._channel, self._pieces = incoming, tls, channel, pieces
        self._peers = peers  # nearest first
        self._out: Dict[str, str] = {}  # host -> why it is not asked again
        self._unreachable = 0
        self._own_link_is_slow = False
        self._rate_before: Optional[float] = None  # bytes/s from the peer that was given up as slow
        self._current: Optional[ssl.SSLSocket] = None
        self._current_host = ""
        self.relayed = 0
        self.fed = 0
        self.suspects: List[List[str]] = []  # [host, sha256] of files that arrived damaged

    # --- other threads -----------------------------------------------------------------------------------------------
    def lost(self, host: str) -> None:
        """Give up a node that the controller has lost."""
        self._out.setdefault(host, "the controller lost its connection to it")
        current = self._current
        if self._current_host == host and current is not None:
            with contextlib.suppress(OSError):
                # Not SSLSocket.shutdown: after that the reading thread would take the remaining bytes for plain text.
                socket.socket.shutdown(current, socket.SHUT_RDWR)

    def run(self) -> None:
        """Return when every file is complete and verified.

        Raises:
            WorkerError: no_space, unsafe_path, or corrupt if the controller's copy has the wrong hash too.
        """
        while self._incoming.pending():
            choice = self._choose()
            if choice is None:
                self._from_controller(self._incoming.pending())
            else:
                self._from_peer(*choice)

    # --- choice of the peer ------------------------------------------------------------------------------------------
    def _usable(self) -> List[Peer]:
        return [peer for peer in self._peers if peer.host not in self._out]

    def _choose(self) -> Optional[Tuple[Peer, List[IncomingFile]]]:
        """Return the nearest node before this node with all pending files; else a node that had the next file from the
        start, with its files; ``None``: ask the controller."""
        pending = self._incoming.pending()
        if self._unreachable >= MAX_UNREACHABLE:
            return None
        for peer in self._usable():
            if peer.before:
                return peer, pending
        for peer in self._usable():
            had = [item for item in pending if item.sha256 in peer.have]
            if had and had[0] is pending[0]:
                return peer, had
        return None

    def _give_up(self, peer: Peer, why: str) -> None:
        self._out[peer.host] = why
        self._channel.send({"left": peer.host, "why": why})

    # --- one peer ----------------------------------------------------------------------------------------------------
    def _from_peer(self, peer: Peer, items: List[IncomingFile]) -> None:
        try:
            sock = self._connect(peer)
        except PeerGone as gone:
            self._unreachable += 1
            self._give_up(peer, "cannot be reached: %s" % gone)
            return
        self._unreachable = 0
        try:
            send_line(sock, {"to": peer.host, "files": [[item.sha256, item.done] for item in items]})
            reader = ChunkReader(sock)
            for item in items:
                self._receive(peer, reader, item)
        except PeerGone as gone:
            self._give_up(peer, str(gone))
        except OSError as error:
            self._give_up(peer, "the connection broke: %s" % error)
        finally:
            self._current = None
            sock.close()

    def _connect(self, peer: Peer) -> ssl.SSLSocket:
        """Connect to the first address that answers with the run's certificate. Raises PeerGone."""
        why = "it has no address"
        for address in peer.addresses:
            try:
                sock = connect(address, self._tls)
            except OSError as error:
                why = "%s port %d: %s" % (address[0], address[1], error)
                continue
            # The address that works is asked first from now on.
            peer.addresses.sort(key=lambda other: other != address)
            self._current_host, self._current = peer.host, sock
            return sock
        raise PeerGone(why)

    def _receive(self, peer: Peer, reader: ChunkReader, item: IncomingFile) -> None:
        """Receive the rest of one file. Raises PeerGone if it does not arrive, is damaged, or is too slow."""
        pace = Pace(item.done)
        while item.done < item.size:
            data, _ = reader.read()
            if data is None:
                raise PeerGone("it cannot continue with %s" % item.name)
            if data:
                self._incoming.append(item, data)
                self.relayed += len(data)
            if pace.starved(item.done):
                raise PeerGone("it sent nothing of %s for %g s" % (item.name, STARVED_S))
            if pace.due() and self._better_elsewhere(peer, item, pace):
                raise PeerGone("it is slow: a node before it has much more of %s" % item.name)
        try:
            self._incoming.finish(item)
        except WorkerError as error:
            if error.kind != CORRUPT:
                raise
            self.suspects.append([peer.host, item.sha256])
            raise PeerGone("%s arrived damaged from it: %s" % (item.name, error.message)) from None

    def _better_elsewhere(self, peer: Peer, item: IncomingFile, pace: "Pace") -> bool:
        """Whether the next earlier node of the chain is far ahead of this node."""
        others = [other for other in self._usable() if other.before and other is not peer]
        if self._own_link_is_slow or not others:
            return False
        if self._rate_before is not None and pace.rate < MIN_GAIN * self._rate_before:
            self._own_link_is_slow = True
            return False
        ahead = self._status(others[0], item)
        if ahead is None or ahead - item.done < max(LAG_BYTES, 2 * PACE_LOOK_S * pace.rate):
            return False
        self._rate_before = pace.rate
        return True

    def _status(self, peer: Peer, item: IncomingFile) -> Optional[int]:
        """Return how many bytes of a file another node has; ``None`` if it does not answer."""
        for address in peer.addresses[:1]:
            with contextlib.suppress(OSError, PeerGone):
                sock = connect(address, self._tls)
                try:
                    send_line(sock, {"to": peer.host, "status": item.sha256})
                    return ChunkReader(sock).read()[1]
                finally:
                    sock.close()
        return None

    # --- the controller ----------------------------------------------------------------------------------------------
    def _from_controller(self, items: List[IncomingFile]) -> None:
        """Receive the rest of all pending files. The controller is the last source, so its failure is final."""
        self._channel.send({"want": [[item.sha256, item.done] for item in items]})
        for item in items:
            while item.done < item.size:
                piece = self._pieces.get()
                if piece is None:
                    raise WorkerError(INTERRUPTED, "the controller disconnected", "run the same command again")
                sha256, offset, data = piece
                if (sha256, offset) != (item.sha256, item.done):
                    raise WorkerError(CORRUPT, "the controller sent another piece than was asked for")
                self._incoming.append(item, data)
                self.fed += len(data)
            self._incoming.finish(item)


class Pace:
    """Measures how fast a file arrives."""

    def __init__(self, done: int) -> None:
        self._moved = self._mark_time = time.monotonic()
        self._done = self._mark = done
        self.rate = 0.0

    def starved(self, done: int) -> bool:
        """Whether no byte has arrived for STARVED_S."""
        now = time.monotonic()
        if done != self._done:
            self._done, self._moved = done, now
        return now - self._moved > STARVED_S

    def due(self) -> bool:
        """Whether PACE_LOOK_S have passed; sets ``rate`` (bytes/s) since the last time."""
        now = time.monotonic()
        if now - self._mark_time < PACE_LOOK_S:
            return False
        self.rate = (self._done - self._mark) / (now - self._mark_time)
        self._mark, self._mark_time = self._done, now
        return True
