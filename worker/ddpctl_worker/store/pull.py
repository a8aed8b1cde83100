"""The side of a node that gets files: from the nearest node before it in the chain, or from the controller."""

from __future__ import annotations

import contextlib
import queue
import socket
import ssl
import threading
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from ddpctl_worker.store.incoming import Incoming, IncomingFile
from ddpctl_worker.store.relay import ChunkReader, PeerGone, connect, send_line
from ddpctl_worker.wire.channel import Channel, WorkerError
from ddpctl_worker.wire.contract import CORRUPT, INTERRUPTED

STARVED_S = 40.0  # no byte for this long, though the peer lives: try elsewhere (longer than a dead SSH link is noticed)
LOOK_S = 3.0  # how often we look whether somebody further up has much more
LAG = 24 << 20  # bytes behind somebody further up that call for a change
GAIN = 1.3  # a change that did not bring this much tells that our own link is the slow one
MAX_UNREACHABLE = 3  # after this many nodes that could not be connected, the controller is asked
FEED_QUEUE = 8


class Peer:
    """A node that hands files on: where it listens, and what it had from the start."""

    def __init__(self, data: Dict[str, Any]) -> None:
        self.host: str = data["host"]
        self.addresses: List[Tuple[str, int]] = [(address, int(data["port"])) for address in data["addresses"]]
        self.have: Set[str] = set(data.get("have", ()))
        self.before: bool = bool(data.get("before"))  # it stands before us in the chain


class Pieces:
    """What the controller sends on our stdin: pieces of files, put here by the thread that reads stdin."""

    def __init__(self) -> None:
        self._pieces: "queue.Queue[Optional[Tuple[str, int, bytes]]]" = queue.Queue(FEED_QUEUE)
        self.closed = threading.Event()

    def put(self, sha256: str, offset: int, data: bytes) -> None:
        """Waits for room, so that the controller is slowed to what the disk takes; drops once ``closed``."""
        while not self.closed.is_set():
            try:
                self._pieces.put((sha256, offset, data), timeout=0.5)
                return
            except queue.Full:
                continue

    def get(self) -> Optional[Tuple[str, int, bytes]]:
        """The next piece; None when none will come."""
        while True:
            try:
                return self._pieces.get(timeout=0.5)
            except queue.Empty:
                if self.closed.is_set():
                    return None


class Puller:
    """Gets everything that is pending, from wherever it can be had."""

    def __init__(
        self, incoming: Incoming, tls: ssl.SSLContext, peers: List[Peer], channel: Channel, pieces: Pieces
    ) -> None:
        self._incoming, self._tls, self._channel, self._pieces = incoming, tls, channel, pieces
        self._peers = peers  # nearest first
        self._out: Dict[str, str] = {}  # host -> why it is not asked any more
        self._unreachable = 0
        self._own_link_is_slow = False
        self._rate_before: Optional[float] = None  # bytes/s from the peer that was left for being slow
        self._current: Optional[ssl.SSLSocket] = None
        self._current_host = ""
        self.relayed = 0
        self.fed = 0
        self.suspects: List[List[str]] = []  # [host, sha256] of files that came changed

    # --- from outside -------------------------------------------------------------------------------------------------
    def lost(self, host: str) -> None:
        """The controller has lost this node: do not wait for it any longer."""
        self._out.setdefault(host, "the controller lost its connection to it")
        current = self._current
        if self._current_host == host and current is not None:
            with contextlib.suppress(OSError):
                # Not SSLSocket.shutdown: that would let the reading thread take what is left for plain text.
                socket.socket.shutdown(current, socket.SHUT_RDWR)

    def run(self) -> None:
        """Returns when every file is complete and verified.

        Raises:
            WorkerError: no_space, unsafe_path, or corrupt when even the controller's copy has the wrong hash.
        """
        while self._incoming.pending():
            found = self._choose()
            if found is None:
                self._from_controller(self._incoming.pending())
            else:
                self._from_peer(*found)

    # --- whom to ask --------------------------------------------------------------------------------------------------
    def _usable(self) -> List[Peer]:
        return [peer for peer in self._peers if peer.host not in self._out]

    def _choose(self) -> Optional[Tuple[Peer, List[IncomingFile]]]:
        """The nearest node before us, for everything; else one that had the next file from the start."""
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

    # --- a peer -------------------------------------------------------------------------------------------------------
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
        """To the first of its addresses that answers with the run's certificate."""
        why = "it has no address"
        for address in peer.addresses:
            try:
                sock = connect(address, self._tls)
            except OSError as error:
                why = "%s port %d: %s" % (address[0], address[1], error)
                continue
            # The address that works is asked first from now on.
            peer.addresses.sort(key=lambda known: known != address)
            self._current_host, self._current = peer.host, sock
            return sock
        raise PeerGone(why)

    def _receive(self, peer: Peer, reader: ChunkReader, item: IncomingFile) -> None:
        """The rest of one file. Raises PeerGone when it does not come, comes changed, or comes too slowly."""
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
        """Whether the next node further up is far ahead of what reaches us; asked only while we lag."""
        others = [other for other in self._usable() if other.before and other is not peer]
        if self._own_link_is_slow or not others:
            return False
        if self._rate_before is not None and pace.rate < GAIN * self._rate_before:
            self._own_link_is_slow = True
            return False
        ahead = self._status(others[0], item)
        if ahead is None or ahead - item.done < max(LAG, 2 * LOOK_S * pace.rate):
            return False
        self._rate_before = pace.rate
        return True

    def _status(self, peer: Peer, item: IncomingFile) -> Optional[int]:
        """How many bytes of a file another node has; None when it does not say."""
        for address in peer.addresses[:1]:
            with contextlib.suppress(OSError, PeerGone):
                sock = connect(address, self._tls)
                try:
                    send_line(sock, {"to": peer.host, "status": item.sha256})
                    return ChunkReader(sock).read()[1]
                finally:
                    sock.close()
        return None

    # --- the controller -----------------------------------------------------------------------------------------------
    def _from_controller(self, items: List[IncomingFile]) -> None:
        """Ask for the rest of all pending files; the controller is the last resort, so there is no way on from here."""
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
    """How fast a file comes."""

    def __init__(self, done: int) -> None:
        self._moved = self._mark_time = time.monotonic()
        self._done = self._mark = done
        self.rate = 0.0

    def starved(self, done: int) -> bool:
        """No byte for STARVED_S."""
        now = time.monotonic()
        if done != self._done:
            self._done, self._moved = done, now
        return now - self._moved > STARVED_S

    def due(self) -> bool:
        """Every LOOK_S, with ``rate`` (bytes/s) measured since the last time."""
        now = time.monotonic()
        if now - self._mark_time < LOOK_S:
            return False
        self.rate = (self._done - self._mark) / (now - self._mark_time)
        self._mark, self._mark_time = self._done, now
        return True
