"""How far another host's clock is off, from messages that go there and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.machine import clocks
from ddpctl_worker.machine.clocks import Clock, Sample, measure_offset, round_trip
from ddpctl_worker.machine.limits import CLOCK_DRIFT, CLOCK_SAMPLES

START = 1_800_000_000.0  # Unix seconds, where a float resolves 0.24 us
RESOLUTION = 1e-6


def sample(at: float, offset: float, there: float, back: float, answer: float = 0.0) -> Sample:
    """A message sent at ``at`` to a clock that is ``offset`` ahead; ``there`` and ``back``: seconds on the way."""
    received = at + there
    return Sample(at, received + offset, received + offset + answer, received + answer + back)


SECONDS = st.floats(0.0, 0.1)
WAYS = st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=1, max_size=50)


def test_an_offset_with_equal_ways_is_exact_and_the_time_to_answer_does_not_count() -> None:
    offset = measure_offset(sample(START, 2.5, 0.001, 0.001, answer=3.0))
    assert offset.seconds == pytest.approx(2.5, abs=RESOLUTION)
    assert offset.error == pytest.approx(0.001, abs=RESOLUTION)


def test_at_worst_one_way_takes_all_of_the_round_trip() -> None:
    offset = measure_offset(sample(START, 0.0, 0.010, 0.0))
    assert offset.seconds == pytest.approx(0.005, abs=RESOLUTION)
    assert offset.error == pytest.approx(0.005, abs=RESOLUTION)


@given(ways=WAYS, offset=st.floats(-1000.0, 1000.0))
def test_the_true_offset_is_within_the_error(ways: list[tuple[float, float, float]], offset: float) -> None:
    clock = Clock()
    for number, (there, back, answer) in enumerate(ways):
        clock.add(sample(START + number, offset, there + 1e-5, back + 1e-5, answer))
    found = clock.offset(START + len(ways))
    assert found is not None
    assert abs(found.seconds - offset) <= found.error + RESOLUTION
    shortest = min(there + back for there, back, _ in ways[-CLOCK_SAMPLES:]) + 2e-5
    assert found.error <= shortest / 2 + CLOCK_DRIFT * (len(ways) + 1) + RESOLUTION


def test_only_the_last_samples_count() -> None:
    clock = Clock()
    clock.add(sample(START, 0.0, 0.0001, 0.0001))
    for number in range(CLOCK_SAMPLES - 1):
        clock.add(sample(START + number, 0.0, 0.01, 0.01))
    now = START + CLOCK_SAMPLES
    assert (clock.offset(now) or (0, 1))[1] < 0.001
    clock.add(sample(now, 0.0, 0.01, 0.01))
    assert (clock.offset(now) or (0, 0))[1] >= 0.009


def test_the_error_grows_with_the_age_of_the_sample() -> None:
    clock = Clock()
    clock.add(sample(START, 0.0, 0.001, 0.001))
    old = clock.offset(START + 100.002)
    assert old is not None
    assert old.error == pytest.approx(0.001 + 100 * CLOCK_DRIFT, abs=RESOLUTION)


@pytest.mark.parametrize("step", [0.5, -0.5])
def test_a_stepped_clock_drops_the_older_samples(step: float) -> None:
    clock = Clock()
    clock.add(sample(START, 0.0, 0.0001, 0.0001))
    clock.add(sample(START + 1, step, 0.005, 0.008))  # far worse than the first, but the first no longer holds
    found = clock.offset(START + 2)
    assert found is not None
    assert abs(found.seconds - step) <= found.error


def test_a_slow_message_does_not_drop_what_it_does_not_contradict() -> None:
    clock = Clock()
    clock.add(sample(START, 0.0, 0.0001, 0.0001))
    clock.add(sample(START + 1, 0.0, 3.0, 0.0))
    assert (clock.offset(START + 2) or (0, 1))[1] < 0.001


@pytest.mark.parametrize(
    "broken",
    [
        Sample(START, START, START, START - 5.0),  # the hub's clock was set back while it waited
        Sample(START, START, START + 9.0, START + 1.0),  # the member's was set forward before it answered
        Sample(START, START, START - 9.0, START + 1.0),  # or back
    ],
)
def test_a_clock_that_is_stepped_during_a_sample_leaves_nothing_to_rely_on(broken: Sample) -> None:
    clock = Clock()
    clock.add(sample(START - 1, 0.0, 0.0001, 0.0001))
    clock.add(broken)
    assert clock.offset(START + 2) is None
    clock.add(sample(START + 2, 4.0, 0.001, 0.001))
    found = clock.offset(START + 3)
    assert found is not None
    assert found.seconds == pytest.approx(4.0, abs=RESOLUTION)


def test_a_sample_may_come_while_another_thread_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gang's thread adds samples, the doctor's asks."""
    clock = Clock()
    clock.add(sample(START, 1.0, 0.010, 0.010))

    def comes_meanwhile(one: Sample) -> float:
        clock._samples.append(one)
        return round_trip(one)

    monkeypatch.setattr(clocks, "round_trip", comes_meanwhile)
    assert clock.offset(START) is not None
