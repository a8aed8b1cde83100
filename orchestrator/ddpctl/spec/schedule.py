"""Who dials whom in the mesh, and in what order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ddpctl.spec.limits import FULL_MESH_HOSTS, PARTNERS
from ddpctl.spec.mesh import Pair

T = TypeVar("T")


def tournament(hosts: Sequence[str]) -> list[list[Pair]]:
    """Rounds in which every host has at most one partner, and after which every pair has met once (circle method)."""
    seats = _seats(hosts)
    return [_round(seats, number) for number in range(len(seats) - 1)]


def _seats(hosts: Sequence[str]) -> list[str | None]:
    """An empty seat makes an odd number even."""
    return [*hosts, None] if len(hosts) % 2 else [*hosts]


def _round(seats: Sequence[str | None], number: int) -> list[Pair]:
    """The first seat stays, the others move on by one a round; partners sit opposite."""
    first, others = seats[:1], seats[1:]
    turn = len(others) - number
    seated = [*first, *others[turn:], *others[:turn]]
    half = len(seated) // 2
    pairs = zip(seated[:half], reversed(seated[half:]), strict=True)
    return [(a, b) for a, b in pairs if a is not None and b is not None]


@dataclass(frozen=True)
class Schedule:
    """``targets``: whom each host dials, in order. ``note`` says how a sample was taken; None for the full mesh."""

    targets: Mapping[str, tuple[str, ...]]
    note: str | None = None

    @property
    def links(self) -> int:
        return sum(len(peers) for peers in self.targets.values())

    @property
    def pairs(self) -> frozenset[Pair]:
        return frozenset((host, peer) for host, peers in self.targets.items() for peer in peers)


def schedule(hosts: Sequence[str], master: str, seed: str = "") -> Schedule:
    """Every ordered pair in tournament order; above FULL_MESH_HOSTS hosts a sample.

    The sample: each host and its two neighbours in a ring, each host and PARTNERS random ones, in both directions; and
    every host dials the master. No host dials more than PARTNERS + 3 others, whatever their number. ``seed``: the same
    one gives the same sample, so that two runs can be compared.
    """
    full = len(hosts) <= FULL_MESH_HOSTS
    rounds = tournament(hosts) if full else [*_ring(hosts), *_random(hosts, seed)]
    targets: dict[str, dict[str, None]] = {host: {} for host in hosts}
    for pairs in rounds:
        for one, other in pairs:
            targets[one][other] = targets[other][one] = None
    for host in hosts:
        if host != master:
            targets[host].setdefault(master)
    order = {host: tuple(peers) for host, peers in targets.items()}
    return Schedule(order, None if full else _note(hosts, order))


def _note(hosts: Sequence[str], order: Mapping[str, tuple[str, ...]]) -> str:
    links, every = sum(map(len, order.values())), len(hosts) * (len(hosts) - 1)
    return (
        f"a sample of {links} of the {every} links of {len(hosts)} hosts, {100 * links / every:.1f} %: every host to "
        f"the master, and both ways with its neighbours and {PARTNERS} others at random"
    )


def _ring(hosts: Sequence[str]) -> list[list[Pair]]:
    """The ring in two or three rounds of disjoint pairs."""
    count = len(hosts)
    ring = [(hosts[i], hosts[(i + 1) % count]) for i in range(count)]
    even = ring[: count - count % 2]
    return [even[0::2], even[1::2], *([ring[-1:]] if count % 2 else [])]


def _random(hosts: Sequence[str], seed: str) -> list[list[Pair]]:
    """Some rounds of a tournament among the hosts in random order: no pair meets twice, whichever rounds they are."""
    seats = _seats(_shuffled(hosts, seed))
    return [_round(seats, number) for number in _shuffled(range(len(seats) - 1), seed)[:PARTNERS]]


def _shuffled(items: Iterable[T], seed: str) -> list[T]:
    """An order that has nothing to do with the names, the same for the same seed."""
    return sorted(items, key=lambda item: hashlib.sha256(f"{seed}/{item}".encode()).digest())
