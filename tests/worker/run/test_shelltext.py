"""A job's ``before``, ``after`` and ``links`` on a node."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.worker.node import Node, eventually, processes_of
from tests.worker.programs import SLEEP, nothing_left

SHOWS = "import os; print(os.environ.get('MODULE'), os.environ.get('OWN'), os.path.exists('marker'), flush=True)"


def record(node: Node, **keys: Any) -> dict[str, Any]:
    return node.record(nproc=1, ranks=[0], **keys)


def output(node: Node, run: str) -> list[str]:
    return [line["text"] for line in node.lines(run)]


@pytest.fixture
def home(node: Node, tmp_path: Path) -> Path:
    """The home folder of the run's account, whose profile changes variables."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / ".profile").write_text("export OWN=profile MODULE=profile\nload() { export MODULE=$1; }\n")
    return folder


def test_before_runs_in_the_launchers_shell_as_after_a_login(node: Node, home: Path) -> None:
    before = 'load "cuda 12"\nexport INNER="$OWN"\ntouch marker\necho before of $DDPCTL_HOST'
    env = {"HOME": str(home), "OWN": "job's\nown"}
    script = SHOWS + "; print(repr(os.environ['INNER']))"
    run = node.start(script, record(node, before=before), env=env)
    assert node.wait_state(run)["state"] == "succeeded"
    assert output(node, run) == ["before of node0", "cuda 12 job's", "own True", '"job\'s\\nown"']
    launcher = node.state(run)["launcher"]
    assert launcher is not None
    nothing_left(node, run)


@pytest.mark.parametrize(("text", "code"), [("echo no module >&2; false; echo never", 1), ("exit 0", 0), ("if", 2)])
def test_before_that_fails_is_the_cause(node: Node, text: str, code: int) -> None:
    run = node.start("print('never')", record(node, before=text))
    status = node.wait_state(run)
    assert (status["state"], status["cause"]["reason"], status["cause"]["rank"]) == ("failed", "spawn_failed", None)
    assert f"`before` ended with exit code {code}" in status["cause"]["message"]
    assert "never" not in output(node, run)
    if "module" in text:
        assert status["cause"]["message"].endswith("last line: no module")


def test_a_stop_during_before_leaves_nothing(node: Node) -> None:
    run = node.start("print('never')", record(node, before="echo begun; sleep 300"))
    eventually(lambda: output(node, run), "before runs")
    node.call("stop", run=run, grace=5, by="somebody")
    assert node.wait_state(run)["state"] == "killed"
    nothing_left(node, run)


@pytest.mark.parametrize(("script", "state"), [("print(1)", "succeeded"), ("raise SystemExit(3)", "failed")])
def test_after_knows_how_the_run_ended(node: Node, script: str, state: str) -> None:
    after = 'echo "after: $DDPCTL_STATE $OWN $RANK"\nsleep 300 &'
    run = node.start(script, record(node, after=after), env={"OWN": "own"})
    assert node.wait_state(run)["state"] == state
    assert f"after: {state} own " in output(node, run)
    nothing_left(node, run)  # the program in the background has ended, too


def test_after_runs_when_a_run_was_killed(node: Node) -> None:
    run = node.start(SLEEP, record(node, after='echo "after: $DDPCTL_STATE"'))
    eventually(lambda: output(node, run) == ["here"], "the rank runs")
    node.call("stop", run=run, grace=60, by="somebody")
    assert node.wait_state(run)["state"] == "killed"
    assert output(node, run)[-1] == "after: killed"


def test_a_kill_waits_for_after_as_long_as_for_the_ranks(node: Node) -> None:
    run = node.start(SLEEP, record(node, after="sleep 300", timeouts={"stop": 1}))
    eventually(lambda: output(node, run) == ["here"], "the rank runs")
    node.call("stop", run=run, by="somebody")
    assert node.wait_state(run)["state"] == "killed"
    assert "ddpctl: `after` did not end within 1 s" in output(node, run)
    nothing_left(node, run)


def test_after_that_fails_fails_the_run(node: Node) -> None:
    run = node.start("print(1)", record(node, after="false\necho never"))
    status = node.wait_state(run)
    assert (status["state"], status["cause"]["reason"], status["exit_code"]) == ("failed", "exited", 0)
    assert status["cause"]["message"] == "`after` exited with code 1"
    assert set(output(node, run)) == {"1", "ddpctl: `after` exited with code 1"}


def test_after_has_a_deadline(node: Node) -> None:
    run = node.start("print(1)", record(node, after="sleep 300", timeouts={"after": 0.5}))
    assert node.wait_state(run)["cause"]["message"] == "`after` did not end within 0.5 s"
    nothing_left(node, run)


@pytest.mark.parametrize(
    ("script", "reason"),
    [("print(1)", "supervisor_lost"), ("raise SystemExit(3)", "exited")],
    ids=["success", "failure"],
)
def test_after_without_a_supervisor_is_cut_short(node: Node, script: str, reason: str) -> None:
    run = node.start(script, record(node, after="echo begun; sleep 300"))
    eventually(lambda: "begun" in output(node, run), "after runs")
    os.kill(node.pid(run, "supervisor"), signal.SIGKILL)
    status = node.wait_state(run)
    assert (status["state"], status["cause"]["reason"]) == ("failed", reason)
    assert ("`after` was cut short" in status["cause"]["message"]) == (reason == "supervisor_lost")
    nothing_left(node, run)


def test_a_stop_ends_after(node: Node) -> None:
    run = node.start("print(1)", record(node, after="echo begun; sleep 300"))
    eventually(lambda: "begun" in output(node, run), "after runs")
    node.wait_state(run, "stopping")
    node.call("stop", run=run, grace=5, by="somebody")
    assert node.wait_state(run)["cause"]["message"] == "`after` was ended before it was done"
    nothing_left(node, run)


def test_no_process_of_after_outlives_the_supervisor(node: Node) -> None:
    run = node.start("print(1)", record(node, after="echo begun; sleep 300"))
    eventually(lambda: "begun" in output(node, run), "after runs")
    os.kill(node.pid(run, "supervisor"), signal.SIGKILL)
    node.wait_state(run)
    eventually(lambda: not processes_of(run), "the guardian has ended what was left")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "train.bin").write_text("samples")
    return folder


def test_links_point_to_places_of_the_node(node: Node, data: Path) -> None:
    script = "print(open('data/train.bin').read(), open('sets/deep/train.bin').read())"
    run = node.start(script, record(node, links={"data": str(data), "sets/deep": str(data)}))
    assert node.wait_state(run)["state"] == "succeeded"
    assert output(node, run) == ["samples samples"]


def test_a_link_needs_its_place_and_a_free_name(node: Node, data: Path) -> None:
    lost = node.start("print(1)", record(node, links={"data": "/nowhere/at/all"}))
    assert "/nowhere/at/all is not on this host" in node.wait_state(lost)["cause"]["message"]
    (node.scratch / "taken").write_text("of the code")
    taken = node.start("print(1)", record(node, links={"taken": str(data)}))
    assert "taken is there already" in node.wait_state(taken)["cause"]["message"]
    assert (node.scratch / "taken").read_text() == "of the code"
