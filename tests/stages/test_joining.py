"""What is said while some nodes have not started their ranks yet."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from ddpctl.spec.event import Event, Note
from ddpctl.spec.outcome import NodeStatus
from ddpctl.spec.status import RunStatus
from ddpctl.stages import joining as stage
from tests.transport.dry import Asked, DryFleet, DryTransport

RUN = "20260101T000000Z-aaaaaa"
HOSTS = ["a", "b", "c"]


@pytest.fixture(autouse=True)
def _quick(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(stage, "JOINING_POLL_S", 0.01)


def told(*looks: dict[str, str]) -> list[str]:
    """Return the messages about a run with these states of its hosts, look by look; the last look stays."""
    seen: dict[str, int] = {}

    def answer(asked: Asked) -> dict[str, Any]:
        number = seen[asked.host] = seen.get(asked.host, -1) + 1
        state = looks[min(number, len(looks) - 1)][asked.host]
        names = {"run": RUN, "job": "train", "cluster": "lab", "host": asked.host, "node_rank": HOSTS.index(asked.host)}
        return {
            "runs": [
                {
                    **names,
                    "state": state.lower(),
                    "pid": None if state.isupper() else 7,
                    "record": {"project": "exp", "hosts": HOSTS},
                }
            ]
        }

    said: list[str] = []

    def tell(event: Event) -> None:
        assert isinstance(event, Note)
        said.append(event.message)

    run = RunStatus("train", RUN, "lab", tuple(NodeStatus(host, rank, "starting") for rank, host in enumerate(HOSTS)))
    before = set(threading.enumerate())
    with stage.wait_for_ranks(
        run, DryFleet(DryTransport(host, {"status": answer}) for host in HOSTS), tell, patience=0.01
    ):
        for thread in set(threading.enumerate()) - before:  # it ends once no rank is waited for
            thread.join(60)
    assert min(seen.values()) >= len(looks) - 1
    return said


def states(*values: str) -> dict[str, str]:
    return dict(zip(HOSTS, values, strict=True))


def test_who_is_waited_for_is_said_once_and_so_is_that_all_have_come() -> None:
    """STARTING: its launcher is not there yet."""
    first = states("starting", "STARTING", "PENDING")
    one, all_started = states("running", "starting", "starting"), states("running", "running", "running")
    assert told(first, first, states("starting", "starting", "starting"), one, all_started) == [
        "launchers run on 1 of 3 nodes; waiting for b,c",
        "launchers run on every node and wait for each other: no rank has started yet",
        "ranks run on 1 of 3 nodes; waiting for b,c",
        "ranks run on every node",
    ]


def test_a_start_that_is_quick_needs_no_words() -> None:
    assert told(states("running", "running", "running")) == []


@pytest.mark.parametrize("end", ["failed", "killed", "succeeded"])
def test_a_run_of_which_a_part_is_over_is_not_waited_for(end: str) -> None:
    assert told(states("running", "starting", end)) == []
