"""The schedule of the mesh: the peers that each host dials, in order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ddpctl.spec.limits import FULL_MESH_HOSTS, PARTNERS
from ddpctl.spec.mesh import Pair

T = TypeVar("T")


def tournament(hosts: Sequence[str]) -> list[list[Pair]]:
    """Return rounds of pairs: in each round a host has at most one partner, and each pair meets in exactly one round.

    The circle method of round-robin tournaments.
    """
    circle = _circle(hosts)
    return [_round(circle, number) for number in range(len(circle) - 1)]


def _circle(hosts: Sequence[str]) -> list[str | None]:
    return [*hosts, None] if len(hosts) % 2 else [*hosts]  # an empty place makes an odd number even


def _round(circle: Sequence[str | None], number: int) -> list[Pair]:
    """Pair opposite places. The first host stays in its place, and all other hosts move on by one place per round."""
    first, moving = circle[:1], circle[1:]
    turn = len(moving) - number
    placed = [*first, *moving[turn:], *moving[:turn]]
    half = len(placed) // 2
    pairs = zip(placed[:half], reversed(placed[half:]), strict=True)
    return [(a, b) for a, b in pairs if a is not None and b is not None]


@dataclass(frozen=True)
class Schedule:
    """``targets``: host -> the peers that it dials, in order. ``note``: how a sample was taken.

    ``None``: the full mesh.
    """

    targets: Mapping[str, tuple[str, ...]]
    note: str | None = None

    @property
    def links(self) -> int:
        return sum(len(peers) for peers in self.targets.values())

    @property
    def pairs(self) -> frozenset[Pair]:
        return frozenset((host, peer) for host, peers in self.targets.items() for peer in peers)


def schedule(hosts: Sequence[str], master: str, seed: str = "") -> Schedule:
    """Return the full mesh (every ordered pair, in tournament order), or a sample with more than FULL_MESH_HOSTS hosts.

    In a sample each host dials the master, its two neighbours in a ring, and PARTNERS random partners. Neighbours and
    partners dial back. So a host dials at most PARTNERS + 3 peers, however many hosts there are. The same ``seed``
    gives the same sample, so that runs can be compared.
    """
    full = len(hosts) <= FULL_MESH_HOSTS
    rounds = tournament(hosts) if full else [*_ring(hosts), *_random(hosts, seed)]
    targets: dict[str, dict[str, None]] = {host: {} for host in hosts}
    for pairs in rounds:
        for a, b in pairs:
            targets[a][b] = targets[b][a] = None
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
    """Return the pairs of the ring, in two or three rounds of disjoint pairs."""
    count = len(hosts)
    ring = [(hosts[i], hosts[(i + 1) % count]) for i in range(count)]
    even = ring[: count - count % 2]
    return [even[0::2], even[1::2], *([ring[-1:]] if count % 2 else [])]


def _random(hosts: Sequence[str], seed: str) -> list[list[Pair]]:
    """Return PARTNERS random rounds of a tournament in random order; no pair occurs twice."""
    circle = _circle(_shuffled(hosts, seed))
    return [_round(circle, number) for number in _shuffled(range(len(circle) - 1), seed)[:PARTNERS]]


def _shuffled(items: Iterable[T], seed: str) -> list[T]:
    """Return a random order that depends on the seed alone, not on the order of the items."""
    return sorted(items, key=lambda item: hashlib.sha256(f"{seed}/{item}".encode()).digest())
