"""What was seen of a round, and which promises it breaks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddpctl_worker.wire.contract import KILLED, SUCCEEDED, TERMINAL
from tests.chaos.fault import Fate, Fault
from tests.chaos.plan import KILL, STARTING, TRAINING, Round
from tests.chaos.sight import RECORDS, document
from tests.restarts import judge as restarts

OWN_CODE = "orchestrator/ddpctl/"  # in a traceback that is ddpctl's own, and not that of a rank
STOP_S = 60.0  # from a fault that must end the run to the end of all ranks that can be reached


@dataclass(frozen=True)
class Command:
    """A ddpctl that was run, and its expected result. ``rc`` is None where it did not end in time."""

    words: str
    rc: int | None
    seconds: float
    deadline: float
    codes: frozenset[int]
    stderr: str = ""


@dataclass(frozen=True)
class Part:
    """One host's part of one run, as its files tell at the very end of the round."""

    records: Mapping[str, bytes | None]  # by name: run.json, state.json, exit.json
    exits: Sequence[bytes] = ()  # every content of exit.json that was ever seen
    launchers: int = 1  # how many there have been

    @property
    def end(self) -> Mapping[str, Any]:
        return document(self.records.get("exit.json"))

    @property
    def state(self) -> str:
        return str(self.end.get("state"))

    @property
    def cause(self) -> Mapping[str, Any]:
        return self.end.get("cause") or {}


@dataclass
class Facts:
    """All that was seen. Times are seconds since the fault."""

    round: Round
    fault: Fault
    hit: bool = True  # the fault found its target
    acknowledged: bool = False  # `up` had said that every node has confirmed its start
    victim: str = ""
    healthy: Sequence[str] = ()  # hosts that could stop while the fault lasted
    commands: list[Command] = field(default_factory=list)
    parts: dict[str, dict[str, Part]] = field(default_factory=dict)  # run -> host
    left: dict[str, list[str]] = field(default_factory=dict)  # after the end, and after the kill if a kill is due
    detected: float | None = None  # the first healthy host begins to stop
    stopped: float | None = None  # the last rank on healthy hosts is gone
    up_ended: float | None = None
    told: Mapping[str, Any] = field(default_factory=dict)  # the output of `status` at the end
    main: str = ""  # the run that the fault hit
    carried: restarts.Facts | None = None  # of a job with restarts
    right: Mapping[int, float] = field(default_factory=dict)  # the loss of each step of a job with restarts

    @property
    def fate(self) -> Fate:
        return self.fault.fate_at(self.round.moment) if self.hit else Fate.EITHER

    @property
    def missed(self) -> str:
        """The host that a kill could not reach, and said so: it may have ended for a reason of its own before."""
        return self.victim if any(one.words.startswith("kill ") and one.rc == 4 for one in self.commands) else ""

    @property
    def must_end(self) -> bool:
        return self.fate is Fate.ENDS and self.carried is None


def violations(facts: Facts) -> list[str]:
    found = [*_commands(facts), *_left(facts), *_records(facts)]
    if facts.carried is not None:
        return [*found, *_carried(facts, facts.carried)]
    return [*found, *_attempts(facts), *_end(facts), *_cause(facts)]


def _carried(facts: Facts, seen: restarts.Facts) -> Iterator[str]:
    for text in restarts.findings(seen, facts.right):
        yield f"restarts: {text}"
    if not seen.ended and facts.told.get("state") not in (SUCCEEDED, KILLED):
        yield f"end: it was carried on, and then ended as {facts.told.get('state')}: {facts.told.get('cause')}"


def last_line(command: Command) -> str:
    return (command.stderr.strip().splitlines() or [""])[-1]


def _commands(facts: Facts) -> Iterator[str]:
    for one in facts.commands:
        if one.rc is None:
            yield f"hang: `ddpctl {one.words}` did not end within {one.deadline:.0f} s: {last_line(one)}"
        elif one.rc not in one.codes:
            wanted = " or ".join(map(str, sorted(one.codes)))
            yield f"exit code: `ddpctl {one.words}` ended with {one.rc}, not {wanted}: {last_line(one)}"
        elif "Traceback (most recent call last)" in one.stderr and OWN_CODE in one.stderr:
            yield f"traceback: `ddpctl {one.words}` showed one to its user"


def _left(facts: Facts) -> Iterator[str]:
    for host, found in facts.left.items():
        if found:
            yield f"orphans: on {host} there still runs {'; '.join(found)}"


def _records(facts: Facts) -> Iterator[str]:
    """Of an acknowledged run every host keeps every record; what an end says never changes."""
    for run, parts in facts.parts.items():
        for host, part in parts.items():
            if run == facts.main and facts.acknowledged:
                for name in RECORDS:
                    if not document(part.records.get(name)):
                        yield f"record: {name} of {run} on {host} is lost or cannot be read"
            if part.end and part.state not in TERMINAL:
                yield f"record: exit.json of {run} on {host} says {part.state}, which is no end"
            if len(set(part.exits)) > 1:
                states = " then ".join(f"{document(one).get('state')}" for one in part.exits)
                yield f"terminal state: exit.json of {run} on {host} changed: {states}"


def _attempts(facts: Facts) -> Iterator[str]:
    for run, parts in facts.parts.items():
        for host, part in parts.items():
            if part.launchers > 1:
                yield f"second attempt: {part.launchers} launchers of {run} on {host}"


def _end(facts: Facts) -> Iterator[str]:
    if not facts.acknowledged and facts.round.moment != STARTING:
        yield "start: the run did not come up, and nothing had been done to it yet"
    states = {host: part.state for host, part in facts.parts.get(facts.main, {}).items()}
    if facts.must_end:
        if facts.stopped is None:
            yield f"hang: the ranks on {', '.join(facts.healthy)} still ran {STOP_S:.0f} s after the fault"
        wrong = {host: states.get(host) for host in facts.healthy if states.get(host) not in facts.fault.states}
        if wrong:
            yield f"end: {facts.fault.name} must end a run as {' or '.join(sorted(facts.fault.states))}, not {wrong}"
    elif facts.fate is Fate.GOES_ON and facts.acknowledged:
        wanted = {"killed" if facts.round.then == KILL else SUCCEEDED}
        wanted |= {SUCCEEDED} if facts.round.moment != TRAINING else set()  # it may outrun the kill
        found = {state for host, state in states.items() if host != facts.missed}
        if not wanted.issuperset(found):
            yield f"end: {facts.fault.name} must not hurt a run, which was to end as {' or '.join(wanted)}: {states}"
    for one in facts.commands:
        told = facts.acknowledged and one.words.startswith("up ") and one.rc is not None
        if told and (one.rc == 0) != (set(states.values()) == {SUCCEEDED}):
            yield f"exit code: `ddpctl up` ended with {one.rc}, and the run like this: {states}: {last_line(one)}"


def _cause(facts: Facts) -> Iterator[str]:
    """A run that failed names the victim: in the records of the healthy hosts, and in the output of ddpctl."""
    if not facts.fault.blames:
        return
    culprits = facts.fault.ends or (facts.victim,)
    wanted = " or ".join(culprits)
    for host in facts.healthy:
        part = facts.parts.get(facts.main, {}).get(host)
        if (
            part
            and host != facts.missed
            and part.state in ("failed", "lost")
            and part.cause.get("host") not in culprits
        ):
            said = f"{part.cause.get('host')}, not {wanted}: {part.cause.get('message')}"
            yield f"cause: {host} blames {said}"
    cause = facts.told.get("cause") or {}
    if facts.told.get("state") in ("failed", "lost") and cause.get("host") not in culprits:
        yield f"cause: `ddpctl status` blames {cause.get('host')}, not {wanted}: {cause.get('message')}"
