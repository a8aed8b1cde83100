"""Stops that must leave nothing, whatever the ranks do."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from tests.worker.node import Node, Stream, eventually, processes_of
from tests.worker.programs import CHECKPOINT, FORKS, LOADER, RUNAWAYS, SLEEP, STUBBORN, here, nothing_left, watchers_end


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
    answer = node.call("stop", run=run, grace=60)
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
    answer = node.call("stop", run=run, grace=60)
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


@pytest.mark.parametrize("fails", [False, True], ids=["all save", "one fails"])
def test_ranks_save_with_the_workers_of_their_data_loaders(node: Node, fails: bool) -> None:
    """The launcher signals process groups, also when it sees a rank fail: it hears of nothing until the ranks are
    done. No worker and no grandchild is left after that."""
    # As on a node without the store: its launcher is suspended before a rank can fail.
    run = node.start(LOADER.replace("FAILS", str(fails)), node.record(node_rank=int(fails)))
    here(node, run)
    answer = node.call("stop", run=run, grace=60)
    nothing_left(node, run)
    saved = {path.name: path.read_text() for path in (node.folder(run) / "output").iterdir()}
    whole = "." * 20 + "[1]"
    assert saved == ({"0": whole} if fails else {"0": whole, "1": whole})
    assert answer["forced"] == 0
    assert answer["survivors"] == []


GROWS = """
import os, signal, time
def save(number, frame):
    with open(os.path.join(os.environ["DDPCTL_CHECKPOINT_DIR"], "step_" + os.environ["RANK"]), "wb", 0) as file:
        while not os.path.exists(os.path.join(os.environ["DDPCTL_OUTPUT_DIR"], "enough")):
            file.write(b"x" * 1000)
            time.sleep(0.02)
    raise SystemExit(0)
signal.signal(signal.SIGTERM, save)
print("here", flush=True)
time.sleep(300)
"""


def test_a_save_that_takes_long_is_told_and_can_be_given_more_time(node: Node) -> None:
    """Both stops end with the proof, and the save is whole."""
    folder = {"DDPCTL_CHECKPOINT_DIR": "{checkpoint_dir}"}
    run = node.start(GROWS, env=folder, token_env=list(folder))
    here(node, run)
    first = node.open("stop", run=run, grace=90, by="alice")
    told = eventually(lambda: growing(first), "the file that grows", 20)[0]
    assert told["path"].startswith("step_")
    assert told["size"] > 0
    assert 0 <= told["left"] <= 90
    second = node.open("stop", run=run, grace=300, longer=True, by="alice")
    eventually(lambda: any(one["left"] > 100 for one in growing(first)), "the first stop waits longer, too", 30)
    (node.folder(run) / "output" / "enough").touch()
    for one in (first, second):
        assert one.result()["status"]["state"] == "killed"
    nothing_left(node, run)
    assert first.result()["forced"] == 0


def growing(stop: Stream) -> list[dict[str, Any]]:
    return [frame["growing"] for frame in stop.frames if "growing" in frame]
