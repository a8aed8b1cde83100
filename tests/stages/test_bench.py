"""What a measured run has written, and when the reading of it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, cast

import pytest

from ddpctl.errors import JobFailed
from ddpctl.spec.bench import RunFigures
from ddpctl.spec.status import RunStatus
from ddpctl.stages import bench as stage
from ddpctl.stages.launch import Launch
from ddpctl.stages.status import find_run
from tests.transport.dry import Asked, DryFleet, DryTransport

RUN = "20260101T000000Z-aaaaaa"
STATUS = {"run": RUN, "job": "train", "cluster": "lab", "host": "a", "node_rank": 0, "state": "succeeded"}


def measured(
    monkeypatch: pytest.MonkeyPatch, lines: list[dict[str, float]], *, without_end: bool = False
) -> RunFigures:
    """Measure a run that is over and has written ``lines``; ``without_end``: the host sends them again and again."""

    def metrics(asked: Asked) -> dict[str, Any]:
        new = lines if without_end or not asked.args["offsets"] else []
        return {"ranks": {"0": {"offset": 1, "lines": new}}}

    record = {"project": "exp", "hosts": ["a"]}
    fleet = DryFleet([DryTransport("a", {"status": {"runs": [{**STATUS, "record": record}]}, "metrics": metrics})])

    @contextlib.contextmanager
    def running(*_: Any) -> Iterator[RunStatus]:
        yield find_run(fleet, RUN)

    monkeypatch.setattr(stage, "running", running)
    _, figures = stage.measure(cast(Launch, None), fleet, lambda event: None, seconds=1.0, by="me")
    return figures


def test_the_lines_of_a_run_that_is_over_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(monkeypatch, [{"samples_per_s": 3.0}, {"samples_per_s": 5.0}]) == RunFigures(5.0)


@pytest.mark.parametrize("rate", [0.0, -5.0, 1e-300, 1e300])
def test_a_rate_with_which_nothing_can_be_compared_is_a_failure_of_the_job(
    monkeypatch: pytest.MonkeyPatch, rate: float
) -> None:
    with pytest.raises(JobFailed, match=r"train wrote a mean samples_per_s of ") as failed:
        measured(monkeypatch, [{"samples_per_s": rate}] * 3)
    assert failed.value.hint is not None
    assert "DDPCTL_METRICS" in failed.value.hint


def test_a_host_that_sends_lines_without_end_keeps_nothing_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "BENCH_REST_S", 0.1)
    assert measured(monkeypatch, [{"samples_per_s": 5.0}], without_end=True).samples_per_s == 5.0
