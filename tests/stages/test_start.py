"""Which nodes are asked to start, and what is said of other runs of the same name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddpctl.errors import HostsFailed, RemoteError, UsageError
from ddpctl.spec.event import Event, Note
from ddpctl.spec.plan import Plan
from ddpctl.stages.start import start
from ddpctl_worker.wire.contract import LIVE
from tests.spec.test_planning import IDENTITY, hosts, plan
from tests.transport.dry import Answer, Asked, DryFleet, DryTransport

LIVE_HERE = RemoteError("run other is live here", kind=LIVE, hint="end it", host="node0")


def launch() -> Plan:
    return replace(plan({"master_port": 29500}, hosts(3, slots=1)), gang_port=29501)


def started(*beside: str) -> Answer:
    def answer(asked: Asked) -> dict[str, Any]:
        who = {"run": IDENTITY.run, "job": "train", "cluster": "lab", "host": asked.host, "node_rank": 0}
        status = {**who, "state": "running", "record": {"project": "exp", "hosts": ["node0", "node1", "node2"]}}
        return {"status": status, "beside": list(beside)}

    return answer


def fleet(first: Answer, *others: Answer) -> DryFleet:
    return DryFleet(DryTransport(f"node{index}", {"start": one}) for index, one in enumerate((first, *others)))


def test_a_name_of_ones_own_is_asked_of_the_first_node_before_the_others() -> None:
    nodes = fleet(LIVE_HERE, started(), started())
    with pytest.raises(UsageError, match="train is live: node0: run other is live here; nothing was started") as caught:
        start(launch(), nodes, lambda event: None, serial=1, alone=True)
    assert "ddpctl attach train; end it: ddpctl kill train; or choose another --name" in (caught.value.hint or "")
    assert [(asked.host, asked.args["alone"]) for asked in nodes.calls] == [("node0", True)]


def test_it_is_refused_by_any_node() -> None:
    nodes = fleet(started(), started(), LIVE_HERE)
    with pytest.raises(UsageError, match="train is live"):
        start(launch(), nodes, lambda event: None, serial=1, alone=True)
    assert len(nodes.calls) == 3


def test_what_else_goes_wrong_is_told_as_ever() -> None:
    with pytest.raises(HostsFailed, match="1 of 3 hosts did not start"):
        start(launch(), fleet(started(), RemoteError("disk full"), started()), lambda event: None, serial=1)


def test_another_run_of_the_name_is_told_once_and_how_to_name_this_one() -> None:
    told: list[Event] = []
    run = start(launch(), fleet(started("run-1"), started("run-1", "run-2"), started()), told.append, serial=1)
    assert run.verdict.state == "running"
    notes = [event for event in told if isinstance(event, Note)]
    assert [note.level for note in notes] == ["warning"]
    assert "train is also live as run-1, run-2," in notes[0].message
    assert "--name NAME" in notes[0].message


@pytest.mark.parametrize(
    ("replicas", "restarts", "expected"),
    [(0, 0, False), (1, 0, True), (0, 2, True)],
    ids=["none", "copies", "restarts"],
)
def test_what_the_hosts_copy_checkpoints_with(replicas: int, restarts: int, expected: bool) -> None:
    """Another attempt begins with checkpoints of other hosts, also in a job that keeps no copies."""
    made = launch()
    made = replace(made, restarts=restarts, checkpoint={**made.checkpoint, "replicas": replicas})
    nodes = fleet(RemoteError("disk full"), started(), started())
    with pytest.raises(HostsFailed):
        start(made, nodes, lambda event: None, serial=1)
    assert [asked.args["copying"] is not None for asked in nodes.calls] == [expected] * 3
