"""The mesh of preflight: every connection that was tried, the speed of each link, and the slow and late links."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, NamedTuple

from pydantic import Field

from ddpctl.spec import limits
from ddpctl.spec.bounds import Count, Name, Rate, Unicode, one_of
from ddpctl_worker.wire import contract

OK = contract.OK
# The statuses of a dial at a host whose neighbour table is full.
_NO_ROOM = frozenset({contract.DROPPED, contract.REJECTED, contract.NO_ROUTE, contract.ERROR})

BROKEN = frozenset({contract.STALLED, contract.BROKEN})

Pair = tuple[str, str]
_Transfer = Annotated[Unicode, Field(pattern=one_of(OK, contract.SLOW, contract.STALLED, contract.BROKEN))]


class Dial(NamedTuple):
    """A connection that was tried. ``status``: a status of the worker's contract (OK, REFUSED, ...). ``ms``: its time.

    A tuple, because a mesh has tens of thousands: a tuple is made quickly, and the garbage collector skips it.
    """

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
    """A measured link: the round trip in ms, and the rates from the dialer (``push``) and to it (``pull``) in Mbit/s.

    ``push`` and ``pull`` say whether the bulk data arrived: ok, slow (stopped early), stalled or failed. ``mtu``: on a
    link that stalled, the size of the largest packets that pass.
    """

    dialer: Name
    peer: Name
    rtt_ms: Rate | None = None
    push_mbit: Rate | None = None
    pull_mbit: Rate | None = None
    push: _Transfer = OK
    pull: _Transfer = OK
    mtu: Count | None = None
    address: Unicode | None = None


@dataclass(frozen=True)
class Neighbours:
    """The kernel's neighbour (ARP) table of a node after its dials.

    ``limit``: the most entries it may have. ``overflows``: entries that found no room during the dials.
    """

    limit: Count
    entries: Count
    overflows: Count


@dataclass(frozen=True)
class Fabric:
    """The address that the other nodes use for a node, and the interface with that address (``None``: not known)."""

    address: str
    interface: str | None


@dataclass(frozen=True)
class Link:
    """A link in one direction, as shown to a person: the worst status of its ports, the round trip, and the rate."""

    dialer: str
    peer: str
    status: str
    rtt_ms: float | None = None
    mbit: float | None = None


@dataclass(frozen=True)
class Mesh:
    """The results of the mesh, on the chosen addresses.

    - ``ports``: host -> its dialled ports, each with its purpose (master, gang, agent, sample).
    - ``ranges``: host -> its ephemeral ports, both ends included.
    - ``again``: the dialled pairs that were measured twice.
    - ``reached``: host that no peer reaches -> its other addresses that a peer did reach. Only for a host whose address
      seems to be wrong, not for a broken network.
    - ``scheduled``: the pairs (dialer, peer) of the schedule.
    - ``absent``: host that could not take part -> why.
    - ``agents``: the job has restarts, so agents listen on every host, and any host may be the next master.
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
    left_out = 0  # hosts that are not in it, as in ``Network``

    @cached_property
    def pairs(self) -> frozenset[Pair]:
        """Return the pairs (dialer, peer) that were tried."""
        return frozenset((dial.dialer, dial.peer) for dial in self.dials)

    @cached_property
    def crowded_out(self) -> frozenset[Dial]:
        """Return the dials that failed at a host whose neighbour table was full: the network is not to blame."""
        full = {host for host, table in self.neighbours.items() if table.overflows}
        return frozenset(dial for dial in self.dials if dial.status in _NO_ROOM and {dial.dialer, dial.peer} & full)

    def rates(self) -> dict[Pair, float]:
        """Return the Mbit/s of every measured direction: the better of the sender's push and the receiver's pull."""
        found: dict[Pair, float] = {}
        for speed in self.speeds:
            there, back = (speed.dialer, speed.peer), (speed.peer, speed.dialer)
            if speed.push_mbit:
                found[there] = max(speed.push_mbit, found.get(there, 0.0))
            if speed.pull_mbit:
                found[back] = max(speed.pull_mbit, found.get(back, 0.0))
        return found

    def links(self) -> tuple[Link, ...]:
        """Return every tried link, each direction by itself."""
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
    """Choose at most ``most`` hosts: with broken links first, then with the slowest links. The order stays."""
    if len(hosts) <= most:
        return tuple(hosts)
    every = list(links)
    broken = [link for link in every if link.status != OK]
    slow = sorted((link for link in every if link.mbit is not None), key=lambda link: link.mbit or 0.0)
    worst = [host for link in (*broken, *slow) for host in (link.dialer, link.peer)]
    chosen = set(list(dict.fromkeys((*worst, *hosts)))[:most])
    return tuple(host for host in hosts if host in chosen)


# --- links that are slow, late, or swallow big packets ---------------------------------------------------------------


def slow_links(mesh: Mesh) -> dict[Pair, float]:
    """Return the slow directions with their Mbit/s.

    A direction is slow below half of the median rate; between fast links, below a third. A hardly usable rate is always
    slow. Links on which bulk data stalls are left out: their rate has another cause.
    """
    rates = mesh.rates()
    if not rates:
        return {}
    middle = statistics.median(rates.values())
    slow = min(limits.SLOW_LINK_SHARE * middle, limits.NOISY_MBIT)
    slow_and_noisy = min(limits.NOISY_LINK_SHARE * middle, limits.FAST_ENOUGH_MBIT)
    bound = max(slow, slow_and_noisy, limits.HARDLY_USABLE_MBIT)
    return _whole(mesh, {pair: value for pair, value in rates.items() if value < bound})


def late_links(mesh: Mesh) -> dict[Pair, float]:
    """Return the directions whose round trip is far above the median, with their ms.

    Links on which bulk data stalls are left out: their round trip was measured under load.
    """
    trips = {(speed.dialer, speed.peer): speed.rtt_ms for speed in mesh.speeds if speed.rtt_ms is not None}
    if len(trips) < limits.LEAST_COMPARED:
        return {}
    middle = statistics.median(trips.values())
    bound = max(limits.LATE_LINK_FACTOR * middle, middle + limits.LATE_LINK_MS)
    return _whole(mesh, {pair: value for pair, value in trips.items() if value > bound})


def _whole(mesh: Mesh, found: dict[Pair, float]) -> dict[Pair, float]:
    """Leave out the links on which bulk data stalls in either direction."""
    stalled = {frozenset(pair) for pair in stalled_pairs(mesh)}
    return {pair: value for pair, value in found.items() if frozenset(pair) not in stalled}


def stalled_pairs(mesh: Mesh) -> tuple[Pair, ...]:
    """Return the dialled pairs whose bulk data did not arrive, in one direction or both."""
    return tuple((s.dialer, s.peer) for s in mesh.speeds if s.push in BROKEN or s.pull in BROKEN)


def suspects(mesh: Mesh) -> tuple[Pair, ...]:
    """Return the dialled pairs to measure again: slow, then late links, the worst first, MOST_REMEASURED at most."""
    slow, late = slow_links(mesh), late_links(mesh)
    ordered = [*sorted(slow, key=lambda pair: slow[pair]), *sorted(late, key=lambda pair: -late[pair])]
    measured = {(speed.dialer, speed.peer) for speed in mesh.speeds}
    chosen: list[Pair] = []
    for pair in dict.fromkeys(ordered):
        busy = max(sum(host in other for other in chosen) for host in pair)
        if pair in measured and busy < limits.MOST_REMEASURED_PER_HOST and len(chosen) < limits.MOST_REMEASURED:
            chosen.append(pair)
    return tuple(chosen)
