"""What happens to a job's processes: stops that must leave nothing, and watchers that are killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpctl_worker import processes
from tests.worker.node import Node, eventually, processes_of

SLEEP = "import time; print('here', flush=True); time.sleep(300)"
STUBBORN = (
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('here', flush=True)\ntime.sleep(300)"
)
CHECKPOINT = """
import os, signal, sys, time
def save(number, frame):
    time.sleep(0.3)
    with open(os.path.join(os.environ["DDPCTL_OUTPUT_DIR"], os.environ["RANK"]), "a") as file:
        file.write("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("here", flush=True)
time.sleep(300)
"""
# Grandchildren that try to get away: sessions of their own, orphaned, one with an empty environment.
RUNAWAYS = """
import os, subprocess, sys, time
code = "import time; time.sleep(300)  # " + sys.argv[0]
for env in (None, {}):
    if os.fork() == 0:
        os.setsid()
        subprocess.Popen([sys.executable, "-c", code], env=env, start_new_session=True)
        os._exit(0)
print("here", flush=True)
time.sleep(300)
"""
FORKS = """
import os, time
print("here", flush=True)
while True:
    if os.fork() == 0:
        time.sleep(0.2)
        os._exit(0)
    time.sleep(0.01)
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        pass
"""


def here(node: Node, run: str) -> None:
    """Every rank is past its imports and handlers."""
    eventually(lambda: sum(one["text"] == "here" for one in node.lines(run)) == 2, "the ranks are there")


def nothing_left(node: Node, run: str) -> None:
    """Right now, as /proc has it: the ranks' scripts are named after the run, so the name finds every one of them."""
    left = {pid: words for pid, words in processes_of(run).items() if "ddpctl-guardian" not in words}
    assert left == {}


def noted(node: Node, run: str) -> bool:
    """Whether the record of the process tree holds every process that there is."""
    try:
        known = {pid for pid, _ in json.loads((node.folder(run) / "processes.json").read_text())["tree"]}
    except FileNotFoundError:
        return False
    return {pid for pid, words in processes_of(run).items() if "ddpctl-guardian" not in words} <= known


def watchers_end(node: Node, run: str) -> None:
    eventually(lambda: not processes_of(run), "guardian and supervisor end")


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
    run = node.start(STUBBORN)
    here(node, run)
    begun = time.monotonic()
    answer = node.call("stop", run=run, grace=1)
    nothing_left(node, run)
    assert answer["forced"] >= 2
    assert time.monotonic() - begun < 10
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


@pytest.mark.parametrize("script", [SLEEP, RUNAWAYS, STUBBORN], ids=["plain", "runaways", "stubborn"])
def test_supervisor_killed_guardian_cleans_up(node: Node, script: str) -> None:
    run = node.start(script, node.record(timeouts={"start": 60, "stop": 1, "silence": None}))
    here(node, run)
    os.kill(node.pid(run, "supervisor"), signal.SIGKILL)
    status = node.wait_state(run)
    nothing_left(node, run)
    assert status["state"] == "lost"
    assert status["cause"]["reason"] == "supervisor_lost"
    watchers_end(node, run)


@pytest.mark.parametrize("pause", [0.0, 0.03, 0.08, 0.15])
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
    time.sleep(0.5)
    assert node.status(run)["state"] == "running"
    node.call("stop", run=run, grace=2)
    nothing_left(node, run)
    watchers_end(node, run)


def test_guardian_then_supervisor_killed_the_deputy_cleans_up(node: Node) -> None:
    run = node.start(RUNAWAYS, node.record(timeouts={"stop": 1}))
    here(node, run)
    os.kill(node.pid(run, "guardian"), signal.SIGKILL)
    time.sleep(2.5)  # the deputy looks once a second
    os.kill(node.pid(run, "supervisor"), signal.SIGKILL)
    status = node.wait_state(run)
    assert status["cause"]["reason"] == "supervisor_lost"
    nothing_left(node, run)


@pytest.mark.parametrize("script", [SLEEP, STUBBORN, RUNAWAYS], ids=["plain", "stubborn", "runaways"])
def test_both_killed_at_once_a_stop_still_ends_everything(node: Node, script: str) -> None:
    run = node.start(script)
    here(node, run)
    # The last look at the tree is at most a few seconds old; it is what finds those with an empty environment.
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
    run = node.start(RUNAWAYS.replace("time.sleep(300)\n", ""))
    assert node.wait_state(run)["state"] == "succeeded"
    nothing_left(node, run)


def test_a_supervisor_told_to_end_ends_the_job(node: Node) -> None:
    """What a shutdown of the machine does first."""
    run = node.start(SLEEP)
    here(node, run)
    os.kill(node.pid(run, "supervisor"), signal.SIGTERM)
    status = node.wait_state(run)
    assert (status["state"], status["cause"]["reason"], status["cause"]["signal"]) == ("failed", "signaled", "SIGTERM")
    nothing_left(node, run)


def test_a_hangup_does_nothing(node: Node) -> None:
    run = node.start(SLEEP)
    here(node, run)
    for who in ("guardian", "supervisor"):
        os.kill(node.pid(run, who), signal.SIGHUP)
    time.sleep(0.3)
    assert node.status(run)["state"] == "running"


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


def test_a_reused_pid_is_not_the_process() -> None:
    with _sleeper() as child:
        who = processes.identify(child.pid)
        assert who is not None
        assert processes.is_alive(who)
        other = who._replace(start=who.start - 1)
        assert not processes.is_alive(other)
        assert not processes.send(other, signal.SIGKILL)
        assert not processes.send(who._replace(boot="another boot"), signal.SIGKILL)
        assert child.poll() is None
        assert processes.send(who, signal.SIGKILL)
        child.wait()
        assert not processes.is_alive(who)
        assert not processes.send(who, signal.SIGKILL)


def test_identity_without_pidfds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.8, or a kernel before 5.3."""
    monkeypatch.delattr(os, "pidfd_open")
    with _sleeper() as child:
        who = processes.identify(child.pid)
        assert who is not None
        assert not processes.send(who._replace(start=1), signal.SIGKILL)
        assert processes.send(who, signal.SIGKILL)
        child.wait()
        assert not processes.send(who, signal.SIGKILL)


def test_stat_of_a_process_with_a_wild_name(tmp_path: Path) -> None:
    program = tmp_path / ") R 1 (("
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([str(program), "300"]) as child:
        eventually(lambda: (found := processes.read_stat(child.pid)) and "R 1" in found.name, "exec")
        found = processes.read_stat(child.pid)
        assert found is not None
        assert found.parent == os.getpid()
        assert found.name.startswith(") R 1 ((")
        child.kill()


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
            eventually(lambda run=run: (node.folder(run) / "run.json").exists(), "the claim", 5)  # type: ignore[misc]
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


@contextlib.contextmanager
def _sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["/bin/sleep", "300"]) as child:
        try:
            yield child
        finally:
            child.kill()
