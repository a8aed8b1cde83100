"""Which program hangs where. Pure: the same seed gives the same plan, and a longer plan begins with the shorter."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.hangs.kinds import KINDS

FIRST_STEP, LAST_STEP = 3, 12
RANKS_PER_HOST = 2


@dataclass(frozen=True)
class Round:
    """One job that hangs."""

    number: int
    kind: str
    frame: str
    world: int
    step: int
    odd: tuple[int, ...]  # ranks

    @property
    def hosts(self) -> int:
        return self.world // RANKS_PER_HOST

    def __str__(self) -> str:
        odd = ",".join(map(str, self.odd))
        return f"{self.number:4} {self.kind:18} {self.frame:4} world {self.world} step {self.step:2} odd {odd:7}"


def plan(seed: int, number: int, kinds: Sequence[str] = ()) -> list[Round]:
    """Every kind equally often: bags of all kinds (or of the named kinds), one by one, each in its own order."""
    return [one_round(seed, index, sorted(kinds or KINDS)) for index in range(number)]


def one_round(seed: int, number: int, kinds: Sequence[str]) -> Round:
    bag, place = divmod(number, len(kinds))
    name = random.Random(f"{seed} bag {bag}").sample(kinds, len(kinds))[place]
    kind, dice = KINDS[name], random.Random(f"{seed} round {number}")
    world = dice.choice(kind.worlds)
    return Round(
        number=number,
        kind=name,
        frame=dice.choice(kind.frames),
        world=world,
        step=dice.randint(FIRST_STEP, LAST_STEP),
        odd=tuple(sorted(dice.sample(range(world), dice.choice(kind.odd)))),
    )
