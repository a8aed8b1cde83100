"""Helper programs: a program that cannot be killed is left behind, known, and not started again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.machine import tool
from ddpctl_worker.machine.processes import identify
from ddpctl_worker.run.cleanup import Leftovers
from tests.worker.node import WORKER, eventually

pytestmark = pytest.mark.slow  # it starts processes

SLEEP = ["sleep", "301"]


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tool, "KILLED_TOOL_GONE_S", 60.0)
    monkeypatch.setattr(tool, "_stopped", False)
    yield
    for pid in tool.started_tools():
        end(pid)
    assert tool.started_tools() == []


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


@pytest.fixture
def unkillable(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a program that waits in the kernel for a GPU that fell off the bus."""
    monkeypatch.setattr(tool, "KILLED_TOOL_GONE_S", 0.1)
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: None)


def in_background(argv: list[str], seconds: float = 20.0) -> threading.Thread:
    thread = threading.Thread(target=tool.run, args=(argv, seconds), daemon=True)
    thread.start()
    eventually(tool.started_tools, "it has started")
    return thread


def test_one_that_ends_is_forgotten(tmp_path: Path) -> None:
    said = tool.run(["sh", "-c", "echo out; echo err >&2; exit 3"], 20.0)
    assert (said["code"], said["stdout"], said["stderr"], said["timed_out"]) == (3, "out\n", "err\n", False)
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF of another machine")
    broken.chmod(0o700)
    for words in (str(broken), str(tmp_path / "none")):
        with pytest.raises(OSError, match=r"Exec format error|none"):
            tool.run([words], 1.0)
    assert (tool.started_tools(), tool.stuck()) == ([], [])


def test_one_that_is_late_is_killed() -> None:
    said = tool.run(SLEEP, 0.2)
    assert (said["code"], said["timed_out"]) == (None, True)
    assert (tool.started_tools(), tool.stuck()) == ([], [])


@pytest.mark.usefixtures("unkillable")
def test_one_that_cannot_be_killed_is_not_started_again() -> None:
    assert tool.run(SLEEP, 0.2)["timed_out"]
    (pid,) = tool.started_tools()
    assert tool.stuck() == [pid]
    said = tool.run(SLEEP, 20.0)
    assert (said["code"], said["timed_out"], said["stdout"]) == (None, True, "")
    assert said["stderr"] == f"an earlier one (pid {pid}) does not end, not even when it is killed"
    assert tool.started_tools() == [pid]
    assert tool.run(["sleep", "0"], 20.0)["code"] == 0  # another question
    end(pid)
    assert (tool.started_tools(), tool.stuck()) == ([], [])
    assert tool.run(["sh", "-c", "exit 0"], 20.0)["code"] == 0


@pytest.mark.usefixtures("unkillable")
def test_a_number_that_is_used_again_is_nobodys_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    tool.run(SLEEP, 0.2)
    (pid,) = tool.started_tools()
    (one,) = tool._known
    monkeypatch.setattr(one, "start", one.start + 1)
    assert tool.started_tools() == []
    end(pid)
    assert one.process is not None
    one.process.returncode = 0


def test_after_the_stop_none_is_left_and_none_starts() -> None:
    thread = in_background(SLEEP)
    tool.stop()
    thread.join(60.0)
    assert not thread.is_alive()
    said = tool.run(["sh", "-c", "echo here"], 20.0)
    assert (said["code"], said["stdout"], said["timed_out"]) == (None, "", True)
    assert said["stderr"] == "the run is being stopped"
    assert tool.started_tools() == []


def test_one_that_hangs_before_its_exec_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file may lie on a disk that hangs: then the call that starts it does not return."""
    over = threading.Event()
    real = subprocess.Popen

    def hangs(*args: Any, **how: Any) -> Any:
        process = real(*args, **how)
        over.wait(60.0)
        return process

    monkeypatch.setattr(tool, "KILLED_TOOL_GONE_S", 0.1)
    monkeypatch.setattr(subprocess, "Popen", hangs)
    thread = in_background(SLEEP, 0.1)
    (pid,) = tool.started_tools()
    eventually(lambda: tool.stuck() == [pid], "it is late")
    assert "does not end" in tool.run(SLEEP, 20.0)["stderr"]
    tool.stop()
    over.set()
    thread.join(60.0)
    eventually(lambda: not tool.started_tools(), "it is gone")


PROOF = """
import subprocess, sys
sys.path.insert(0, sys.argv[1])
from ddpctl_worker.machine import tool
from ddpctl_worker.machine import processes
processes.become_subreaper()
subprocess.Popen.kill = lambda process: None
tool.KILLED_TOOL_GONE_S = 0.1
tool.run(["sleep", "302"], 0.1)
proof = processes.Proof(subreaper=True, spare=tool.started_tools)
(pid,) = tool.started_tools()
print(proof.given(), proof.pids(), pid)
other = subprocess.Popen(["sleep", "303"])
print(proof.given(), proof.pids() == {other.pid})
proof.kill()
other.wait()
print(proof.given(), tool.started_tools() == [pid])
"""


@pytest.mark.parametrize("named", [True, False])
def test_the_guardian_leaves_it_alone(named: bool) -> None:
    with subprocess.Popen(SLEEP) as process:
        who = identify(process.pid)
        assert who is not None
        words = {"stuck": [who.to_json()]} if named else {}
        left = Leftovers("", [[who.pid, who.start]], (), None, words)
        assert set(left.members()) == (set() if named else {who.pid})
        process.kill()


def test_a_helper_is_no_survivor() -> None:
    made = subprocess.run([sys.executable, "-c", PROOF, WORKER], capture_output=True, text=True, check=True)
    first, *rest = made.stdout.splitlines()
    pid = int(first.split()[-1])
    os.kill(pid, signal.SIGKILL)
    assert (first, rest) == (f"True set() {pid}", ["False True", "True True"])
