"""Stops that must leave nothing, whatever the ranks do."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.worker.node import Node, eventually, processes_of
from tests.worker.programs import CHECKPOINT, FORKS, RUNAWAYS, SLEEP, STUBBORN, here, nothing_left, watchers_end


@pytest.mark.parametrize("script", [SLEEP, RUNAWAYS, FORKS, CHECKPOINT], ids=["plain", "runaways", "forks", "saves"])
def test_stop_leaves_nothing(node: Node, script: str) -> None:
    run = node.start(script)
    here(node, run)
    answer = node.call("stop", run=run, grace=5, by="alice@laptop")
    nothing_left(node, run)
    assert answer["survivors"] == []
    assert answer["signalled"] >= 3
    assert answer["status"]["state"] == "killed"
    assert answer["status"]["cause"]["message"] == "killed by alice@laptop"
    watchers_end(node, run)


def test_ranks_hear_sigterm_once_and_may_save(node: Node) -> None:
    run = node.start(CHECKPOINT)
    here(node, run)
    answer = node.call("stop", run=run, grace=5)
    assert answer["forced"] == 0
    output = node.folder(run) / "output"
    assert {path.name: path.read_text() for path in output.iterdir()} == {"0": "saved", "1": "saved"}


def test_stop_forces_what_ignores_sigterm(node: Node) -> None:
    run = node.start(STUBBORN, node.record(timeouts={"start": 60, "stop": 600, "silence": None}))
    here(node, run)
    answer = node.call("stop", run=run, grace=1)
    nothing_left(node, run)
    assert answer["forced"] >= 2
    assert answer["status"]["state"] == "killed"


def test_a_stopped_rank_is_ended_too(node: Node) -> None:
    run = node.start(SLEEP)
    here(node, run)
    for pid, words in processes_of(run).items():
        if "launcher.py" in words or f"{run}-" in words:
            os.kill(pid, signal.SIGSTOP)
    answer = node.call("stop", run=run, grace=1)
    nothing_left(node, run)
    assert answer["survivors"] == []


@pytest.mark.parametrize("stopped", [["launcher"], ["ranks"], ["launcher", "ranks"]], ids="+".join)
def test_who_was_stopped_may_save_all_the_same(node: Node, stopped: list[str]) -> None:
    """SIGTERM waits until a stopped process goes on: without that the grace would pass and SIGKILL come."""
    run = node.start(CHECKPOINT)
    here(node, run)
    launcher = node.pid(run, "launcher")
    ranks = [pid for pid, words in processes_of(run).items() if f"{run}-" in words and pid != launcher]
    for pid in [*([launcher] if "launcher" in stopped else []), *(ranks if "ranks" in stopped else [])]:
        os.kill(pid, signal.SIGSTOP)
    answer = node.call("stop", run=run, grace=30)
    assert answer["forced"] == 0
    assert sorted(path.read_text() for path in (node.folder(run) / "output").iterdir()) == ["saved", "saved"]


def test_stop_twice_is_harmless(node: Node) -> None:
    run = node.start(SLEEP)
    here(node, run)
    node.call("stop", run=run, grace=5, by="first")
    again = node.call("stop", run=run, grace=5, by="second")
    assert (again["signalled"], again["forced"], again["survivors"]) == (0, 0, [])
    assert again["status"]["cause"]["message"] == "killed by first"


def test_stop_at_the_same_time_from_two_places(node: Node) -> None:
    run = node.start(SLEEP)
    here(node, run)
    both = [node.open("stop", run=run, grace=5) for _ in range(2)]
    for one in both:
        assert one.result()["status"]["state"] == "killed"
    nothing_left(node, run)


def test_stop_of_a_finished_run_changes_nothing(node: Node) -> None:
    run = node.start("print('done')")
    assert node.wait_state(run)["state"] == "succeeded"
    assert node.call("stop", run=run)["status"]["state"] == "succeeded"


@pytest.mark.parametrize("pause", [0.0, 0.02, 0.05, 0.1, 0.2])
def test_stop_while_ranks_are_being_spawned(node: Node, pause: float) -> None:
    for _ in range(2):
        run = node.start(SLEEP, node.record(nproc=4, ranks=[0, 1, 2, 3]))
        time.sleep(pause)
        answer = node.call("stop", run=run, grace=2)
        nothing_left(node, run)
        assert answer["survivors"] == []
        assert answer["status"]["state"] == "killed"


def test_stop_while_the_start_is_under_way(node: Node) -> None:
    record = node.record()
    node.started.append(record["run"])
    start = node.open("start", **node.request(SLEEP, record))
    eventually(lambda: (node.folder(record["run"]) / "run.json").exists(), "the claim", 10)
    answer = node.call("stop", run=record["run"], grace=2)
    start.result()
    nothing_left(node, record["run"])
    assert answer["status"]["state"] in ("killed", "failed")
