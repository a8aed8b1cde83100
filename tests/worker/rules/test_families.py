"""Processes of a single rank that wait for each other, as in a script that calls mp.spawn."""

from __future__ import annotations

from typing import Any

import pytest

from ddpctl_worker.rules.verdict import diagnose
from tests.worker.looks import C10D, MAIN, TRAIN, Look, look, named, suspects

SPAWN = "/venv/lib/python3.11/site-packages/torch/multiprocessing/spawn.py"
CONNECTION = "/usr/lib/python3.11/multiprocessing/connection.py"
TRACKER = "/usr/lib/python3.11/multiprocessing/resource_tracker.py"
PARENT = [[CONNECTION, 931, "wait"], [SPAWN, 132, "join"], [TRAIN, 44, "run_demo"], MAIN]
HELPER = {
    "pid": 70,
    "state": "sleeping",
    "sleep_s": None,
    "stack": [[TRACKER, 209, "main"], ["<string>", 1, "<module>"]],
}


def child(pid: int, op: str | None, line: int = 12, **more: Any) -> dict[str, Any]:
    inside = [[C10D, 1305, op]] if op else []
    stack = [*inside, [TRAIN, line, "setup" if op else "load"], [SPAWN, 90, "_wrap"]]
    return {"pid": pid, "state": "sleeping", "sleep_s": None, "stack": stack, **more}


def parent(rank: int, *children: dict[str, Any], **more: Any) -> Look:
    return look(rank, stack=PARENT, children=[HELPER, *children], **more)


def test_all_of_them_wait() -> None:
    looks = [parent(0, child(71, "init_process_group"), child(72, "init_process_group"))]
    text = "all 2 processes of rank 0 on node0 wait in init_process_group (train.py:12 in setup)"
    found = diagnose(looks)
    assert (found.verdict, suspects(found), found.stuck) == (text, [], True)
    assert "  its process 71: sleeping" in found.evidence


def test_one_is_elsewhere() -> None:
    looks = [parent(0, child(71, "all_reduce"), child(72, None, 17)), look(1, stack=[MAIN])]
    text = (
        "1 of 2 processes of rank 0 on node0 waits in all_reduce (train.py:12 in setup); "
        "its process 72 is at train.py:17 in load"
    )
    named(looks, text, 0)


def test_they_are_in_different_operations() -> None:
    looks = [parent(0, child(71, "all_reduce"), child(72, "barrier", 20))]
    text = (
        "1 of 2 processes of rank 0 on node0 waits in all_reduce (train.py:12 in setup); "
        "1 of 2 processes of rank 0 on node0 waits in barrier (train.py:20 in setup)"
    )
    named(looks, text, 0)


def test_hosts_are_judged_one_by_one() -> None:
    """It is not known whether the processes of different hosts train together."""
    looks = [
        parent(0, child(71, "all_reduce"), child(72, "all_reduce")),
        parent(2, child(73, None, 17), child(74, None, 17)),
    ]
    found = diagnose(looks)
    assert found.verdict == "all 2 processes of rank 0 on node0 wait in all_reduce (train.py:12 in setup)"
    assert suspects(found) == []


@pytest.mark.parametrize(
    ("more", "odd"),
    [
        ({"below": 60.0}, {}),
        ({"bytes": 1 << 20}, {}),
        ({}, {"sleep_s": 40.0}),
        ({}, {"still": False}),
    ],
)
def test_what_excuses_them(more: dict[str, Any], odd: dict[str, Any]) -> None:
    still = {"still": odd.get("still", True)}
    looks = [parent(0, child(71, "all_reduce", **still), child(72, None, 17, **odd), **more)]
    found = diagnose(looks)
    assert not found.stuck
    assert found.verdict.startswith("nobody is stuck yet: 1 of 2 processes of rank 0 on node0 waits in all_reduce")


def test_one_that_polls_is_not_excused() -> None:
    polls = child(72, None, 17, sleep_s=0.2, polls=True)
    named(
        [parent(0, child(71, "all_reduce"), polls)],
        "1 of 2 processes of rank 0 on node0 waits in all_reduce (train.py:12 in setup); "
        "its process 72 is at train.py:17 in load, where it sleeps and looks again",
        0,
    )


def test_processes_that_could_not_be_looked_at_are_not_said_to_wait_for_nothing() -> None:
    looks = [look(0, stack=PARENT, children=[], unseen=3), look(1, stack=PARENT, children=[], unseen=3)]
    text = (
        "all 2 ranks are at train.py:44 in run_demo, waiting for another process; "
        "6 processes that ranks have started could not be looked at"
    )
    named(looks, text)


def test_a_data_loader_is_no_family() -> None:
    worker = {"pid": 7, "state": "sleeping", "sleep_s": None, "stack": [[TRAIN, 5, "__getitem__"]]}
    assert diagnose([look(0, children=[worker])]).verdict.startswith("nobody waits in a collective: ")
