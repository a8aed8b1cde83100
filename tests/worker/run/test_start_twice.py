"""One run is started once, however often and however rudely it is asked for."""

from __future__ import annotations

import contextlib
import threading
import time

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


def test_starts_that_race_start_once(node: Node) -> None:
    request = node.request(SLEEP)
    run = request["run"]["run"]
    node.started.append(run)
    pids = []
    lock = threading.Lock()

    def start() -> None:
        status = node.call("start", **request)["status"]
        with lock:
            pids.append(status["pid"])

    threads = [threading.Thread(target=start) for _ in range(6)]
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
