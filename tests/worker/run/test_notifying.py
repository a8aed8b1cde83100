"""The node that notifies of the end of a run, and its text."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.record.outcome import cause
from ddpctl_worker.run.notifying import message_text, message_variables, notifying_host
from ddpctl_worker.wire import contract

HOSTS = ["node0", "node1", "node2"]
GONE = [contract.NODE_LOST, contract.NODE_REBOOTED, contract.SUPERVISOR_LOST]
REASONS = [*GONE, contract.EXITED, contract.OOM, contract.KILLED_BY_USER, contract.DISK_FULL, contract.SPAWN_FAILED]
RUN: Any = {"job": "train", "run": "r-1", "cluster": "lab", "project": "exp", "host": "node0", "hosts": HOSTS}
ended = st.fixed_dictionaries(
    {
        "event": st.sampled_from(["ended", "restart"]),
        "state": st.sampled_from(sorted(contract.TERMINAL)),
        "attempt": st.integers(1, 1000),
        "cause": st.none()
        | st.builds(
            cause,
            st.sampled_from(HOSTS),
            st.sampled_from(REASONS),
            st.text(),
            rank=st.none() | st.integers(0, 99),
            traceback=st.none() | st.text(),
        ),
    }
)


@pytest.mark.parametrize(
    ("host", "reason", "expected"),
    [
        *(("node0", reason, "node1") for reason in GONE),
        *(("node1", reason, "node0") for reason in GONE),
        ("node0", contract.EXITED, "node0"),
        ("node2", contract.KILLED_BY_USER, "node0"),
    ],
)
def test_the_lowest_node_rank_that_is_not_lost_notifies(host: str, reason: str, expected: str) -> None:
    assert notifying_host(HOSTS, cause(host, reason, "why")) == expected


def test_a_success_has_no_cause() -> None:
    assert notifying_host(HOSTS, None) == "node0"


def test_a_host_alone_notifies_of_its_own_lost_supervisor() -> None:
    assert notifying_host(["node0"], cause("node0", contract.SUPERVISOR_LOST, "why")) == "node0"


@given(st.lists(st.sampled_from(HOSTS), min_size=1, unique=True), ended)
def test_one_of_the_hosts_notifies_whatever_happened(hosts: list[str], event: dict[str, Any]) -> None:
    assert notifying_host(hosts, event["cause"]) in hosts


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"event": "ended", "state": "succeeded", "attempt": 1}, "train succeeded on lab (run r-1)"),
        (
            {"event": "ended", "state": "failed", "attempt": 1, "cause": cause("node1", "exited", "boom", rank=3)},
            "train failed on lab: node1 rank 3: exited: boom (run r-1)",
        ),
        (
            {"event": "restart", "state": "failed", "attempt": 2, "cause": cause("node1", "node_lost", "silent")},
            "train restarts on lab: node1: node_lost: silent (run r-1)",
        ),
        (
            {"event": "cut_off", "state": "starting", "attempt": 2, "cause": cause("node1", "node_lost", "alone")},
            "train waits on lab: node1: node_lost: alone (run r-1)",
        ),
    ],
)
def test_one_sentence_says_it(event: dict[str, Any], text: str) -> None:
    assert message_text(RUN, event)["text"] == text


@given(ended)
def test_the_message_is_json_and_says_all(event: dict[str, Any]) -> None:
    said = json.loads(json.dumps(message_text(RUN, event)))
    assert {name: said[name] for name in RUN} == RUN
    assert {name: said[name] for name in event} == event


@given(ended)
def test_an_environment_can_hold_the_variables(event: dict[str, Any]) -> None:
    found = message_variables(message_text(RUN, event), "/run")
    for name, value in found.items():
        assert name.startswith("DDPCTL_")
        assert b"\0" not in os.fsencode(value)
        assert len(value) <= 4000
    assert contract.ENV_COOKIE not in found  # with it, a kill would take a notifier for a process of the job
    rank = (event["cause"] or {}).get("rank")
    assert found["DDPCTL_CAUSE_RANK"] == ("" if rank is None else str(rank))
