"""A host whose agent is gone takes part again: real processes, over loopback."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.worker.node import Node, eventually, processes_of
from tests.worker.test_agent import Team, team

__all__ = ["team"]
SECRET = "hush-5f21c9"
# Fails on the host that it is told to fail on, in the second attempt.
BODY = """
print("attempt", attempt, "token", len(os.environ["TOKEN"]), flush=True)
while not (attempt == "1" and os.path.exists(%r + host)):
    time.sleep(0.1)
sys.exit(3)
"""


def begin(three: Team) -> Path:
    flag = three.scratch / "fail"
    three.begin(BODY % str(flag), secrets={"TOKEN": SECRET})
    for name in three.chosen:
        three.wait_said(name, "attempt 0 token")
    return flag


def admitted(node: Node, run: str) -> dict[str, Any]:
    found = node.call("admit", run=run)
    assert found.pop("over") is False
    return found


def agents(run: str, host: str) -> list[int]:
    return [pid for pid, words in processes_of(run).items() if f"ddpctl-agent {host} {run}" in words]


@pytest.mark.timeout(280)
@pytest.mark.parametrize(
    "victim",
    [
        "node0",
        pytest.param(
            "node1",
            marks=pytest.mark.full(
                covered_by="tests/worker/test_rejoin.py::test_a_host_that_is_back_is_used_by_the_next_attempt"
            ),
        ),
    ],
)
def test_a_host_that_is_back_is_used_by_the_next_attempt(team: Any, victim: str) -> None:
    """The leader's and the master's too. Asked twice at once, it has one agent; its secrets are on no disk."""
    three: Team = team(3, 3, least=2)
    flag = begin(three)
    three.lose(victim)
    left = [name for name in three.names if name != victim]
    three.wait_said(left[0], "attempt 1 token")
    given = admitted(three.nodes[left[0]], three.run)
    assert given["secrets"] == {"TOKEN": SECRET}
    both = [three.nodes[victim].open("rejoin", run=three.run, **given) for _ in range(2)]
    assert [one.result()["status"]["state"] for one in both] == ["starting"] * 2
    eventually(lambda: len(agents(three.run, victim)) == 1, "the second agent goes away")
    again = three.nodes[victim].call("rejoin", run=three.run, **given)
    assert again["status"]["state"] == "starting"
    eventually(lambda: three.status(victim)["attempt"] == 2, "it knows of the attempt without it", pause=0.3)
    flag.with_name(flag.name + left[1]).touch()
    for name in three.names:
        three.wait_said(name, f"attempt 2 token {len(SECRET)}")
    assert [one["hosts"] for one in three.attempts(victim)] == [three.names, left, three.names]
    assert not [path for path in three.nodes[victim].base.rglob("*") if path.is_file() and holds(path)]
    for node in three.nodes.values():
        answer = node.call("stop", run=three.run, grace=1, by="me")
        assert (answer["survivors"], answer["status"]["state"]) == ([], "killed")
    eventually(lambda: not processes_of(three.run), "all processes are gone")
    three.nodes[victim].call("rejoin", run=three.run, **given)
    assert not processes_of(three.run)


def holds(path: Path) -> bool:
    return SECRET.encode() in path.read_bytes()


@pytest.mark.timeout(280)
def test_an_agent_that_was_killed_alone(team: Any) -> None:
    """Its ranks live as long as their lease. The new agent comes after them, and their end sets no host aside."""
    three: Team = team(3, 3, least=2)
    begin(three)
    os.kill(three.agent("node1"), signal.SIGKILL)
    end = three.nodes["node1"].folder(three.run) / "attempts" / "1" / "exit.json"
    eventually(end.exists, "its ranks have ended", 60.0)
    assert "ddpctl's agent on node1 has ended" in json.loads(end.read_text())["cause"]["message"]
    three.nodes["node1"].call("rejoin", run=three.run, **admitted(three.nodes["node0"], three.run))
    for name in three.names[::2]:
        three.wait_said(name, "attempt 1 token")
    eventually(lambda: three.status("node1")["attempt"] == 2, "it knows of the next attempt", pause=0.3)
    agreed = three.status("node1")["agreed"]
    assert agreed["aside"] == {}
    assert agreed["attempts"][0]["cause"]["reason"] in ("node_lost", "supervisor_lost")


@pytest.mark.timeout(280)
@pytest.mark.parametrize("file", ["agreed.json", "launch.json", "run.json"])
def test_without_its_record_it_stays_out(team: Any, file: str) -> None:
    three: Team = team(3, 2)
    begin(three)
    three.lose("node2")
    (three.nodes["node2"].folder(three.run) / file).unlink()
    given = admitted(three.nodes["node0"], three.run)
    refused = three.nodes["node2"].open("rejoin", run=three.run, **given).last()["error"]
    assert refused["kind"] == ("no_such_run" if file == "run.json" else "corrupt"), refused
    assert file == "run.json" or f"{file} is missing" in refused["message"]
    assert not agents(three.run, "node2")
    assert three.status("node0")["state"] == "running"


@pytest.mark.timeout(280)
def test_a_kill_while_the_agent_was_away_stands(team: Any) -> None:
    three: Team = team(3, 2)
    begin(three)
    given = admitted(three.nodes["node0"], three.run)
    three.lose("node1")
    assert three.nodes["node1"].call("stop", run=three.run, grace=1, by="me")["survivors"] == []
    status = three.nodes["node1"].call("rejoin", run=three.run, **given)["status"]
    assert status["state"] in ("lost", "killed")
    assert not agents(three.run, "node1")
    assert three.nodes["node0"].open("admit", run="another").last()["error"]["kind"] == "no_such_run"
