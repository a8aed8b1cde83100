"""The fault, the victim and the moment of each round. Pure: the same seed gives the same plan, and a longer plan begins
with the shorter plan.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

STARTING, TRAINING, END = "starting", "training", "end"
FINISH, FINISH_FIRST, KILL = "finish", "finish-first", "kill"
THENS = (FINISH, FINISH_FIRST, KILL)
PLAIN, TORCH, RESTARTS = "plain", "torch", "restarts"
TORCH_SHARE = 0.15  # of the rounds that leave the choice: a real DDP job costs seconds more for its imports
TRAINING_NODES = 2  # of a job with restarts; the last host is its spare
RESTARTS_SHARE = 0.6  # of those in mid-training: a real DDP job with restarts and a spare
DELAYS_S = {STARTING: 2.5, TRAINING: 2.0, END: 1.0}  # at most, from the beginning of the moment to the fault


@dataclass(frozen=True)
class Choice:
    """What a plan may choose for a fault."""

    moments: tuple[str, ...]
    thens: tuple[str, ...]
    jobs: tuple[str, ...]


@dataclass(frozen=True)
class Round:
    """A run and its fault."""

    number: int
    fault: str
    victim: int  # index of the host
    moment: str
    delay: float
    job: str
    then: str  # what is done with a run that goes on
    pick: float  # from 0 to 1: what is left for the fault to choose

    def __str__(self) -> str:
        return f"{self.number:4} {self.fault:16} node{self.victim} {self.moment:8} +{self.delay:.1f} s {self.job:5}"


def plan(seed: int, number: int, choices: Mapping[str, Choice], hosts: int = 3) -> list[Round]:
    """Every kind of fault equally often: bags of all kinds, one by one, each in an order of its own."""
    return [one_round(seed, index, choices, hosts) for index in range(number)]


def one_round(seed: int, number: int, choices: Mapping[str, Choice], hosts: int = 3) -> Round:
    bag, place = divmod(number, len(choices))
    fault = _shuffled(sorted(choices), random.Random(f"{seed} bag {bag}"))[place]
    choice = choices[fault]
    dice = random.Random(f"{seed} round {number}")
    moment = dice.choice([*choice.moments, TRAINING] if TRAINING in choice.moments else choice.moments)
    victim, delay = dice.randrange(hosts), round(dice.uniform(0.0, DELAYS_S[moment]), 2)
    job = _job(choice, moment, dice.random())
    return Round(
        number=number,
        fault=fault,
        victim=victim % TRAINING_NODES if job == RESTARTS else victim,
        moment=moment,
        delay=delay,
        job=job,
        then=dice.choice(choice.thens),
        pick=round(dice.random(), 3),
    )


def _job(choice: Choice, moment: str, drawn: float) -> str:
    if RESTARTS in choice.jobs and moment == TRAINING and drawn > 1 - RESTARTS_SHARE:
        return RESTARTS
    if PLAIN not in choice.jobs:
        return choice.jobs[0]
    return TORCH if TORCH in choice.jobs and drawn < TORCH_SHARE else PLAIN


def _shuffled(names: Sequence[str], dice: random.Random) -> list[str]:
    return dice.sample(names, len(names))
