"""What was seen of a round, and what is wrong with it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.restarts.plan import CARRIES, ENDS, STAYS, Round
from tests.restarts.train import Steps

NEAR = 1e-6
Attempts = Mapping[int, Mapping[str, Steps]]  # attempt -> host, from 0


@dataclass
class Facts:
    """Times are monotonic seconds."""

    round: Round
    fault_at: float = 0.0
    attempts: Attempts = field(default_factory=dict)
    complete: Mapping[str, int] = field(default_factory=dict)  # host -> the last complete step it had at the fault
    begun: Mapping[int, float] = field(default_factory=dict)  # when a rank of the attempt was first seen
    twice: Sequence[Mapping[str, set[int]]] = ()  # attempts that lived on the hosts at the same moment
    told: Mapping[str, Any] = field(default_factory=dict)  # the output of `status` after the fault
    ended: bool = False  # by itself, before it was finished or killed
    left: Sequence[str] = ()
    trouble: list[str] = field(default_factory=list)  # the error that kept the round from its end

    @property
    def before(self) -> int:
        """The attempt that the fault hit."""
        begun = [number for number, first in first_steps(self.attempts).items() if first < self.fault_at]
        return max(begun, default=0)

    @property
    def seconds(self) -> float | None:
        """From the fault to the first step of the next attempt."""
        later = [first for number, first in first_steps(self.attempts).items() if number > self.before]
        return min(later) - self.fault_at if later else None

    @property
    def born(self) -> float | None:
        """From the fault to the first rank of the next attempt; the rest is torch's own start."""
        later = [first for number, first in self.begun.items() if number > self.before]
        return min(later) - self.fault_at if later else None


def first_steps(attempts: Attempts) -> dict[int, float]:
    found = {number: [one.rows[0][2] for one in hosts.values() if one.rows] for number, hosts in attempts.items()}
    return {number: min(times) for number, times in found.items() if times}


def findings(facts: Facts, right: Mapping[int, float]) -> list[str]:
    """``right``: the loss of every step of a training that nothing happened to."""
    found = [*facts.trouble, *_at_once(facts), *_losses(facts.attempts, right), *_lost(facts), *_fate(facts)]
    return [*found, *_convicted(facts), *(f"still there: {one}" for one in facts.left)]


def _at_once(facts: Facts) -> Iterator[str]:
    if facts.twice:
        yield f"two attempts at once: {list(facts.twice[:2])}"
    ends = {n: max(one.rows[-1][2] for one in hosts.values() if one.rows) for n, hosts in _stepped(facts.attempts)}
    begins = first_steps(facts.attempts)
    for number, begin in begins.items():
        late = [other for other, end in ends.items() if other < number and end > begin]
        if late:
            yield f"attempt {late[0]} still made steps after the first one of attempt {number}"


def _stepped(attempts: Attempts) -> list[tuple[int, Mapping[str, Steps]]]:
    return [(number, hosts) for number, hosts in attempts.items() if any(one.rows for one in hosts.values())]


def _losses(attempts: Attempts, right: Mapping[int, float]) -> Iterator[str]:
    for number, hosts in attempts.items():
        resumed = {host: one.resumed for host, one in hosts.items() if one.resumed is not None}
        if len(set(resumed.values())) > 1:
            yield f"attempt {number} resumed from different steps: {resumed}"
        for host, one in hosts.items():
            if one.rows and [step for step, _, _ in one.rows] != _counted(one):
                yield f"attempt {number} on {host} left steps out: resumed {one.resumed}, then {one.rows[0][0]} ..."
            off = [(step, loss) for step, loss, _ in one.rows if abs(loss - right[step]) > NEAR]
            if off:
                step, loss = off[0]
                yield f"attempt {number} on {host}: the loss of step {step} is {loss}, uninterrupted {right[step]}"


def _counted(one: Steps) -> list[int]:
    first = (one.resumed or 0) + 1
    return list(range(first, first + len(one.rows)))


def _lost(facts: Facts) -> Iterator[str]:
    """The next attempt resumes from a checkpoint that one of its hosts knew to be complete at the fault, or from a
    later checkpoint.
    """
    for number in sorted(number for number in facts.attempts if number > facts.before)[:1]:
        hosts = facts.attempts[number]
        best = max((step for host, step in facts.complete.items() if host in hosts), default=0)
        resumed = min((one.resumed for one in hosts.values() if one.resumed is not None), default=None)
        if resumed is not None and resumed < best:
            yield f"attempt {number} resumed from step {resumed}, and step {best} was complete: {dict(facts.complete)}"


def _fate(facts: Facts) -> Iterator[str]:
    state, cause = facts.told.get("state"), facts.told.get("cause") or {}
    if not facts.told:
        return
    if facts.ended and (state != "failed" or not cause.get("message")):
        yield f"it ended as {state}, with the cause {cause}"
    if (facts.round.fate == CARRIES and facts.seconds is None) or (
        facts.round.fate in (CARRIES, STAYS) and facts.ended
    ):
        yield f"no later attempt carries it on: {state}, {cause.get('message')}"
    if facts.round.fate == ENDS and not (facts.ended and "is broken" in str(cause.get("message"))):
        yield f"it was to end with the script's exception: {state}, {cause.get('message')}"
    if facts.round.least and facts.seconds is not None:
        last = facts.told["attempts"][-1]["hosts"]
        if facts.round.victim in last or len(last) != facts.round.nodes - 1:
            yield f"it continues on {last}"


def _convicted(facts: Facts) -> Iterator[str]:
    for one in facts.told.get("attempts", ()):
        for aside in one["set_aside"]:
            if aside["host"] not in facts.round.accused:
                yield f"attempt {one['attempt']}: {aside['host']} is set aside ({aside['why']}), wrongly"
