"""Which ranks are slow: on traces of real jobs, and on simulated traces with many seeds.

``records/slow`` holds arrivals from the flight records of four gloo ranks under torch 2.13, on two cores with other
load, in microseconds since the first arrival. The name of a file says what is slow. In files with "victims" in the
name, a broadcast makes another rank late as well.
"""

from __future__ import annotations

import bisect
import gzip
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpctl_worker.doctor.limits import KEPT_COLLECTIVES, KEPT_STEPS
from ddpctl_worker.doctor.slow import SlowRanks
from ddpctl_worker.doctor.steps import Collectives, period

RECORDS = Path(__file__).parents[1] / "records" / "slow"
REPORT_S = 5.0
START = 1_800_000_000.0
SEEDS = st.integers(0, 2**32)
MAIN = "0"  # the name of the default group

Trace = dict[int, list[tuple[int, float]]]  # rank -> (sequence number, arrival)


def reports(trace: Trace, seed: int = 0, every: float = REPORT_S) -> Iterator[dict[int, dict[str, Any]]]:
    """Yield the reports of the ranks every few seconds; each rank reports at a moment of its own."""
    rng = random.Random(seed)
    begin = min(entries[0][1] for entries in trace.values())
    end = max(entries[-1][1] for entries in trace.values())
    shift, sent = {rank: rng.uniform(0, every / 5) for rank in trace}, dict.fromkeys(trace, 0)
    at = begin
    while at <= end + every:
        at += every
        said = {}
        for rank, entries in trace.items():
            upto = bisect.bisect_left(entries, at + shift[rank], key=lambda one: one[1])
            said[rank] = {MAIN: entries[sent[rank] : upto]}
            sent[rank] = upto
        yield said


def named(trace: Trace, seed: int = 0, errors: dict[int, float] | None = None) -> set[int]:
    """Return every rank that was named at any time."""
    slow = SlowRanks()
    return {one["rank"] for said in reports(trace, seed) for one in slow.feed(said, errors or {})}


def job(
    seed: int,
    steps: int = 50,
    *,
    delay: float = 0.0,
    slow: Sequence[int] = (),
    where: str = "data",
    jitter: float = 0.02,
    ranks: int = 4,
    step: float = 0.2,
    log: int = 10,
    begin: int = 0,
    pause: tuple[int, float] | None = None,
) -> Trace:
    """Return the trace of a DDP job with a buffer broadcast and three buckets a step.

    Every ``log``-th step has another all_reduce, for the log. ``delay``: seconds that the ranks ``slow`` need longer,
    from step ``begin`` on. ``jitter``: standard deviation of a rank's compute, as a share of its mean. ``pause``:
    (steps, seconds): rank 0 pauses for so many seconds once in so many steps. In the broadcast, rank 1 waits for the
    last rank, as it does in gloo's tree.
    """
    rng, clock, seq = random.Random(seed), [START] * ranks, 0
    trace: Trace = {rank: [] for rank in range(ranks)}

    def enter() -> None:
        nonlocal seq
        seq += 1
        for rank in range(ranks):
            trace[rank].append((seq, clock[rank]))

    def compute(share: float, part: str) -> None:
        for rank in range(ranks):
            clock[rank] += step * share * pace[rank] + (delay if late and rank in slow and where == part else 0.0)

    def wait(waiting: Sequence[int]) -> None:
        top = max(clock)
        for rank in waiting:
            clock[rank] = max(clock[rank], top) + rng.uniform(0, 2e-4)

    for number in range(steps):
        pace = [max(0.2, rng.gauss(1.0, jitter)) for _ in range(ranks)]
        late = number >= begin
        if pause and number % pause[0] == pause[0] - 1:
            clock[0] += pause[1]
        compute(0.1, "data")
        enter()
        wait([1])
        compute(0.3, "forward")
        for bucket in range(3):
            compute(0.2, "backward" if bucket == 1 else "")
            enter()
        wait(range(ranks))
        if number % log == 0:
            enter()
            wait(range(ranks))
    return trace


def load(path: Path) -> tuple[dict[str, Any], Trace]:
    record = json.loads(gzip.decompress(path.read_bytes()))
    traces = enumerate(record["ranks"])
    return record, {rank: [(seq, START + us / 1e6) for seq, us in groups[MAIN]] for rank, groups in traces}


@pytest.mark.parametrize("path", sorted(RECORDS.glob("*.json.gz")), ids=lambda path: path.name.split(".")[0])
def test_real_jobs(path: Path) -> None:
    record, trace = load(path)
    assert named(trace) == ({record["slow"]} if record["slow"] is not None else set())
    if record["slow"] is not None:
        last = START + record["steps_us"][record["from_step"] + 50] / 1e6
        assert named({rank: [one for one in arrivals if one[1] < last] for rank, arrivals in trace.items()})


def test_there_are_real_jobs_of_both_kinds() -> None:
    kinds = [load(path)[0]["slow"] is None for path in RECORDS.glob("*.json.gz")]
    assert kinds.count(True) >= 2
    assert kinds.count(False) >= 3


@settings(derandomize=True, max_examples=25)
@given(seed=SEEDS, rank=st.integers(0, 3), where=st.sampled_from(["data", "forward", "backward"]))
def test_a_tenth_of_a_step_is_named_within_50_steps(seed: int, rank: int, where: str) -> None:
    assert named(job(seed, 50, delay=0.02, slow=[rank], where=where), seed) == {rank}


@settings(derandomize=True, max_examples=15)
@given(seed=SEEDS, rank=st.integers(0, 3), where=st.sampled_from(["data", "forward", "backward"]))
def test_it_is_named_within_50_steps_when_it_begins_later(seed: int, rank: int, where: str) -> None:
    assert named(job(seed, 110, delay=0.02, slow=[rank], where=where, begin=60), seed) == {rank}


@settings(derandomize=True, max_examples=20)
@given(seed=SEEDS, jitter=st.sampled_from([0.0, 0.01, 0.05, 0.1, 0.2]))
def test_balanced_noise_names_nobody(seed: int, jitter: float) -> None:
    assert named(job(seed, 100, jitter=jitter), seed) == set()


@settings(derandomize=True, max_examples=5)
@given(seed=SEEDS, rank=st.integers(0, 3))
def test_strong_noise_hides_a_delay_for_a_while_only(seed: int, rank: int) -> None:
    assert named(job(seed, KEPT_STEPS + 10, delay=0.02, slow=[rank], jitter=0.15), seed) == {rank}


@settings(derandomize=True, max_examples=10)
@given(seed=SEEDS, order=st.permutations(range(4)))
def test_the_number_of_a_rank_does_not_matter(seed: int, order: list[int]) -> None:
    trace = job(seed, 60, delay=0.012, slow=[2], jitter=0.06)
    assert named({order[rank]: trace[rank] for rank in order}) == {order[rank] for rank in named(trace)}


@settings(derandomize=True, max_examples=12)
@given(seed=SEEDS, wrong=st.lists(st.floats(-1.0, 1.0), min_size=4, max_size=4), bound=st.floats(1e-4, 0.1))
def test_a_clock_within_its_stated_error_names_nobody(seed: int, wrong: list[float], bound: float) -> None:
    trace = job(seed, 60)
    shifted = {rank: [(seq, at + wrong[rank] * bound) for seq, at in trace[rank]] for rank in trace}
    assert named(shifted, seed, dict.fromkeys(range(4), bound)) == set()


@settings(derandomize=True, max_examples=10)
@given(seed=SEEDS, wrong=st.lists(st.floats(-1.0, 1.0), min_size=4, max_size=4))
def test_a_small_clock_error_does_not_hide_a_slow_rank(seed: int, wrong: list[float]) -> None:
    trace = job(seed, 60, delay=0.02, slow=[1])
    shifted = {rank: [(seq, at + wrong[rank] * 0.001) for seq, at in trace[rank]] for rank in trace}
    assert named(shifted, seed, dict.fromkeys(range(4), 0.001)) == {1}


def test_the_lag_and_the_share_of_being_last_are_given() -> None:
    slow, said = SlowRanks(), list[dict[str, Any]]()
    for report in reports(job(1, 60, delay=0.02, slow=[3], where="backward")):
        said = slow.feed(report, {}) or said
    assert [one["rank"] for one in said] == [3]
    assert said[0]["lag_ms"] == pytest.approx(20, rel=0.25)
    assert said[0]["last_share"] > 0.9


def test_two_slow_ranks_of_eight_are_both_named() -> None:
    trace = job(3, KEPT_STEPS + 10, delay=0.03, slow=[2, 5], ranks=8)
    assert named(trace) == {2, 5}


def test_of_two_ranks_the_later_one_is_named() -> None:
    assert named(job(4, 50, delay=0.02, slow=[0], ranks=2)) == {0}


def test_a_rank_that_is_no_longer_slow_is_no_longer_named() -> None:
    slow, now = SlowRanks(), list[dict[str, Any]]()
    first = job(5, 200, delay=0.02, slow=[1])
    ends = max(arrivals[-1][1] for arrivals in first.values())
    then = job(6, 60)
    seq = first[0][-1][0]
    for rank, arrivals in then.items():
        first[rank] += [(seq + number, at - START + ends + 0.2) for number, at in arrivals]
    seen = []
    for report in reports(first):
        now = slow.feed(report, {})
        seen.append(bool(now))
    assert any(seen)
    assert now == []


@pytest.mark.parametrize("seed", range(3))
def test_a_checkpoint_now_and_then_does_not_make_a_rank_slow(seed: int) -> None:
    assert named(job(seed, 260, pause=(60, 1.0))) == set()


@pytest.mark.parametrize("seed", range(3))
def test_a_pause_that_costs_a_real_share_again_and_again_does(seed: int) -> None:
    assert named(job(seed, 260, pause=(10, 0.3))) == {0}


def test_a_report_that_comes_late_changes_nothing() -> None:
    trace = job(7, 100, delay=0.02, slow=[2])
    prompt, late = SlowRanks(), SlowRanks()
    held: list[tuple[int, float]] = []
    for number, report in enumerate(reports(trace)):
        expected = prompt.feed(report, {})
        held += report[3][MAIN]
        if number % 2:
            found = late.feed({**report, 3: {MAIN: held}}, {})
            assert [one["rank"] for one in found] == [one["rank"] for one in expected]
            held = []
        else:
            late.feed({rank: report[rank] for rank in (2, 0, 1)}, {})
    assert expected


def test_entries_that_were_overwritten_before_a_report_do_no_harm() -> None:
    trace = job(8, 60, delay=0.02, slow=[2])
    trace[0] = [one for one in trace[0] if not 100 <= one[0] < 110]
    assert named(trace) == {2}


def test_memory_is_bounded_when_a_rank_never_reports_again() -> None:
    trace, collectives = job(9, 400), Collectives()
    collectives.add({rank: {MAIN: arrivals[:10]} for rank, arrivals in trace.items()})
    for report in reports({rank: arrivals[10:] for rank, arrivals in trace.items()}):
        collectives.add({rank: said for rank, said in report.items() if rank != 3})
    (group,) = collectives.groups()
    assert len(group._open) <= KEPT_COLLECTIVES
    assert len(group.steps) <= KEPT_STEPS


def test_a_rank_is_not_blamed_in_one_group_for_waiting_in_another() -> None:
    """Rank 1 waits for rank 2 in the broadcast, and is then late for a collective in a group with rank 0 alone."""
    trace = job(10, 60, delay=0.02, slow=[2], log=1000)
    broadcasts = [0, *range(5, len(trace[0]), 4)]
    pair: Trace = {0: [], 1: []}
    for seq, place in enumerate(broadcasts):
        pair[0].append((seq, trace[0][place][1] + 1e-4))
        pair[1].append((seq, max(trace[rank][place][1] for rank in trace) + 2e-4))
    slow = SlowRanks()
    both = {rank: {MAIN: trace[rank], **({"pair": pair[rank]} if rank in pair else {})} for rank in trace}
    assert [one["rank"] for one in slow.feed(both, {})] == [2]
    alone = SlowRanks()  # the pair alone does not show the wait for rank 2
    assert [one["rank"] for one in alone.feed({rank: {"pair": pair[rank]} for rank in pair}, {})] == [1]


def test_the_period_is_found_despite_additional_collectives_and_pauses() -> None:
    rng = random.Random(1)
    gaps = []
    for step in range(40):
        gaps += [one * rng.uniform(0.8, 1.2) for one in (0.1, 0.0005, 0.06, 0.02, 0.02)]
        gaps += [0.03] if step % 10 == 9 else []
        gaps[-1] += 2.0 if step == 20 else 0.0
    assert period(gaps) == 5
    assert period([0.2] * 40) == 1
    assert period([0.2] * 5) is None
