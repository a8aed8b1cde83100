"""The files that the removal of a run deletes on a node, and the files that it never deletes."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.machine import proc
from ddpctl_worker.store.remove import prune
from ddpctl_worker.verbs.gc import Finder
from ddpctl_worker.wire.contract import ENV_COOKIE
from tests.worker.checkpoints import JOB
from tests.worker.conftest import MakeNode
from tests.worker.node import Node, eventually
from tests.worker.programs import SLEEP, here

HOST = "node0"
RUN = "20260101T000000Z-aaaaaa"


def put(base: Path, run: str, *, job: str = "job", host: str = HOST, over: bool = True, **record: Any) -> Path:
    """A run's folder as an earlier start left it."""
    folder = base / "runs" / run / host
    (folder / "output").mkdir(parents=True)
    for path in (base, folder.parent.parent, folder.parent, folder):
        path.chmod(0o700)
    made = {
        "run": run,
        "job": job,
        "cluster": "lab",
        "project": "exp",
        "host": host,
        "node_rank": 0,
        "created": run[:16],
        **record,
    }
    (folder / "run.json").write_text(json.dumps(made))
    (folder / "output" / "model.pt").write_bytes(bytes(1000))
    if over:
        (folder / "exit.json").write_text(json.dumps({"state": "succeeded", "exit_code": 0, "ended": None}))
    return folder


def runs(base: Path) -> list[str]:
    return sorted(path.name for path in (base / "runs").iterdir())


def test_a_run_goes_with_all_its_files_but_the_checkpoints_stay(node: Node) -> None:
    put(node.base, RUN)
    checkpoint = node.base / "checkpoints" / JOB / HOST / "step-1"
    checkpoint.mkdir(parents=True)
    assert node.call("remove", run=RUN) == {"removed": True}
    assert runs(node.base) == []
    assert node.call("remove", run=RUN) == {"removed": False}
    assert node.call("status", job="job")["runs"] == []
    assert checkpoint.is_dir()


def test_the_part_of_another_host_on_the_same_disk_stays(make_node: MakeNode) -> None:
    node, other = make_node(), make_node("node1")
    put(node.base, RUN)
    theirs = put(node.base, RUN, host="node1")
    assert node.call("remove", run=RUN) == {"removed": True}
    assert (theirs / "output" / "model.pt").exists()
    assert other.call("remove", run=RUN) == {"removed": True}
    assert runs(node.base) == []


def test_a_live_run_is_refused(node: Node) -> None:
    run = node.start(SLEEP)
    here(node, run)
    error = node.open("remove", run=run).last()["error"]
    assert (error["kind"], error["hint"]) == ("live", f"end it: ddpctl kill {run}")
    node.wait_state(run, "running")
    node.call("stop", run=run, grace=0)
    assert node.call("remove", run=run) == {"removed": True}


@pytest.mark.parametrize("place", [".", "attempts/1"])
def test_what_outlived_a_run_can_still_be_found_by_its_record(node: Node, place: str) -> None:
    """With restarts every attempt has a cookie of its own, and no process carries that of the run."""
    folder = put(node.base, RUN)
    state = {"boot": proc.boot_id(), "machine": proc.machine(), "cookie": "c" * 32}
    if place != ".":
        (folder / "state.json").write_text(json.dumps({**state, "cookie": "a" * 32}))
        (folder / "attempts" / "2").mkdir(parents=True)
        (folder / place).mkdir()
    (folder / place / "state.json").write_text(json.dumps(state))
    left = subprocess.Popen(["sleep", "600"], env={**os.environ, ENV_COOKIE: "c" * 32})
    try:
        error = node.open("remove", run=RUN).last()["error"]
        assert error["kind"] == "live"
        assert f"pid {left.pid}" in error["message"]
        prune(str(node.base), HOST, JOB, 0)
        assert runs(node.base) == [RUN]
        assert collectable(node.base) == []
    finally:
        left.kill()
        left.wait()
    assert collectable(node.base) == [RUN]
    assert node.call("remove", run=RUN) == {"removed": True}


def collectable(base: Path) -> list[str]:
    """The runs that gc would take."""
    for path in (base / "runs").rglob("*"):
        os.utime(path, (0, 0))
    return [item.name for item in Finder(str(base), HOST, 0.0).items() if item.kind == "run"]


def test_of_the_ended_runs_of_a_name_the_newest_stay(tmp_path: Path) -> None:
    names = [f"2026010{day}T000000Z-aaaaaa" for day in range(1, 6)]
    for name in names:
        put(tmp_path, name)
    put(tmp_path, "20250101T000000Z-live00", over=False)
    put(tmp_path, "20250101T000000Z-others", job="other")
    put(tmp_path, "20250101T000000Z-theirs", host="node1")
    prune(str(tmp_path), HOST, JOB, 2)
    stay = ["20250101T000000Z-live00", "20250101T000000Z-others", "20250101T000000Z-theirs"]
    assert runs(tmp_path) == [*stay, *names[-2:]]
    prune(str(tmp_path), HOST, JOB, 0)
    assert runs(tmp_path) == stay


def test_a_controller_whose_clock_is_late_loses_no_run(tmp_path: Path) -> None:
    early, late = "20260105T000000Z-aaaaaa", "20200101T000000Z-aaaaaa"
    for age, name in ((60, early), (0, late)):
        folder = put(tmp_path, name)
        os.utime(folder / "run.json", (time.time() - age,) * 2)
    prune(str(tmp_path), HOST, JOB, 1)
    assert runs(tmp_path) == [late]


def test_a_start_removes_what_its_job_does_not_keep(node: Node) -> None:
    old = [put(node.base, f"2025010{day}T000000Z-aaaaaa").parent.name for day in (1, 2, 3)]
    run = node.start(SLEEP, node.record(keep_runs=1))
    eventually(lambda: runs(node.base) == sorted([old[-1], run]), "the two oldest runs go")
    here(node, run)
