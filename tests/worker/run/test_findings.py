"""The evidence of a failure counts once the output has been read, however busy the machine is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ddpctl_worker.record.lines import STDERR
from ddpctl_worker.run.findings import Findings

REPORT = (
    "torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: -9) local_rank: 0 (pid: 77) of binary: x"
)


class Pipes:
    """A drain that is behind: the launcher's last words are still in the pipe."""

    def __init__(self) -> None:
        self.behind = True

    def catch_up(self, timeout: float) -> bool:
        return not self.behind

    def tails(self) -> dict[Any, str]:
        return {(None, STDERR): "" if self.behind else REPORT}

    def tracebacks(self) -> dict[int, float]:
        return {}

    def said(self) -> dict[Any, float]:
        return {}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("ddpctl_worker.run.findings.time.monotonic", lambda: clock.now)
    return clock


def of_rank_1(pipes: Pipes) -> Findings:
    """The launcher has reaped rank 1, so its wait status is unknown."""
    roster = SimpleNamespace(
        deaths={0: SimpleNamespace(status=None, at=1000.0, seen=90.0)},
        numbers=lambda: {0: 1},
        current_ranks=dict,
        dead=list,
        first_failure=lambda: None,
    )
    recorder = SimpleNamespace(error=None, look=lambda: SimpleNamespace(over=True))
    run = {"host": "node1", "rendezvous": "static"}
    return Findings(run, pipes, roster, recorder)  # type: ignore[arg-type]


def test_a_launcher_is_not_judged_before_its_last_words(clock: SimpleNamespace) -> None:
    pipes = Pipes()
    found = of_rank_1(pipes)
    assert found.failure(1 << 8) is None
    pipes.behind = False
    outcome = found.failure(1 << 8)
    assert outcome is not None
    assert outcome.cause is not None
    assert (outcome.cause["rank"], outcome.cause["signal"]) == (1, "SIGKILL")


def test_a_disk_that_hangs_does_not_hide_a_failure(clock: SimpleNamespace) -> None:
    """The reader of the pipes waits for the disk, too."""
    found = of_rank_1(Pipes())
    assert found.failure(1 << 8) is None
    clock.now += 6
    outcome = found.failure(1 << 8)
    assert outcome is not None
    assert outcome.cause is not None
    assert "the launcher exited with code 1" in outcome.cause["message"]
