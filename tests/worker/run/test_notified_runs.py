"""Runs that notify at their end, however they end: once, after the record is written, and without delaying a kill."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.record.paths import RunPaths
from ddpctl_worker.run.notifying import at_end
from tests.worker.conftest import MakeNode
from tests.worker.deadlines import shorten
from tests.worker.node import Node, eventually, processes_of
from tests.worker.programs import SLEEP, here, watchers_end

TALLY = 'cat >> "$TALLY"; echo >> "$TALLY"; ls "$DDPCTL_RUN_DIR" >> "$TALLY.files"'


@pytest.fixture
def tally(tmp_path: Path) -> Path:
    return tmp_path / "tally"


def start(node: Node, tally: Path, script: str, **record: Any) -> str:
    node.env["MARK"] = str(node.base)  # processes_of() finds every process of this start by it
    made = node.record(timeouts={"start": 60, "stop": 1, "silence": None}, **record)
    notify = [{"command": ["sh", "-c", TALLY]}]
    return node.start(script, made, notify=notify, secrets={"TALLY": str(tally)})


def said(tally: Path) -> dict[str, Any]:
    """Return the notification once the notifier has ended. Two notifications would not parse as JSON."""
    eventually(lambda: tally.exists() and tally.read_text().endswith("\n"), "somebody is notified")
    eventually(lambda: not processes_of(str(tally)), "the notifier ends")
    found: dict[str, Any] = json.loads(tally.read_text())
    assert "exit.json" in tally.with_name("tally.files").read_text().split()
    return found


def silent(node: Node, run: str, tally: Path) -> None:
    """Check that guardian and supervisor are gone, and that no notifier has run or will run."""
    watchers_end(node, run)
    assert not processes_of(str(node.base))
    assert not tally.exists()
    assert not list(node.folder(run).glob("notified-*"))


def test_a_success(node: Node, tally: Path) -> None:
    run = start(node, tally, "print('fine')")
    found = said(tally)
    assert (found["event"], found["state"], found["cause"], found["run"]) == ("ended", "succeeded", None, run)
    assert found["started"] < found["ended"]


def test_a_failure_is_in_the_logs_that_fetch_brings(node: Node, tally: Path) -> None:
    fail = "import os, time; time.sleep(300 * int(os.environ['RANK'])); raise ValueError('no data')"
    run = start(node, tally, fail)  # a single rank fails: the launcher may end another rank while that rank exits
    found = said(tally)
    assert (found["state"], found["cause"]["reason"]) == ("failed", "exited")
    assert "ValueError: no data" in found["text"]
    log = node.folder(run) / "notify.log"
    eventually(lambda: log.exists() and log.stat().st_size, "it is logged")
    files, _ = node.files(run)
    assert b" ended: command sh: exit code 0 (" in files["record/notify.log"]
    assert b" notify: command sh: exit code 0 (" in files["record/supervisor.log"]


def test_a_kill_waits_for_no_notifier_and_finds_none(node: Node, tally: Path) -> None:
    shorten(node, "run/limits.py", NOTIFIERS_S=600.0)  # the notifier waits for as long as this test looks
    notify = [{"command": ["sh", "-c", TALLY + "; exec sleep 300"]}]
    run = node.start(SLEEP, notify=notify, secrets={"TALLY": str(tally)})
    here(node, run)
    answer = node.call("stop", run=run, grace=1, by="bob")
    assert (answer["status"]["state"], answer["survivors"]) == ("killed", [])
    eventually(lambda: set(processes_of(run)) <= set(processes_of(str(tally))), "guardian and supervisor end")
    waits = "sleep 300 "  # the earlier commands of the notifier have ended
    eventually(lambda: waits in processes_of(str(tally)).values(), "somebody is notified, and the notifier waits")
    notifiers = set(processes_of(str(tally)))
    again = node.call("stop", run=run, grace=0, by="bob")
    assert (again["signalled"], again["survivors"]) == (0, [])
    assert notifiers <= set(processes_of(str(tally)))
    assert json.loads(tally.read_text())["cause"]["message"] == "killed by bob"
    for pid in processes_of(str(tally)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    # The process that waits for the notifiers ends with them.
    eventually(lambda: not processes_of(run), "nothing of it is left")


def test_the_supervisor_is_killed_the_guardian_notifies(node: Node, tally: Path) -> None:
    run = start(node, tally, SLEEP)
    here(node, run)
    os.kill(node.pid(run, "supervisor"), signal.SIGKILL)
    assert said(tally)["cause"]["reason"] == "supervisor_lost"


def test_the_guardian_is_killed_the_standby_notifies(node: Node, tally: Path) -> None:
    run = start(node, tally, SLEEP)
    here(node, run)
    os.kill(node.pid(run, "guardian"), signal.SIGKILL)
    eventually(lambda: "ddpctl_worker.run.cleanup" in str(processes_of(str(node.base))), "the standby")
    node.call("stop", run=run, grace=1, by="bob")
    assert said(tally)["state"] == "killed"


def test_another_node_rank_does_not(make_node: MakeNode, tally: Path) -> None:
    node = make_node("node1")
    run = start(node, tally, "print('fine')", node_rank=1, hosts=["node0", "node1"], nnodes=2)
    node.wait_state(run)
    silent(node, run, tally)


def test_a_job_without_notifiers_starts_no_process(node: Node, tally: Path) -> None:
    node.env["MARK"] = str(node.base)
    run = node.start("print('fine')")
    node.wait_state(run)
    silent(node, run, tally)


def test_a_run_whose_folder_is_gone_notifies_nobody(tmp_path: Path, tally: Path) -> None:
    how: Any = {"to": [{"command": ["touch", str(tally)]}], "env": {}, "cwd": "/", "umask": 0o22}
    at_end(RunPaths(str(tmp_path / "r-1" / "node0")), how)
    assert not processes_of(str(tally))
    assert not tally.exists()
