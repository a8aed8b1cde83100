"""Stops at bad moments: on a full disk, while a watcher or a start hangs, and before the run has reached the node."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.machine import proc
from tests.worker.deadlines import shorten
from tests.worker.node import WORKER, Node, eventually, processes_of
from tests.worker.programs import SLEEP, nothing_left, watchers_end

ENDED_EARLY = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(300)"
)


FAILS_THEN = """
import os, time
print(1, flush=True)
while not os.path.exists({go!r}):
    time.sleep(0.05)
raise SystemExit(3)
"""


def running(node: Node, script: str = SLEEP) -> str:
    run = node.start(script)
    eventually(lambda: {0, 1} <= {one["rank"] for one in node.lines(run)}, "the ranks are there")
    return run


def fill(folder: Path) -> None:
    with contextlib.suppress(OSError), open(folder / "filler", "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def test_a_full_disk_prevents_no_stop(small_disk: Path, node: Node) -> None:
    run = running(node, ENDED_EARLY)
    fill(small_disk)
    answer = node.call("stop", run=run, grace=0.2, by="somebody")
    assert answer["status"]["state"] == "killed"
    assert answer["status"]["cause"]["message"] == "killed by somebody"  # the file of the stop itself found room
    assert answer["forced"] >= 2
    nothing_left(node, run)
    watchers_end(node, run)


SIZES = "tests/worker/run/test_stop.py::test_a_disk_that_fills_up_during_the_start_leaves_nothing_behind"


def rest(pages: int) -> Any:
    return pytest.param(pages, marks=pytest.mark.full(covered_by=SIZES))


# 0: the start is refused; 35: no room for the claim; 38: no room for the state; 39: just enough. All other sizes end in
# the same ways.
@pytest.mark.parametrize("pages", [0, 35, 38, 39, *map(rest, (16, 32, 33, 34, 36, 37, *range(40, 46)))])
def test_a_disk_that_fills_up_during_the_start_leaves_nothing_behind(small_disk: Path, node: Node, pages: int) -> None:
    """The start is refused, or the run fails because of the full disk, or the run is live and can be stopped."""
    fill(small_disk)
    with open(small_disk / "filler", "r+b") as file:
        file.truncate(os.fstat(file.fileno()).st_size - pages * 4096)
    run = f"tight-{pages}-{os.getpid()}"
    request = node.request(SLEEP, node.record(run))
    node.started.append(run)
    answer = node.open("start", **request).last()
    if not answer["ok"]:
        assert answer["error"]["kind"] == "no_space"
    elif answer["result"]["status"]["state"] == "failed":
        assert answer["result"]["status"]["cause"]["reason"] == "spawn_failed"
        assert "No space left" in answer["result"]["status"]["cause"]["message"]
    else:
        assert node.call("stop", run=run, grace=0.5, by="somebody")["status"]["state"] == "killed"
    eventually(lambda: not processes_of(run), "nothing of it is left")


def test_what_else_takes_the_room_takes_no_exit_record(
    small_disk: Path, node: Node, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Another process fills the disk again whenever space is freed."""
    go = tmp_path_factory.mktemp("roomy") / "go"
    run = running(node, FAILS_THEN.format(go=str(go)))
    code = "import sys, time\nfile = open(sys.argv[1], 'ab', 0)\nwhile True:\n try: file.write(b'x' * 512)\n"
    greedy = subprocess.Popen([sys.executable, "-c", code + " except OSError: pass", str(small_disk / "filler")])
    go.touch()
    try:
        assert node.wait_state(run)["cause"]["exit_code"] == 3
        assert json.loads((node.folder(run) / "exit.json").read_text())["cause"]["exit_code"] == 3
    finally:
        greedy.kill()
        greedy.wait()


def test_a_disk_that_became_read_only_prevents_no_stop(node: Node) -> None:
    """As after an error of the filesystem: the asking worker sees base_dir read-only."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    run = running(node)
    ask = {"verb": "stop", "host": node.host, "base_dir": str(node.base), "run": run, "grace": 0}
    code = "import sys; sys.path.insert(0, sys.argv[1]); from ddpctl_worker.__main__ import main; main()"
    bind = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    argv = ["unshare", "-m", "sh", "-c", bind, str(node.base), sys.executable, "-I", "-c", code, WORKER]
    done = subprocess.run(argv, input=json.dumps(ask), capture_output=True, text=True, check=True, timeout=60)
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["ok"], answer
    assert answer["result"]["status"]["state"] == "killed"
    assert not processes_of(run)


@pytest.mark.parametrize("who", [["supervisor"], ["guardian"], ["supervisor", "guardian"]])
def test_stopped_watchers_end_with_the_run(node: Node, who: list[str]) -> None:
    run = running(node)
    for one in who:
        os.kill(node.pid(run, one), signal.SIGSTOP)
    answer = node.call("stop", run=run, grace=2)
    assert answer["status"]["state"] == "killed"
    assert answer["status"]["cause"]["reason"] == "killed_by_user"
    eventually(lambda: not processes_of(run), "nothing of it is left, the guardian included")


def test_a_start_that_comes_after_the_stop_is_refused(node: Node) -> None:
    """A start that was still under way to this node when the stop came must not begin afterwards."""
    request = node.request(SLEEP)
    run = request["run"]["run"]
    node.started.append(run)
    for _ in range(2):
        assert node.open("stop", run=run, grace=0).last()["error"]["kind"] == "no_such_run"
    last = node.open("start", **request).last()
    assert not last["ok"]
    assert "stopped before it reached" in last["error"]["message"]
    assert not processes_of(run)
    assert node.call("status", all=True)["runs"] == []


def test_a_start_that_hangs_never_begins_after_the_stop(node: Node) -> None:
    request = node.request(SLEEP)
    run = request["run"]["run"]
    node.started.append(run)
    stream = node.open("start", **request)
    while not (node.folder(run) / "run.json").exists():
        pass
    stream.process.send_signal(signal.SIGSTOP)
    eventually(lambda: proc.read_stat(stream.process.pid).state == "T", "the start hangs")  # type: ignore[union-attr]
    supervised = node.state(run).get("supervisor") is not None
    assert node.call("stop", run=run, grace=0)["status"]["state"] == "killed"
    before = node.lines(run)  # of ranks that had begun before the stop
    stream.process.send_signal(signal.SIGCONT)
    assert supervised or stream.result()["status"]["state"] == "killed"
    eventually(lambda: not processes_of(run), "nothing runs")
    assert node.lines(run) == before


def test_what_was_lost_before_the_stop_is_told_as_lost(node: Node) -> None:
    run = running(node)
    guardian, supervisor = node.pid(run, "guardian"), node.pid(run, "supervisor")
    os.kill(guardian, signal.SIGSTOP)  # so that it cannot clean up in between
    os.kill(supervisor, signal.SIGKILL)
    os.kill(guardian, signal.SIGKILL)
    eventually(lambda: not processes_of(run), "all of it is gone")
    assert node.call("stop", run=run, grace=0)["status"]["cause"]["reason"] == "supervisor_lost"


@pytest.mark.parametrize("env", [{"A": "x\0y"}, {"A\0": "x"}, {"A=B": "x"}, {"": "x"}])
def test_an_environment_that_cannot_be_is_refused(node: Node, env: dict[str, Any]) -> None:
    request = node.request(SLEEP, env=env)
    last = node.open("start", **request).last()
    assert last["error"]["kind"] == "bad_request"
    assert not node.folder(request["run"]["run"]).exists()


def test_a_run_whose_folder_was_removed_does_not_run_on_unseen(node: Node) -> None:
    shorten(node, "record/limits.py", GONE_S=2.0)
    run = running(node)
    node.base.rename(node.base.parent / "elsewhere")
    eventually(lambda: not processes_of(run), "nobody could stop it any more, so it ends", 60)


def test_an_exit_record_of_somebody_else_ends_the_run(node: Node) -> None:
    """The record says that no process of the run is left, so the supervisor ends every process."""
    run = running(node)
    end = {"schema": 1, "state": "lost", "exit_code": None, "cause": None, "ended": "2026-01-01T00:00:00+00:00"}
    (node.folder(run) / "exit.json").write_text(json.dumps(end))
    eventually(lambda: not processes_of(run), "the run ends", 60)
    assert node.status(run)["state"] == "lost"


def test_a_supervisor_survives_a_fault_that_passes(node: Node) -> None:
    """For some seconds the supervisor can open no file: it can read neither /proc nor a record."""
    go = node.scratch / "go"
    run = running(node, FAILS_THEN.format(go=str(go)))
    pid, log = node.pid(run, "supervisor"), node.folder(run) / "supervisor.log"
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    eventually(lambda: "Too many open files" in log.read_text(), "the fault is noted", 60)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    go.touch()
    status = node.wait_state(run)
    assert status["cause"]["exit_code"] == 3, status
