"""The simulator notices faults of the product within the seeds of ``make test``: each is put in on purpose here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulator.agents import PROFILES, Profile
from tests.simulator.broken import FAULTS, GANG_FAULTS
from tests.simulator.test_seeds import GANG_SEEDS, SEEDS

PROFILE = {profile.name: profile for profile in PROFILES}
# The seed that shows each fault today. Where a change of the product moves that, all seeds of ``make test`` are tried.
SHOWS = {
    "no waiting for quiet": ("sharp", 1),
    "a vote for an older proposal": ("bound", 8),
    "a vote while bound": ("bound", 21),
    "authority without the others": ("sharp", 2),
    "what is not agreed on counts": ("bound", 6),
    "the leader's word to go is not waited for": ("crash", 0),
    "a lease that is ignored": ("sharp", 0),
    "a lease that is not renewed": ("calm", 0),
    "each host chooses its checkpoint": ("crash", 0),
    "reports outlive their term": ("calm", 0),  # it has a story of its own, whatever the profile
    "an end without a majority": ("crash", 1),
}
GANG_SHOWS = {
    "the hub forgets a member": 20,
    "the first word is the cause": 1,
    "its own sleep counts": 12,
    "a member is deaf": 3,
    "a member trusts the hub": 2,
    "a member reports nothing": 17,
}


def seeds(fault: str) -> Iterator[tuple[Profile, int]]:
    name, seed = SHOWS[fault]
    yield PROFILE[name], seed
    yield from (
        (profile, other) for other in range(SEEDS) for profile in PROFILES if (profile.name, other) != (name, seed)
    )


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_agents(fault: str) -> None:
    assert any(FAULTS[fault].play(seed, profile) for profile, seed in seeds(fault))


@pytest.mark.slow
@pytest.mark.parametrize("fault", GANG_FAULTS)
def test_a_fault_of_the_gang(fault: str) -> None:
    assert any(GANG_FAULTS[fault](seed).play() for seed in (GANG_SHOWS[fault], *range(GANG_SEEDS)))
