"""Who dials whom in the mesh, and in what order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FULL_MESH_HOSTS = 64

Pair = tuple[str, str]


def tournament(hosts: Sequence[str]) -> list[list[Pair]]:
    """Rounds in which every host has at most one partner, and after which every pair has met once (circle method)."""
    seats: list[str | None] = list(hosts)
    if len(seats) % 2:
        seats.append(None)
    rounds = []
    for _ in range(max(0, len(seats) - 1)):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        rounds.append([(a, b) for a, b in pairs if a is not None and b is not None])
        seats.insert(1, seats.pop())
    return rounds


@dataclass(frozen=True)
class Schedule:
    """``targets``: whom each host dials, in order. ``note`` says how a sample was taken; None for the full mesh."""

    targets: Mapping[str, tuple[str, ...]]
    note: str | None = None

    @property
    def links(self) -> int:
        return sum(len(peers) for peers in self.targets.values())


def schedule(hosts: Sequence[str], master: str, limit: int = FULL_MESH_HOSTS) -> Schedule:
    """Every ordered pair in tournament order; above ``limit`` hosts master to all and back, and a ring both ways.

    In each round a host has one partner, whom it dials and is dialled by.
    """
    if len(hosts) <= limit:
        rounds: list[list[Pair]] = tournament(hosts)
        note = None
    else:
        rounds = _sample(hosts, master)
        note = (
            f"a sample of the mesh of {len(hosts)} hosts: every host with the master, its two neighbours in a ring "
            f"and one far host, in both directions"
        )
    targets: dict[str, list[str]] = {host: [] for host in hosts}
    for pairs in rounds:
        for one, other in pairs:
            if other not in targets[one]:
                targets[one].append(other)
                targets[other].append(one)
    return Schedule({host: tuple(peers) for host, peers in targets.items()}, note)


def _sample(hosts: Sequence[str], master: str) -> list[list[Pair]]:
    """The ring in two or three rounds of disjoint pairs, far partners in one, the master's links one at a time."""
    count = len(hosts)
    ring = [(hosts[i], hosts[(i + 1) % count]) for i in range(count)]
    far = [(hosts[i], hosts[i + count // 2]) for i in range(count // 2)]
    star = [[(master, host)] for host in hosts if host != master]
    odd = [ring[-1:]] if count % 2 else []
    even_ring = ring[: count - count % 2]
    return [even_ring[0::2], even_ring[1::2], *odd, far, *star]
