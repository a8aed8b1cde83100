"""What the nodes saw of each other: every connection tried, and what each link gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from ddpctl_worker import contract

OK = contract.OK
# What a host without room for a neighbour sees.
_NO_ROOM = frozenset({contract.DROPPED, contract.REJECTED, contract.NO_ROUTE, contract.ERROR})

Pair = tuple[str, str]


class Dial(NamedTuple):
    """One connection that was tried. ``status`` is a word of the worker's contract (OK, REFUSED, ...). Times in
    milliseconds.

    A tuple, for there are tens of thousands: it is made quickly, and the garbage collector passes it over."""

    dialer: str
    peer: str
    address: str
    port: int
    status: str
    errno: str | None = None
    detail: str | None = None
    local: str | None = None
    interface: str | None = None
    ms: float | None = None


@dataclass(frozen=True)
class Speed:
    """What a link gave: round trip in ms, Mbit/s from the dialer (``push``) and to it (``pull``), and whether the bulk
    data arrived: ok, slow (stopped early), stalled or failed. ``mtu``: where it stalled, the largest packets that
    pass."""

    dialer: str
    peer: str
    rtt_ms: float | None
    push_mbit: float | None
    pull_mbit: float | None
    push: str = OK
    pull: str = OK
    mtu: int | None = None
    address: str | None = None


@dataclass(frozen=True)
class Neighbours:
    """The kernel's neighbour (ARP) table of a node after its dials: how many entries it may have and has, and how many
    found no room meanwhile."""

    limit: int
    entries: int
    overflows: int


@dataclass(frozen=True)
class Fabric:
    """The address that the other nodes use for a node, and the interface that owns it (None: not known)."""

    address: str
    interface: str | None


@dataclass(frozen=True)
class Link:
    """One direction of the mesh as people look at it: the worst status of its ports, round trip, and speed."""

    dialer: str
    peer: str
    status: str
    rtt_ms: float | None = None
    mbit: float | None = None


@dataclass(frozen=True)
class Mesh:
    """All that the mesh round saw, on the addresses that were chosen.

    ``ports``: for each host its dialled ports and what they stand for (master, gang, sample); ``taken``: the job's own
    ports that another program holds there; ``ranges``: each host's ephemeral ports, both ends included; ``again``: the
    dialled pairs that were measured twice; ``reached``: for a host whose address nobody reaches, others of it that
    somebody did (only where that address seems to be the wrong one, and not the network to be broken); ``scheduled``:
    who was to dial whom; ``absent``: hosts that could not take part, and why.
    """

    hosts: tuple[str, ...] = ()
    master: str | None = None
    master_port: int | None = None
    fabric: Mapping[str, Fabric] = field(default_factory=dict)
    dials: tuple[Dial, ...] = ()
    speeds: tuple[Speed, ...] = ()
    ports: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    taken: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    note: str | None = None
    again: frozenset[Pair] = frozenset()
    reached: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scheduled: frozenset[Pair] = frozenset()
    absent: Mapping[str, str] = field(default_factory=dict)
    neighbours: Mapping[str, Neighbours] = field(default_factory=dict)

    @cached_property
    def pairs(self) -> frozenset[Pair]:
        """Who dialled whom."""
        return frozenset((dial.dialer, dial.peer) for dial in self.dials)

    @cached_property
    def crowded_out(self) -> frozenset[Dial]:
        """Connections that failed at a host whose neighbour table was full: they say nothing of the network."""
        full = {host for host, table in self.neighbours.items() if table.overflows}
        return frozenset(dial for dial in self.dials if dial.status in _NO_ROOM and {dial.dialer, dial.peer} & full)

    def rates(self) -> dict[Pair, float]:
        """Mbit/s of every direction that was measured: the better of the sender's push and the receiver's pull."""
        found: dict[Pair, float] = {}
        for speed in self.speeds:
            there, back = (speed.dialer, speed.peer), (speed.peer, speed.dialer)
            if speed.push_mbit:
                found[there] = max(speed.push_mbit, found.get(there, 0.0))
            if speed.pull_mbit:
                found[back] = max(speed.pull_mbit, found.get(back, 0.0))
        return found

    def links(self) -> tuple[Link, ...]:
        """Every direction that was tried."""
        worst: dict[Pair, str] = {}
        for dial in self.dials:
            pair = (dial.dialer, dial.peer)
            if worst.get(pair, OK) == OK:
                worst[pair] = dial.status
        pushed = {(speed.dialer, speed.peer): speed for speed in self.speeds}
        rates = self.rates()
        return tuple(
            Link(*pair, _bulk(status, pushed.get(pair)), _rtt(pushed, pair), rates.get(pair))
            for pair, status in worst.items()
        )


def _bulk(status: str, speed: Speed | None) -> str:
    return contract.STALLED if status == OK and speed is not None and speed.push == contract.STALLED else status


def _rtt(speeds: Mapping[Pair, Speed], pair: Pair) -> float | None:
    speed = speeds.get(pair)
    return speed.rtt_ms if speed else None
