"""Waiting jobs of three accounts on several hosts, in virtual time: one seed decides everything, crashes included."""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass, field

import pytest

from ddpctl_worker.rules.slots import SlotEntry, choose_slots, list_before

SEEDS = 25  # of the unit tests
LOOK_S = 0.5  # between two looks of a part at its host
LATE_S = 3.0  # at most, until a part knows what another part knows
END_S = 2000.0  # longer than all jobs of a seed one after the other
GONE_S = 20.0  # until the parts of a job give up after a part of it was lost


@dataclass
class Job:
    """A job: the slots that it wants on each of its hosts, and how long it runs. ``since``: its tickets."""

    name: str
    account: str
    want: dict[str, int]
    arrives: float
    lasts: float
    since: dict[str, float] = field(default_factory=dict)
    held: dict[str, tuple[str, ...]] = field(default_factory=dict)
    known: dict[str, set[str]] = field(default_factory=dict)  # host -> the hosts that have their slots, as known there
    started: float | None = None
    ended: float | None = None
    crashed: bool = False
    lost: str | None = None  # the host whose part was lost


class Lines:
    """All hosts and jobs of a seed. ``order``: the hosts, as all jobs claim them."""

    def __init__(self, seed: int, *, one_order: bool) -> None:
        self._one_order = one_order
        self.random = random.Random(seed)
        roll = self.random
        self.slots = {host: [str(n) for n in range(roll.randint(1, 4))] for host in "abcd"[: roll.randint(1, 4)]}
        self.order = roll.sample(sorted(self.slots), len(self.slots))
        self.now, self._count = 0.0, itertools.count()
        self._events: list[tuple[float, int, str, Job, str]] = []
        self.jobs = [self._job(number) for number in range(30)]
        for job in self.jobs:
            for host in job.want:  # the tickets of a job are not made at the same moment
                self._at(job.arrives + roll.uniform(0, 2), "ticket", job, host)
            if roll.random() < 0.2:
                self._at(job.arrives + roll.uniform(0, 60), "crash", job, "")

    def _job(self, number: int) -> Job:
        roll = self.random
        hosts = roll.sample(sorted(self.slots), roll.randint(1, len(self.slots)))
        want = {host: roll.randint(1, len(self.slots[host])) for host in hosts}
        return Job(f"j{number}", f"a{number % 3}", want, roll.uniform(0, 60), roll.uniform(0.1, 20))

    def _at(self, time: float, what: str, job: Job, host: str) -> None:
        heapq.heappush(self._events, (time, next(self._count), what, job, host))

    def play(self) -> None:
        while self._events and self.now < END_S:
            self.now, _, what, job, host = heapq.heappop(self._events)
            if job.ended is None:
                getattr(self, f"_{what}")(job, host)

    def _changed(self, host: str) -> None:
        """All parts that wait at the host look at it within the time between two looks."""
        for job in self.jobs:
            if host in job.since and host not in job.held and job.ended is None:
                self._at(self.now + self.random.uniform(0, LOOK_S), "look", job, host)

    def _ticket(self, job: Job, host: str) -> None:
        if host == job.lost:
            return
        job.since[host] = self.now
        job.known.setdefault(host, set())
        self._look(job, host)

    def _look(self, job: Job, host: str) -> None:
        if host in job.held or host == job.lost:
            return
        entries = [self._entry(each, host) for each in self.jobs if host in each.since and each.ended is None]
        own = next(entry for entry in entries if entry.name == job.name)
        chosen = choose_slots(own, entries)
        if not chosen:
            return
        used = set(itertools.chain(*(entry.held for entry in entries)))
        assert not used & set(chosen), f"{job.name} takes {chosen} on {host}, {used} are in use"
        job.held[host] = chosen
        for other in job.want:
            self._at(self.now + self.random.uniform(0, LATE_S), "hear", job, other)

    def _entry(self, job: Job, host: str) -> SlotEntry:
        order = [each for each in (self.order if self._one_order else job.want) if each in job.want]
        ready = not list_before(host, order, job.known[host])
        pool = tuple(self.slots[host])
        return SlotEntry(
            job.name, job.name, job.account, job.since[host], job.want[host], pool, job.held.get(host, ()), ready
        )

    def _hear(self, job: Job, host: str) -> None:
        """A part learns which parts have their slots; the last one to learn it starts."""
        job.known.setdefault(host, set()).update(job.held)
        if (
            job.started is None
            and job.lost is None
            and len(job.held) == len(job.want)
            and all(len(job.known[each] | {each}) == len(job.want) for each in job.want)
        ):
            job.started = self.now
            self._at(self.now + job.lasts, "end", job, host)
        if host in job.since and host not in job.held:
            self._at(self.now + self.random.uniform(0, LOOK_S), "look", job, host)

    def _end(self, job: Job, host: str) -> None:
        job.ended = self.now
        for each in job.want:
            self._changed(each)

    def _crash(self, job: Job, host: str) -> None:
        """All parts are killed, or one host loses its part at once and the others notice that later."""
        job.crashed = True
        if self.random.random() < 0.5:
            self._end(job, host)
            return
        lost = self.random.choice(sorted(job.want))
        job.lost = lost
        job.held.pop(lost, None)
        job.since.pop(lost, None)
        self._changed(lost)
        self._at(self.now + GONE_S, "end", job, "")


def left_waiting(seed: int, *, one_order: bool = True) -> list[str]:
    """Return the jobs of a seed that never started."""
    lines = Lines(seed, one_order=one_order)
    lines.play()
    left = [job.name for job in lines.jobs if job.started is None and not job.crashed]
    if not left:
        last = max(job.ended or 0.0 for job in lines.jobs)
        work = sum(job.lasts + (GONE_S + 60 if job.crashed else 0) for job in lines.jobs)
        waits = len(lines.jobs) * len(lines.slots) * (LATE_S + 2 * LOOK_S)
        assert last < 62 + work + waits, f"seed {seed}: the last job ended at {last:.0f} s, the work is {work:.0f} s"
    return left


def test_every_job_gets_its_slots_and_no_slot_has_two_holders() -> None:
    assert {seed: left for seed in range(SEEDS) if (left := left_waiting(seed))} == {}


@pytest.mark.full(
    covered_by="tests/worker/rules/test_slots_seeds.py::test_every_job_gets_its_slots_and_no_slot_has_two_holders"
)
@pytest.mark.parametrize("first", range(SEEDS, 1000 + SEEDS, 50))
def test_more_seeds(first: int) -> None:
    assert {seed: left for seed in range(first, first + 50) if (left := left_waiting(seed))} == {}


def test_jobs_that_claim_their_hosts_in_any_order_hold_each_other_up() -> None:
    """The seeds are hard enough to notice it."""
    assert any(left_waiting(seed, one_order=False) for seed in range(SEEDS))
