"""The plan is a pure function of its seed."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.catalogue import FAULTS, choices
from tests.chaos.plan import DELAYS_S, RESTARTS, TRAINING, one_round, plan

SEEDS = st.integers(-(2**31), 2**31)
NUMBERS = st.integers(0, 120)


@given(SEEDS, NUMBERS)
def test_the_same_seed_gives_the_same_plan(seed: int, number: int) -> None:
    assert plan(seed, number, choices()) == plan(seed, number, choices())


@given(SEEDS, NUMBERS, NUMBERS)
def test_a_longer_plan_begins_with_the_shorter_and_each_round_stands_alone(seed: int, one: int, other: int) -> None:
    short, long = sorted((one, other))
    rounds = plan(seed, long, choices())
    assert rounds[:short] == plan(seed, short, choices())
    assert all(one_round(seed, round.number, choices()) == round for round in rounds)


@given(SEEDS, NUMBERS)
def test_every_kind_comes_equally_often(seed: int, number: int) -> None:
    counts = Counter(round.fault for round in plan(seed, number, choices()))
    assert max(counts.values(), default=0) - min((counts[name] for name in choices()), default=0) <= 1


@given(SEEDS, NUMBERS)
def test_a_round_is_one_that_its_fault_allows(seed: int, number: int) -> None:
    for round in plan(seed, number, choices()):
        fault = FAULTS[round.fault]
        assert round.moment in fault.moments
        assert round.then in (fault.thens or ("finish",))
        assert round.job in fault.jobs
        assert 0 <= round.delay <= DELAYS_S[round.moment]
        assert 0 <= round.pick <= 1
        assert 0 <= round.victim < 3


def test_a_share_of_the_rounds_in_mid_training_has_restarts() -> None:
    rounds = plan(1, 400, choices())
    with_restarts = [round for round in rounds if round.job == RESTARTS]
    assert len(rounds) / 16 < len(with_restarts) < len(rounds) / 4
    assert {round.moment for round in with_restarts} == {TRAINING}
    assert {round.victim for round in with_restarts} == {0, 1}


def test_another_seed_gives_another_plan() -> None:
    assert plan(1, 40, choices()) != plan(2, 40, choices())


def test_a_plan_of_some_kinds_has_no_others() -> None:
    assert set(choices({"link-cut"})) == {"link-cut"}
