"""Reads the kernel's tables of TCP connections for data that another node does not acknowledge. Pure.

A peer that is slow or stopped does not count: its kernel acknowledges the data, or says that its buffer is full, and
then the connection's timer is the timer for window probes.
"""

from __future__ import annotations

import re
import socket
import struct
from typing import Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from ddpctl_worker.machine.net import V4_IN_V6, table_address

COUNTERS = "/proc/net/snmp"
# Established, not answered yet, or closed by the peer alone. Bytes that are not acknowledged (the first packet of a
# connection counts as a byte). The timer that sends them again, and how often it did.
_WAITS = re.compile(
    rb"^ *\d+: ([0-9A-F]+:([0-9A-F]{4})) (([0-9A-F]+):([0-9A-F]{4})) 0([128]) (?!0{8})([0-9A-F]{8}):[0-9A-F]{8} "
    rb"01:[0-9A-F]{8} (?!0{8})([0-9A-F]{8}) +(\d+) +\d+ +(\d+) ",
    re.M,
)


class Row(NamedTuple):
    """A connection to another node with data that was sent again."""

    key: Tuple[bytes, bytes, int]  # local and remote end as in the table, inode
    host: str
    port: int  # of this end
    far: int  # port of the other end
    queue: int  # bytes that are not acknowledged
    again: int  # how often the oldest byte was sent again
    uid: int
    opening: bool  # the other end has not answered at all yet

    @property
    def inode(self) -> int:
        return self.key[2]

    @property
    def local(self) -> str:
        return table_address(self.key[0].split(b":")[0].decode("ascii"))

    @property
    def remote(self) -> str:
        return table_address(self.key[1].split(b":")[0].decode("ascii"))


class Stuck(NamedTuple):
    """A connection without an acknowledgement for ``seconds``."""

    row: Row
    seconds: float


class Table:
    """Finds the waiting connections to nodes of the run, on a machine with perhaps many thousand connections."""

    def __init__(self, addresses: Optional[Mapping[str, str]] = None) -> None:
        """``addresses``: numeric address -> host; ``None``: connections to any address, with an empty host."""
        self._any = addresses is None
        self._hosts = {word: host for address, host in (addresses or {}).items() for word in _spellings(address)}

    def rows(self, text: bytes) -> Iterator[Row]:
        """Return the waiting connections in one of the kernel's tables."""
        for found in _WAITS.finditer(text):
            local, port, remote, address, far, state, queue, again, uid, inode = found.groups()
            host = "" if self._any else self._hosts.get(address)
            if host is not None:
                key = (local, remote, int(inode))
                numbers = int(port, 16), int(far, 16), int(queue, 16), int(again, 16), int(uid)
                yield Row(key, host, *numbers, state == b"2")


def count_retransmissions(counters: bytes) -> Optional[int]:
    """Return how many segments this machine has sent again, over all connections; ``None`` if unknown."""
    lines = [line.split() for line in counters.split(b"\n") if line.startswith(b"Tcp:")]
    if len(lines) < 2 or b"RetransSegs" not in lines[0]:
        return None
    try:
        return int(lines[1][lines[0].index(b"RetransSegs")])
    except (ValueError, IndexError):
        return None


class Tracker:
    """Measures for how long connections have made no progress, from look to look at the tables."""

    def __init__(self) -> None:
        self._since: Dict[Tuple[bytes, bytes, int], Tuple[float, Row]] = {}

    def look(self, rows: Iterable[Row], now: float) -> List[Stuck]:
        """Return the waiting connections, and for how long each was seen to wait without an acknowledgement."""
        fresh = {}
        for row in rows:
            since, before = self._since.get(row.key, (now, row))
            # An acknowledgement sets the count back; the queue may grow meanwhile.
            moved = row.again < before.again or row.queue < before.queue
            fresh[row.key] = (now if moved else since, row)
        self._since = fresh
        return [Stuck(row, now - since) for since, row in fresh.values()]

    @property
    def waiting(self) -> bool:
        """Return whether any connection waited at the last look."""
        return bool(self._since)

    def forget(self) -> None:
        """Start all times again after a pause without looks: waiting data may have moved meanwhile."""
        self._since = {}


def _spellings(address: str) -> List[bytes]:
    """Return the forms of an address in the tables: words in the byte order of this machine."""
    plain = address.split("%")[0]
    if ":" in plain:
        raw = [socket.inet_pton(socket.AF_INET6, plain)]
    else:
        raw = [socket.inet_pton(socket.AF_INET, plain)]
        raw.append(V4_IN_V6 + raw[0])  # a socket for both families
    return [b"".join(b"%08X" % word for word in struct.unpack("=%dI" % (len(packed) // 4), packed)) for packed in raw]
