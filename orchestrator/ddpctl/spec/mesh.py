"""What the nodes saw of each other: every connection tried, what each link gave, and which links stand out."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from ddpctl.spec import limits
from ddpctl_worker.wire import contract

OK = contract.OK
# What a host without room for a neighbour sees.
_NO_ROOM = frozenset({contract.DROPPED, contract.REJECTED, contract.NO_ROUTE, contract.ERROR})

BROKEN = frozenset({contract.STALLED, contract.BROKEN})

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
    rtt_ms: float | None = None
    push_mbit: float | None = None
    pull_mbit: float | None = None
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

    ``ports``: for each host its dialled ports and what they stand for (master, gang, agent, sample); ``ranges``:
    each host's ephemeral ports, both ends included; ``again``: the dialled pairs that were measured twice; ``reached``:
    for a host whose address nobody reaches, others of it that somebody did (only where that address seems to be the
    wrong one, and not the network to be broken); ``scheduled``: who was to dial whom; ``absent``: hosts that could not
    take part, and why; ``agents``: the job has restarts, so agents listen on every host, and any of
    them may be the next master.
    """

    hosts: tuple[str, ...] = ()
    master: str | None = None
    master_port: int | None = None
    fabric: Mapping[str, Fabric] = field(default_factory=dict)
    dials: tuple[Dial, ...] = ()
    speeds: tuple[Speed, ...] = ()
    ports: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    note: str | None = None
    again: frozenset[Pair] = frozenset()
    reached: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scheduled: frozenset[Pair] = frozenset()
    absent: Mapping[str, str] = field(default_factory=dict)
    neighbours: Mapping[str, Neighbours] = field(default_factory=dict)
    agents: bool = False
    left_out = 0  # of the hosts: it is whole

    @cached_property
    def pairs(self) -> frozenset[Pair]:
        """Each host with each peer that it dialled."""
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


def worst_hosts(hosts: Sequence[str], links: Iterable[Link], most: int) -> tuple[str, ...]:
    """As many hosts as ``most``, in their order: first those with broken links, then those with the slowest ones."""
    if len(hosts) <= most:
        return tuple(hosts)
    known = list(links)
    broken = [link for link in known if link.status != OK]
    slow = sorted((link for link in known if link.mbit is not None), key=lambda link: link.mbit or 0.0)
    worst = [host for link in (*broken, *slow) for host in (link.dialer, link.peer)]
    chosen = set(list(dict.fromkeys((*worst, *hosts)))[:most])
    return tuple(host for host in hosts if host in chosen)


# --- links that are slow, late, or swallow big packets ---------------------------------------------------------------


def slow_links(mesh: Mesh) -> dict[Pair, float]:
    """Directions under half of the median of all (a third, where they are fast; or hardly usable at all), with their
    Mbit/s; not those of a link that swallows bulk data, whose rate says no more than that."""
    rates = mesh.rates()
    if not rates:
        return {}
    middle = statistics.median(rates.values())
    slow = min(limits.SLOW_LINK_SHARE * middle, limits.NOISY_MBIT)
    slow_and_noisy = min(limits.NOISY_LINK_SHARE * middle, limits.FAST_ENOUGH_MBIT)
    bound = max(slow, slow_and_noisy, limits.HARDLY_USABLE_MBIT)
    return _whole(mesh, {pair: value for pair, value in rates.items() if value < bound})


def late_links(mesh: Mesh) -> dict[Pair, float]:
    """Directions whose round trip is far above the median of all, in ms; not those of a link that swallows bulk data,
    which was never measured in quiet."""
    trips = {(speed.dialer, speed.peer): speed.rtt_ms for speed in mesh.speeds if speed.rtt_ms is not None}
    if len(trips) < limits.LEAST_COMPARED:
        return {}
    middle = statistics.median(trips.values())
    bound = max(limits.LATE_LINK_FACTOR * middle, middle + limits.LATE_LINK_MS)
    return _whole(mesh, {pair: value for pair, value in trips.items() if value > bound})


def _whole(mesh: Mesh, found: dict[Pair, float]) -> dict[Pair, float]:
    """Without the links on which bulk data stalls, in either direction."""
    stalled = {frozenset(pair) for pair in stalled_pairs(mesh)}
    return {pair: value for pair, value in found.items() if frozenset(pair) not in stalled}


def stalled_pairs(mesh: Mesh) -> tuple[Pair, ...]:
    """The dialled pairs whose bulk data did not arrive, one way or both."""
    return tuple((s.dialer, s.peer) for s in mesh.speeds if s.push in BROKEN or s.pull in BROKEN)


def suspects(mesh: Mesh) -> tuple[Pair, ...]:
    """Return the dialled pairs to measure again: slow or late ones, the worst first, MOST_REMEASURED at most."""
    slow, late = slow_links(mesh), late_links(mesh)
    ordered = [*sorted(slow, key=lambda pair: slow[pair]), *sorted(late, key=lambda pair: -late[pair])]
    measured = {(speed.dialer, speed.peer) for speed in mesh.speeds}
    chosen: list[Pair] = []
    for pair in dict.fromkeys(ordered):
        busy = max(sum(host in other for other in chosen) for host in pair)
        if pair in measured and busy < limits.MOST_REMEASURED_PER_HOST and len(chosen) < limits.MOST_REMEASURED:
            chosen.append(pair)
    return tuple(chosen)
