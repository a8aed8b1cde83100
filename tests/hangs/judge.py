"""The observations of a job, and the errors in the doctor's report about it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ddpctl_worker.wire.contract import TERMINAL
from tests.hangs.kinds import KINDS, Alternatives
from tests.hangs.plan import RANKS_PER_HOST, Round
from tests.hangs.programs import marked_lines, program

WATCHER_S = 15.0  # from the moment at which the watcher may speak
DOCTOR_S = 3.0
BUSY = 3  # a rank that uses its core is given three times the stall

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Expected:
    """What is right for a round."""

    suspects: Alternatives  # any of these sets of ranks
    odd: frozenset[int]
    script: str
    lines: frozenset[int]  # where the odd ranks may stand; empty: there is no process to look at
    stall: float  # seconds without progress before the watcher may speak
    ends: bool  # the run ends by itself, so its watcher need not speak

    @staticmethod
    def of(round: Round, script: str, stall: float) -> Expected:
        kind, odd = KINDS[round.kind], frozenset(round.odd)
        return Expected(
            suspects=kind.suspects(odd, round.world),
            odd=odd,
            script=script,
            lines=frozenset() if kind.gone else marked_lines(program(round.frame, kind.parts)),
            stall=stall * (BUSY if kind.busy else 1),
            ends=kind.ends,
        )


@dataclass
class Facts:
    """All that was seen of a hang. Times are seconds since the epoch."""

    round: Round
    expected: Expected
    last_progress: float | None = None  # the end of the last step of any rank
    state: str = ""  # of the run, by `status`
    diagnosis: Document | None = None
    cause: Document | None = None
    doctor: Document | None = None
    doctor_s: float | None = None  # wall time of `ddpctl doctor`
    trouble: list[str] = field(default_factory=list)  # the campaign itself did not work

    @property
    def watcher_s(self) -> float | None:
        """From the moment at which the watcher may speak to its diagnosis; negative where it spoke too early."""
        if self.diagnosis is None or self.last_progress is None:
            return None
        return _seconds(self.diagnosis["time"]) - self.last_progress - self.expected.stall

    @property
    def verdict(self) -> str:
        return str((self.doctor or self.diagnosis or {}).get("verdict") or "")


def findings(facts: Facts) -> list[str]:
    """Everything that is wrong; [] where all is right."""
    if facts.trouble:
        return list(facts.trouble)
    return [*(_end(facts) if facts.expected.ends else _watcher(facts)), *_doctor(facts)]


def _end(facts: Facts) -> Iterator[str]:
    if facts.state not in TERMINAL:
        yield f"run: it did not end by itself, it is {facts.state}"


def _watcher(facts: Facts) -> Iterator[str]:
    seconds = facts.watcher_s
    if facts.diagnosis is None or seconds is None:
        yield "watcher: no diagnosis"
        return
    if seconds > WATCHER_S:
        yield f"watcher: {seconds:.1f} s after it could speak"
    if seconds < -1.0:  # a look may have begun just before the last step ended
        yield f"watcher: {-seconds:.1f} s before it may speak"
    if text := wrong_suspects(facts.diagnosis, facts.expected):
        yield f"watcher: {text}"


def _doctor(facts: Facts) -> Iterator[str]:
    if facts.doctor is None or facts.doctor_s is None:
        yield "doctor: no answer"
        return
    if facts.doctor_s > DOCTOR_S:
        yield f"doctor: took {facts.doctor_s:.1f} s"
    if facts.expected.ends and _blamed(facts.cause) in facts.expected.suspects:
        return  # the cause of the run names the odd rank; the doctor need not name it again
    if text := wrong_suspects(facts.doctor, facts.expected):
        yield f"doctor: {text}"
    yield from (f"doctor: {text}" for text in wrong_lines(facts.doctor, facts.expected))


def _blamed(cause: Document | None) -> frozenset[int]:
    rank = (cause or {}).get("rank")
    return frozenset() if rank is None else frozenset({int(rank)})


def suspects(document: Document) -> frozenset[int]:
    return frozenset(int(one["rank"]) for one in document.get("suspects") or ())


def wrong_suspects(document: Document, expected: Expected) -> str:
    """What is wrong with the named ranks, and with their hosts; empty where nothing is."""
    found = suspects(document)
    if found not in expected.suspects:
        wanted = " or ".join(ranks(one) for one in expected.suspects)
        return f"names {ranks(found)}, not {wanted}"
    away = [one for one in document.get("suspects") or () if one["host"] != host_of(int(one["rank"]))]
    return f"names the wrong host: {away}" if away else ""


def wrong_lines(document: Document, expected: Expected) -> Iterator[str]:
    """Every odd rank whose innermost line is not among the marked lines of the program."""
    if not expected.lines:
        return
    by_rank = {int(one["rank"]): one for one in document.get("ranks") or ()}
    for rank in sorted(expected.odd):
        stack: Sequence[Document] = by_rank.get(rank, {}).get("stack") or ()
        if not stack:
            yield f"no stack of rank {rank}"
            continue
        file, line = str(stack[0].get("file")), stack[0].get("line")
        if file.rpartition("/")[2] != expected.script or line not in expected.lines:
            wanted = " or ".join(map(str, sorted(expected.lines)))
            yield f"rank {rank} is at {file}:{line}, not at {expected.script}:{wanted}"


def host_of(rank: int) -> str:
    return f"node{rank // RANKS_PER_HOST}"


def ranks(found: frozenset[int]) -> str:
    """Return `rank 1`, `ranks 0, 2` or `nobody`."""
    return f"rank{'s' if len(found) > 1 else ''} {', '.join(map(str, sorted(found)))}" if found else "nobody"


@dataclass
class Healthy:
    """All that was seen of a job that only paused."""

    program: str
    state: str = ""
    diagnoses: list[Document] = field(default_factory=list)  # every message that `status` ever showed
    doctors: list[Document] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)


def false_alarms(healthy: Healthy) -> list[str]:
    """Everything that was said against a healthy job, and an end other than success."""
    found = list(healthy.trouble)
    if healthy.state != "succeeded":
        found.append(f"the run ended as {healthy.state or 'nothing'}")
    verdicts = dict.fromkeys(str(one.get("verdict")) for one in healthy.diagnoses)
    found += [f"watcher: {verdict}" for verdict in verdicts]
    named = [one for one in healthy.doctors if one.get("suspects")]
    found += [f"doctor: names {ranks(suspects(one))}: {one.get('verdict')}" for one in named]
    return found


def _seconds(text: str) -> float:
    """An ISO 8601 time as seconds since the epoch."""
    moment = datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    assert math.isfinite(moment)
    return moment
