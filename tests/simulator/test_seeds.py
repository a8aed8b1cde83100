"""Whatever happens to the hosts of a run, what the agents and the gang promise holds: a few hundred seeds.

``python -m tests.simulator --profile P --seed N -v`` shows the events under a single seed.
"""

from __future__ import annotations

import pytest

from tests.simulator.agents import BOUNDS, PROFILES, SHARP, AgentWorld, Profile
from tests.simulator.gangs import KINDS, GangWorld

SEEDS, GANG_SEEDS = 20, 15 * len(KINDS)  # of each profile; of the gang


def judge(world: AgentWorld | GangWorld, name: str) -> None:
    violations = world.play()
    again = f"python -m tests.simulator --profile {name} --seed {world.seed} -v"
    assert not violations, "\n".join([*world.trace, again])


def test_a_few_seeds() -> None:
    for seed in range(0, len(KINDS), 2):
        judge(GangWorld(seed), "gang")
    judge(AgentWorld(0, SHARP), SHARP.name)


@pytest.mark.slow
@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_agents(profile: Profile) -> None:
    for seed in range(SEEDS):
        judge(AgentWorld(seed, profile), profile.name)


@pytest.mark.slow
def test_a_lease_that_came_while_the_network_was_whole_for_a_moment_counts() -> None:
    judge(AgentWorld(100_480, BOUNDS), BOUNDS.name)


@pytest.mark.slow
def test_gangs() -> None:
    for seed in range(GANG_SEEDS):
        judge(GangWorld(seed), "gang")


@pytest.mark.full(covered_by="tests/simulator/test_seeds.py::test_agents")
@pytest.mark.parametrize("first", range(1000, 1400, 100))
@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_many_seeds_of_agents(profile: Profile, first: int) -> None:
    for seed in range(first, first + 100):
        judge(AgentWorld(seed, profile), profile.name)


@pytest.mark.full(covered_by="tests/simulator/test_seeds.py::test_gangs")
def test_many_seeds_of_gangs() -> None:
    for seed in range(1000, 3000):
        judge(GangWorld(seed), "gang")


@pytest.mark.slow
def test_a_seed_decides_everything() -> None:
    for profile in PROFILES:
        first, second = AgentWorld(3, profile), AgentWorld(3, profile)
        assert first.play() == second.play()
        assert first.trace == second.trace
        assert len(first.trace) > 2
    for seed in range(len(KINDS)):
        one, other = GangWorld(seed), GangWorld(seed)
        assert one.play() == other.play()
        assert one.trace == other.trace
