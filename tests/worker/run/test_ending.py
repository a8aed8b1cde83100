"""A node's own view of how a run ends, and a stop that comes before the nodes have agreed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.record.outcome import Outcome
from ddpctl_worker.run.ending import Ending
from ddpctl_worker.run.findings import Findings
from ddpctl_worker.run.limits import SENDER_S
from ddpctl_worker.wire.contract import FAILED, KILLED
from tests.worker.handclock import HandClock

EARLY = outcomes.failed(outcomes.ended_early("node0", 0, "2026-01-02T03:04:05+00:00", 5.0), suspect=True)
RAISED = outcomes.failed(outcomes.cause("node0", "exited", "rank 0 exited with code 1", rank=0, exit_code=1))
VICTIM = RAISED._replace(victim=True)


@pytest.mark.parametrize(
    ("candidate", "state"),
    [(None, KILLED), (VICTIM, KILLED), (EARLY, KILLED), (RAISED, FAILED)],
    ids=["nothing", "victim", "ended early", "failed"],
)
def test_a_stop_ends_what_has_not_failed_by_itself(candidate: Outcome | None, state: str) -> None:
    """A rank that ended with exit code 0 is no failure until a report says that it was too early."""
    told: list[str] = []
    ending = Ending("node0", cast(Findings, None), None, lambda: told.append("told"))
    if candidate is not None:
        ending.propose(candidate)
    ending.obey("ada")
    outcome: Any = ending.outcome
    assert outcome.state == state
    assert told


@pytest.mark.parametrize("message", ["rank 0 was killed by SIGTERM", "SignalException: Process 7 got signal: 15"])
def test_a_death_by_sigterm_waits_for_its_sender(message: str) -> None:
    """systemd signals launcher, ranks and supervisor in any order."""
    signal = "SIGTERM" if "SIGTERM" in message else None
    died = outcomes.failed(outcomes.cause("node0", "signaled", message, rank=0, signal=signal))
    outside = outcomes.failed(outcomes.cause("node0", "session_ended", "the session was ended", signal="SIGTERM"))
    findings = cast(Findings, SimpleNamespace(failure=lambda status: died, find_slow_rank=lambda known: None))
    for sender, expected in ((outside, outside), (None, died)):
        clock = HandClock()
        ending = Ending("node0", findings, None, lambda: None, clock)
        ending.look(256, stopping=False, overdue=lambda: None)
        assert ending.known is None
        if sender is None:
            clock.sleep(SENDER_S)
        else:
            ending.blame(sender)
        ending.look(256, stopping=False, overdue=lambda: None)
        assert ending.known == expected


def test_the_rank_that_the_others_waited_for_comes_before_its_victims() -> None:
    hung = outcomes.failed(outcomes.cause("node0", "exited", "rank 0 on node0 had not come", rank=0), suspect=True)
    asked: list[Outcome | None] = []

    class Nothing:
        def find_slow_rank(self, known: Outcome | None) -> None:
            return None

        def failure(self, status: int | None) -> None:
            return None

    def find(known: Outcome | None) -> Outcome | None:
        asked.append(known)
        return hung

    ending = Ending("node0", cast(Findings, Nothing()), None, lambda: None, hung=find)
    ending.look(None, stopping=False, overdue=lambda: None)
    assert (asked, ending.candidate) == ([], None)  # nothing has failed
    ending.propose(VICTIM)
    ending.look(None, stopping=False, overdue=lambda: None)
    assert asked == [VICTIM]
    assert ending.candidate == hung
