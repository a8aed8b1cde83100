"""Ranks below torch's elastic agent whose peer's host answers no more."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ddpctl_worker.run.partners import Partners, partners_of
from ddpctl_worker.run.ranks import Roster

RUN: dict[str, Any] = {
    "host": "node0",
    "master_port": 29400,
    "rendezvous": "c10d",
    "hosts": ["node0", "node1"],
    "addresses": {"node0": "127.0.0.1", "node1": "127.0.0.2"},
}
LAUNCHER = """
import os, subprocess, sys
rank = [sys.executable, "-c", "import time; time.sleep(60)"]
subprocess.Popen(rank, env={**os.environ, "RANK": "0", "LOCAL_RANK": "0"})
print("started", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def roster() -> Iterator[Roster]:
    """With one rank, below a launcher."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", LAUNCHER], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = Roster(RUN, lambda fd, on: None)
        deadline = time.monotonic() + 10
        while not found.living():  # the environment of a process can be read a moment after its exec
            assert time.monotonic() < deadline
            time.sleep(0.01)
            found.scan(process.pid)
        yield found
        for one in found.alive():
            os.kill(one.pid, 9)
        process.kill()


def state_of(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def link(silent: bool, seconds: float) -> dict[str, Any]:
    return {"to": "node1", "silent": silent, "for": seconds}


@pytest.mark.slow
def test_they_are_ended_and_the_lost_node_is_named(roster: Roster) -> None:
    partners = Partners(RUN, roster)
    (rank,) = roster.alive()
    partners.hear(link(True, 9.0))
    deadline = time.monotonic() + 10
    while state_of(rank.pid) != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert partners.end(None) is None  # torch's agent starts again
    end = partners.end(256)  # or it gives up
    assert end is not None
    assert end.cause is not None
    assert (end.cause["host"], end.cause["reason"]) == ("node1", "node_lost")


@pytest.mark.slow
@pytest.mark.parametrize(("rendezvous", "seconds", "ends"), [("c10d", 59, False), ("c10d", 60, True)])
def test_the_run_ends_with_the_host_of_its_c10d_store(
    roster: Roster, rendezvous: str, seconds: float, ends: bool
) -> None:
    """Its agents would wait for an answer to their goodbye."""
    partners = Partners({**RUN, "rendezvous": rendezvous, "hosts": ["node1", "node0"]}, roster)
    partners.hear(link(True, 9.0))
    partners.hear(link(True, seconds))
    end = partners.end(None)
    assert (end is not None) == ends
    if end is not None:
        assert "node1, which hosts the c10d store" in (end.cause or {})["message"]


@pytest.mark.slow
@pytest.mark.parametrize("found", [link(False, 60.0), link(True, 0.0)])
def test_a_host_that_answers_or_owes_nothing_is_not_lost(roster: Roster, found: dict[str, Any]) -> None:
    partners = Partners(RUN, roster)
    (rank,) = roster.alive()
    partners.hear(found)
    assert partners.end(256) is None
    assert state_of(rank.pid) != "Z"


@pytest.mark.slow
def test_a_run_with_a_gang_needs_none(roster: Roster) -> None:
    assert partners_of({**RUN, "addresses": None}, roster) is None
