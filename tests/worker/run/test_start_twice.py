"""One run is started once, however often and however rudely it is asked for."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddpctl_worker.machine import fs
from ddpctl_worker.record.paths import RunPaths
from ddpctl_worker.run import start
from ddpctl_worker.wire.contract import STARTING
from tests.worker.node import Node, eventually, processes_of
from tests.worker.programs import SLEEP, here, nothing_left


def test_start_is_idempotent(node: Node) -> None:
    request = node.request(SLEEP)
    run = request["run"]["run"]
    node.started.append(run)
    first = node.call("start", **request)["status"]
    second = node.call("start", **request)["status"]
    assert first["pid"] == second["pid"]
    here(node, run)
    assert len([words for words in processes_of(run).values() if "launcher.py" in words]) == 1


def test_a_start_that_waits_for_another_names_its_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the other start writes its state right after the status was read."""
    paths = RunPaths(str(tmp_path / "run" / "node0"))
    Path(paths.node).mkdir(parents=True)
    fs.write_json(paths.state, {"state": STARTING})

    def read_status(found: RunPaths) -> dict[str, Any]:
        status = {"state": STARTING, "pid": fs.read_optional(found.state).get("launcher")}
        fs.write_json(found.state, {"state": STARTING, "supervisor": 41, "launcher": 42})
        return status

    monkeypatch.setattr(start, "node_status", read_status)
    channel: Any = SimpleNamespace(closed=threading.Event())
    assert start._standing(paths, channel)["pid"] == 42


def test_starts_that_race_start_once(node: Node) -> None:
    request = node.request(SLEEP)
    run = request["run"]["run"]
    node.started.append(run)
    pids = []
    lock = threading.Lock()

    def start_it() -> None:
        status = node.call("start", **request)["status"]
        with lock:
            pids.append(status["pid"])

    threads = [threading.Thread(target=start_it) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pids) == 6
    assert len(set(pids)) == 1
    here(node, run)
    assert len([words for words in processes_of(run).values() if "launcher.py" in words]) == 1


def test_a_start_that_was_cut_off_is_told_as_such(node: Node) -> None:
    """SIGKILL of the starting worker between its claim and the supervisor, at many points in time."""
    seen = set()
    for pause in (0.0, 0.005, 0.01, 0.02, 0.03, 0.05):
        request = node.request(SLEEP)
        run = request["run"]["run"]
        node.started.append(run)
        stream = node.open("start", **request)
        with contextlib.suppress(AssertionError):
            eventually(lambda run=run: (node.folder(run) / "run.json").exists(), "the claim", 30)  # type: ignore[misc]
        time.sleep(pause)
        stream.process.kill()
        stream.hang_up()
        node.wait_state(run, "running", "failed", "lost", seconds=20)
        state = node.status(run)["state"]
        seen.add(state)
        if state == "failed":
            nothing_left(node, run)
            assert "start it again" in node.status(run)["cause"]["message"]
    assert seen <= {"running", "failed"}
