"""Runs of one job side by side, each under a name of its own, on two local nodes; and how they are removed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.wire.contract import TERMINAL
from tests.e2e.programs import SLEEP
from tests.e2e.site import one_line, until
from tests.lab.command import Ddpctl, Done

QUICK = ("-d", "--skip-preflight")
Say = Callable[..., Done]


@pytest.fixture
def say(ddpctl: Ddpctl, tmp_path: Path, stand_in: str) -> Iterator[Say]:
    """The command with an inventory of two local nodes; whatever still runs at the end is ended."""
    local: dict[str, Any] = {
        "connection": "local",
        "python": stand_in,
        "slots": 1,
        "base_dir": str(tmp_path / "base"),
    }
    path = tmp_path / "work" / "local.yaml"
    path.parent.mkdir()
    (path.parent / "sleep.py").write_text(SLEEP)
    (path.parent / "end.py").write_text("")
    jobs = {"sleep": {"script": "sleep.py", "nodes": 1}, "end": {"script": "end.py", "nodes": 1, "keep_runs": 0}}
    hosts = [{"name": "a", **local}, {"name": "b", **local}]
    path.write_text(json.dumps({"cluster": "here", "hosts": hosts, "jobs": jobs}))

    def run(*args: str) -> Done:
        return ddpctl(*args, inventory=path, timeout=120)

    yield run
    for job in listed(run):
        if job["state"] not in TERMINAL:
            run("kill", job["run"], "--grace", "0").ok()


def listed(say: Say) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = say("ps", "--all", "--json").ok().json()["jobs"]
    return found


def test_runs_side_by_side_under_names_of_their_own(say: Say) -> None:
    first = say("up", "--job", "sleep", "--json", *QUICK).ok().json()["run"]
    second = say("up", "--job", "sleep", "--name", "lr01", "--only", "job", "-d", "--json").ok().json()
    assert second["job"] == "lr01"
    assert {(one["job"], one["run"]) for one in listed(say)} == {("sleep", first), ("lr01", second["run"])}
    taken = say("up", "--job", "sleep", "--name", "lr01", *QUICK)
    assert taken.rc == 2
    assert "ddpctl attach lr01; end it: ddpctl kill lr01; or choose another --name" in one_line(taken)
    ambiguous = say("kill", first[:4])
    assert ambiguous.rc == 2
    assert "2 run ids" in one_line(ambiguous)
    live = say("rm", "lr01")
    assert live.rc == 2
    assert f"ddpctl kill {second['run']}" in one_line(live)
    say("kill", second["run"][:-1]).ok()
    say("rm", "lr01").ok()
    assert [one["run"] for one in listed(say)] == [first]


def test_of_two_that_take_a_name_at_once_one_runs(ddpctl: Ddpctl, say: Say, tmp_path: Path) -> None:
    where = tmp_path / "work" / "local.yaml"
    args = ("up", "--job", "sleep", "--nodes", "2", "--name", "lr01", *QUICK)
    both = [ddpctl.start(*args, inventory=where) for _ in range(2)]
    ends = [one.wait(120) for one in both]
    assert sorted(one.rc for one in ends) == [0, 2], ends
    assert [(one["job"], one["hosts"]) for one in listed(say)] == [("lr01", ["a", "b"])]
    say("status", "lr01").ok()


def test_a_job_keeps_as_many_ended_runs_as_it_says(say: Say) -> None:
    _, last = (say("up", "--job", "end", "--skip-preflight", "--json").ok().json()["run"] for _ in range(2))
    until(lambda: [one["run"] for one in listed(say)] == [last], pause=0.5)
