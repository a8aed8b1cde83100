"""The fault and the victim of each round; the same seed gives the same plan. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

HOSTS = ("node0", "node1", "node2", "node3")
CARRIES, ENDS, STAYS, EITHER = "carries on", "ends", "stays", "either"  # stays: another attempt may not be needed
Drops = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Round:
    """A run and its fault.

    ``drops``: (host, other): nothing from the other arrives there, for ``seconds`` (None: until the end). ``accused``:
    the hosts that may be excluded. ``place``: what is full, of a host's disk. ``alone``: the `ddpctl up` that follows
    is killed before the fault. ``finish``: the training may end by itself; otherwise it is killed.
    """

    number: int
    kind: str
    hosts: tuple[str, ...]
    nodes: int  # of the first attempt
    victim: str
    delay: float  # seconds from the first copied checkpoint to the fault
    alone: bool
    finish: bool
    fate: str = CARRIES
    least: int | None = None  # elastic
    drops: Drops = frozenset()
    seconds: float | None = None
    accused: frozenset[str] = frozenset()
    place: str = ""

    @property
    def spares(self) -> int:
        return len(self.hosts) - self.nodes

    def __str__(self) -> str:
        cut = f" for {self.seconds:.0f} s" if self.seconds is not None else ""
        return f"{self.number:4} {self.kind:15} {self.victim} of {self.nodes}+{self.spares} +{self.delay:.1f} s{cut}"


def plan(seed: int, number: int, kinds: Sequence[str] = ()) -> list[Round]:
    """Every kind equally often; a round depends on the seed, its number and its kind alone."""
    names = list(kinds or KINDS)
    return [_round(seed, index, names[index % len(names)]) for index in range(number)]


def _round(seed: int, number: int, kind: str) -> Round:
    choose = random.Random(f"{seed} {number} {kind}")
    hosts = HOSTS if kind in CUTS else HOSTS[:3]
    nodes = choose.choice([2, 3]) if kind in CUTS else 3 if kind == "elastic" else 2
    plain = Round(
        number,
        kind,
        hosts,
        nodes,
        victim=choose.choice(hosts[:nodes]),
        delay=round(choose.uniform(0.0, 6.0), 1),
        alone=choose.random() < 0.5,
        finish=choose.random() < 0.5,
    )
    return KINDS[kind](choose, plain)


# -- lost hosts ---------------------------------------------------------------------------------------------------


def _power(choose: random.Random, one: Round) -> Round:
    victim = HOSTS[0] if one.kind == "power-master" else choose.choice(HOSTS[1 : one.nodes])
    return replace(one, victim=victim, alone=True, accused=frozenset({victim}))


def _elastic(choose: random.Random, one: Round) -> Round:
    """Without a spare."""
    return replace(one, least=2, alone=True, accused=frozenset({one.victim}))


# -- cut networks -------------------------------------------------------------------------------------------------


def _halves(choose: random.Random, one: Round) -> Round:
    side = frozenset(choose.sample(one.hosts, choose.randint(1, len(one.hosts) - 1)))
    rest = frozenset(one.hosts) - side
    smaller = min(side, rest, key=len)
    accused = frozenset(one.hosts) if len(side) == len(rest) else smaller
    return _cut(choose, one, _between(side, rest), accused)


def _one_way(choose: random.Random, one: Round) -> Round:
    victim = choose.choice(one.hosts)
    drops = frozenset((victim, other) for other in one.hosts if other != victim)
    return _cut(choose, replace(one, victim=victim), drops, frozenset({victim}))


def _pair(choose: random.Random, one: Round) -> Round:
    two = frozenset(choose.sample(one.hosts[: one.nodes], 2))
    return _cut(choose, one, _between(two, two), two)


def _first_alone(choose: random.Random, one: Round) -> Round:
    first = frozenset(one.hosts[:1])
    return _cut(choose, replace(one, victim=one.hosts[0]), _between(first, frozenset(one.hosts) - first), first)


def _dead_link(choose: random.Random, one: Round) -> Round:
    """There is a spare for either of the two."""
    return replace(_pair(choose, one), seconds=None, fate=STAYS)


def _cut(choose: random.Random, one: Round, drops: Drops, accused: frozenset[str]) -> Round:
    seconds = round(choose.uniform(5.0, 40.0), 1)
    return replace(one, fate=EITHER, drops=drops, seconds=seconds, accused=accused)


def _between(side: frozenset[str], rest: frozenset[str]) -> Drops:
    both = [(a, b) for a in side for b in rest if a != b]
    return frozenset([*both, *((b, a) for a, b in both)])


# -- the script, and the resource that runs short ----------------------------------------------------------------------


def _script(choose: random.Random, one: Round) -> Round:
    return one


def _again(choose: random.Random, one: Round) -> Round:
    return replace(one, fate=ENDS)


def _no_space(choose: random.Random, one: Round) -> Round:
    """For the checkpoints, or for outputs and records, of the host that saves: its next save fails."""
    return replace(one, victim=one.hosts[0], fate=EITHER, place=choose.choice(["checkpoints", "runs"]))


CUTS = ("halves", "one-way", "pair", "first-alone", "dead-link")
KINDS: dict[str, Callable[[random.Random, Round], Round]] = {
    "power-worker": _power,
    "power-master": _power,
    "elastic": _elastic,
    "halves": _halves,
    "one-way": _one_way,
    "pair": _pair,
    "first-alone": _first_alone,
    "dead-link": _dead_link,
    "exception": _script,
    "exception-again": _again,
    "kill-rank": _script,
    "oom": _script,
    "no-space": _no_space,
}
