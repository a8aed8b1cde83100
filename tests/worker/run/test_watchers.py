"""Guardian, supervisor or launcher is killed: the job's processes do not stay, and no stranger is touched."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest

from ddpctl_worker.machine import proc, processes
from ddpctl_worker.run.cleanup import GuardianPipe, ReplacementGuardian, _note
from ddpctl_worker.run.lease import SUPERVISOR, Lease
from ddpctl_worker.run.order import RunOrder
from tests.worker.node import Node, eventually
from tests.worker.programs import RUNAWAYS, SLEEP, STUBBORN, beats, here, noted, nothing_left, watchers_end

HERE = "tests/worker/run/test_watchers.py::"


def rest(value: Any, name: str, test: str) -> Any:
    """For `make test-all` only."""
    return pytest.param(value, id=name, marks=pytest.mark.full(covered_by=test))


@pytest.mark.parametrize(
    "script",
    [
        rest(SLEEP, "plain", HERE + "test_supervisor_killed_guardian_cleans_up"),
        pytest.param(RUNAWAYS, id="runaways"),
        pytest.param(STUBBORN, id="stubborn"),
    ],
)
def test_supervisor_killed_guardian_cleans_up(node: Node, script: str) -> None:
    run = node.start(script, node.record(timeouts={"start": 60, "stop": 1, "silence": None}))
    here(node, run)
    os.kill(node.pid(run, "supervisor"), signal.SIGKILL)
    status = node.wait_state(run)
    nothing_left(node, run)
    assert status["state"] == "lost"
    assert status["cause"]["reason"] == "supervisor_lost"
    watchers_end(node, run)


@pytest.mark.parametrize(
    "pause",
    [0.0, *(rest(pause, str(pause), HERE + "test_supervisor_killed_at_launch") for pause in (0.03, 0.08, 0.15))],
)
def test_supervisor_killed_at_launch(node: Node, pause: float) -> None:
    for _ in range(2):
        run = node.start(SLEEP, node.record(nproc=4, ranks=[0, 1, 2, 3], timeouts={"stop": 1}))
        time.sleep(pause)
        os.kill(node.pid(run, "supervisor"), signal.SIGKILL)
        assert node.wait_state(run)["state"] == "lost"
        watchers_end(node, run)
        nothing_left(node, run)


def test_guardian_killed_the_job_goes_on_and_can_be_stopped(node: Node) -> None:
    run = node.start(RUNAWAYS)
    here(node, run)
    os.kill(node.pid(run, "guardian"), signal.SIGKILL)
    eventually(lambda: standby(node, run), "a standby")
    assert node.status(run)["state"] == "running"
    node.call("stop", run=run, grace=2)
    nothing_left(node, run)
    watchers_end(node, run)


@pytest.mark.full(covered_by=HERE + "test_a_standby_that_dies_at_once_is_replaced")
def test_guardian_then_supervisor_killed_the_standby_cleans_up(node: Node) -> None:
    run = node.start(RUNAWAYS, node.record(timeouts={"stop": 1}))
    here(node, run)
    os.kill(node.pid(run, "guardian"), signal.SIGKILL)
    has_looked(eventually(lambda: standby(node, run), "a standby"))
    os.kill(node.pid(run, "supervisor"), signal.SIGKILL)
    status = node.wait_state(run)
    assert status["cause"]["reason"] == "supervisor_lost"
    nothing_left(node, run)


def standby(node: Node, run: str) -> int | None:
    """The supervisor's child of that name."""
    for pid in proc.children_of(node.pid(run, "supervisor")):
        found = proc.read_stat(pid)
        if found is not None and found.name == "ddpctl-standby" and found.alive:
            return pid
    return None


def has_looked(pid: int) -> None:
    """It looks at the processes of the run once a second. Each time it has slept before, and the kernel counts that."""

    def sleeps() -> int:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches:"))

    begun = sleeps()
    eventually(lambda: sleeps() >= begun + 3, "the standby looks", 60)


def test_a_standby_that_dies_at_once_is_replaced(node: Node) -> None:
    run = node.start(RUNAWAYS, node.record(timeouts={"stop": 1}))
    here(node, run)
    os.kill(node.pid(run, "guardian"), signal.SIGKILL)
    first = eventually(lambda: standby(node, run), "a standby")
    os.kill(first, signal.SIGKILL)
    has_looked(eventually(lambda: {standby(node, run)} - {None, first}, "another standby", 60).pop())
    os.kill(node.pid(run, "supervisor"), signal.SIGKILL)
    assert node.wait_state(run)["cause"]["reason"] == "supervisor_lost"
    nothing_left(node, run)


@pytest.mark.slow
def test_nothing_is_written_to_a_file_that_has_the_number_of_a_dead_standbys_pipe(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    pipe = GuardianPipe(writer)
    replacement = ReplacementGuardian(
        cast(RunOrder, {"top": str(tmp_path), "slots": {"fds": []}}), pipe, Lease(None, SUPERVISOR)
    )
    replacement.take_over()
    (pid,) = replacement.pids()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert replacement.ended(pid)
    logs = [tmp_path / str(number) for number in range(8)]
    with contextlib.ExitStack() as files:
        for log in logs:
            files.enter_context(log.open("wb"))
        pipe.beat()
        pipe.report(recorded=True)
    os.close(reader)
    os.close(writer)
    assert [log.read_bytes() for log in logs] == [b""] * len(logs)


@pytest.mark.slow
def test_what_a_standby_sees_when_the_supervisor_is_gone_is_not_all() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"]) as supervisor:
        who = processes.identify(supervisor.pid)
        assert who is not None
        assert _note("no cookie", who) == set()
        supervisor.kill()
        supervisor.wait()
        assert _note("no cookie", who) is None


BOTH = "test_both_killed_at_once_a_stop_still_ends_everything"


@pytest.mark.parametrize(
    "script",
    [
        rest(SLEEP, "plain", HERE + BOTH),
        rest(STUBBORN, "stubborn", "tests/e2e/test_accidents.py::test_both_killed_at_once"),
        pytest.param(RUNAWAYS, id="runaways"),
    ],
)
def test_both_killed_at_once_a_stop_still_ends_everything(node: Node, script: str) -> None:
    run = node.start(script)
    here(node, run)
    # The last look at the tree is at most a few seconds old; this look finds processes with an empty environment.
    eventually(lambda: noted(node, run), "the tree is noted")
    pids = [node.pid(run, "guardian"), node.pid(run, "supervisor")]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    answer = node.call("stop", run=run, grace=1, by="bob")
    assert answer["survivors"] == []
    assert answer["status"]["state"] in ("killed", "lost")
    nothing_left(node, run)


def test_both_killed_and_nothing_left_is_lost(node: Node) -> None:
    run = node.start(SLEEP)
    here(node, run)
    pids = [node.pid(run, "guardian"), node.pid(run, "supervisor")]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    # The kernel's death signal makes the launcher end its ranks.
    status = node.wait_state(run)
    assert (status["state"], status["cause"]["reason"]) == ("lost", "supervisor_lost")
    nothing_left(node, run)
    assert node.status(run)["state"] == "lost"


def test_launcher_killed_ranks_do_not_stay(node: Node) -> None:
    run = node.start(RUNAWAYS)
    here(node, run)
    os.kill(node.pid(run, "launcher"), signal.SIGKILL)
    status = node.wait_state(run)
    assert status["state"] == "failed"
    assert status["exit_code"] == -9
    assert status["cause"]["signal"] == "SIGKILL"
    nothing_left(node, run)


def test_leftovers_of_a_successful_job_are_ended(node: Node) -> None:
    limits = {"start": 60, "stop": 1, "leftover": 0.5}
    run = node.start(RUNAWAYS.replace("time.sleep(300)\n", ""), node.record(timeouts=limits))
    assert node.wait_state(run)["state"] == "succeeded"
    nothing_left(node, run)
    assert json.loads((node.folder(run) / "exit.json").read_text())["leftover"] == 4
    assert "4 processes that outlived the launcher were killed" in (node.folder(run) / "supervisor.log").read_text()


UPLOAD = """
import os, subprocess, sys
code = "import sys, time; time.sleep(%s); open(sys.argv[1], 'w').write('done')"
out = os.path.join(os.environ["DDPCTL_OUTPUT_DIR"], os.environ["RANK"])
subprocess.Popen([sys.executable, "-c", code, out, sys.argv[0]], start_new_session=True)
print("here", flush=True)
"""


def test_an_upload_that_outlives_a_successful_job_may_finish(node: Node) -> None:
    """Longer than any grace there is from SIGTERM to SIGKILL, and it does not handle SIGTERM at all."""
    run = node.start(UPLOAD % 5, node.record(timeouts={"start": 60, "stop": 1, "leftover": 60}))
    assert node.wait_state(run, seconds=90)["state"] == "succeeded"
    assert [path.read_text() for path in (node.folder(run) / "output").iterdir()] == ["done", "done"]
    assert json.loads((node.folder(run) / "exit.json").read_text())["leftover"] == 0


def test_a_stop_does_not_wait_for_an_upload(node: Node) -> None:
    run = node.start(UPLOAD % 300, node.record(timeouts={"start": 60, "stop": 1, "leftover": 300}))
    here(node, run)
    eventually(
        lambda: not processes.is_alive(processes.identity_from_json(node.state(run)["launcher"])), "the launcher ends"
    )
    node.call("stop", run=run, grace=1)
    nothing_left(node, run)
    assert node.status(run)["state"] == "succeeded"


def test_a_supervisor_told_to_end_ends_the_job(node: Node) -> None:
    """What a shutdown of the machine does first."""
    run = node.start(SLEEP)
    here(node, run)
    os.kill(node.pid(run, "supervisor"), signal.SIGTERM)
    status = node.wait_state(run)
    assert (status["state"], status["cause"]["reason"], status["cause"]["signal"]) == ("failed", "signaled", "SIGTERM")
    assert f"PID {os.getpid()} " in status["cause"]["message"]
    nothing_left(node, run)


def test_a_hangup_does_nothing(node: Node) -> None:
    run = node.start(SLEEP)
    here(node, run)
    watchers = [node.pid(run, who) for who in ("guardian", "supervisor")]
    for pid in watchers:
        os.kill(pid, signal.SIGHUP)
    beats(node, run)
    assert node.status(run)["state"] == "running"
    assert all(one is not None and one.alive for one in map(proc.read_stat, watchers))


def test_strangers_are_never_touched(node: Node, tmp_path: Path) -> None:
    """A process beside the job, of the same user, with the same words in its command line but not the cookie."""
    record = node.record()
    stranger = subprocess.Popen(
        [sys.executable, "-c", f"import time; time.sleep(300)  # {record['run']}"], env={"DDPCTL_COOKIE": "another"}
    )
    try:
        run = node.start(SLEEP, record)
        here(node, run)
        node.call("stop", run=run, grace=2)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
