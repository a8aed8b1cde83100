"""Limits and counts the connections of strangers: peers without a proof that they belong to the run.

Any machine that reaches a port can connect to it, as often and from as many addresses as it has. Such connections
share a fixed number of places. Once all places are taken, the oldest connection of the address with the most places is
closed. So a flood from an address costs no other address a place. A peer with a proof takes no place.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Any, Dict, Generic, Hashable, Iterator, List, Optional, TypeVar

from ddpctl_worker.machine import fs
from ddpctl_worker.machine.limits import MOST_ADDRESSES, SHOWN_ADDRESSES, STRANGERS_LOG_S, STRANGERS_RECORD_S
from ddpctl_worker.machine.notes import iso, note

OTHERS = "other addresses"
T = TypeVar("T", bound=Hashable)


class Stranger(Exception):
    """The other side does not belong to the run, or talks nonsense: close the connection."""


class Places(Generic[T]):
    """The connections of a listener without proof. Pure: the caller gives the times (monotonic seconds)."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._sources: Dict[T, str] = {}
        self._held: Dict[str, Dict[T, float]] = {}  # source -> its connections, the oldest first

    def __len__(self) -> int:
        return len(self._sources)

    def __contains__(self, connection: object) -> bool:
        return connection in self._sources

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._sources))

    def add(self, connection: T, address: str, now: float) -> Optional[T]:
        """Give a place to a new connection; return the connection that has to be closed for it, if any."""
        full = self.first_to_close() if len(self._sources) >= self._most else None
        if full is not None:
            self.remove(full)
        source = self._sources[connection] = network_of(address)
        self._held.setdefault(source, {})[connection] = now
        return full

    def remove(self, connection: T) -> None:
        """The connection has ended, or its other side has proved itself."""
        source = self._sources.pop(connection, None)
        if source is not None:
            held = self._held[source]
            del held[connection]
            if not held:
                del self._held[source]

    def first_to_close(self) -> Optional[T]:
        """Return the oldest connection of the source with the most connections."""
        if not self._held:
            return None
        # The first connection of each source is its oldest.
        source = max(self._held, key=lambda name: (len(self._held[name]), -next(iter(self._held[name].values()))))
        return next(iter(self._held[source]))

    def list_late(self, since: float) -> List[T]:
        """Return the connections that came before ``since``."""
        return [connection for held in self._held.values() for connection, came in held.items() if came < since]


def network_of(address: str) -> str:
    """Return the source of an address: an IPv4 address, or a /64 of IPv6, since a single machine may own a /64."""
    plain = address.split("%")[0]
    if plain.startswith("::ffff:") and "." in plain:
        return plain[7:]
    try:
        raw = socket.inet_pton(socket.AF_INET6, plain)
    except (OSError, ValueError):
        return plain
    return plain if plain == "::1" else socket.inet_ntop(socket.AF_INET6, raw[:8] + bytes(8)) + "/64"


class Tally:
    """Counts this process's connections by strangers, by source. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Dict[str, int] = {}
        self._last = 0.0  # Unix seconds
        self._why = ""
        self._news = threading.Event()

    def add(self, address: str, why: str) -> None:
        """Count a connection from ``address`` that was closed because of ``why``."""
        source = network_of(address)
        with self._lock:
            if source not in self._counts and len(self._counts) >= MOST_ADDRESSES:
                source = OTHERS
            self._counts[source] = self._counts.get(source, 0) + 1
            self._last, self._why = time.time(), why
        self._news.set()

    def to_json(self) -> Dict[str, Any]:
        """Return ``{"count", "addresses", "most": {address: count}, "last": ISO 8601, "why"}``."""
        with self._lock:
            most = sorted(self._counts, key=lambda source: -self._counts[source])
            return {
                "count": sum(self._counts.values()),
                "addresses": len(self._counts),
                "most": {source: self._counts[source] for source in most[:SHOWN_ADDRESSES]},
                "last": iso(self._last),
                "why": self._why,
            }

    def start(self, path: str) -> None:
        """Write a record at ``path`` and lines in the log, in a thread of its own: a disk may hang."""
        with contextlib.suppress(RuntimeError):  # no more threads: counting continues without a record
            threading.Thread(target=self._run, args=(path,), name="strangers", daemon=True).start()

    def _run(self, path: str) -> None:
        logged, before = -STRANGERS_LOG_S, 0
        while True:
            self._news.wait()
            self._news.clear()
            told = self.to_json()
            if time.monotonic() - logged >= STRANGERS_LOG_S:
                text = "strangers: %d connections closed in all, %d of them new, most from %s; the last one for %s"
                note(text % (told["count"], told["count"] - before, ", ".join(told["most"]), told["why"]))
                logged, before = time.monotonic(), told["count"]
            with contextlib.suppress(OSError):  # a full disk: the log has it
                fs.write_json(path, told, durable=False)
            time.sleep(STRANGERS_RECORD_S)


TALLY = Tally()  # of this process
