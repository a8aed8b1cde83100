"""Real supervisors find the rank that caused a failure: slow culprits, ranks that hang in their exit, false OOMs."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.machine import proc
from tests.worker.deadlines import shorten
from tests.worker.gang.test_gang import Trio
from tests.worker.gang.test_gang import trio as trio
from tests.worker.node import Node, eventually
from tests.worker.programs import SLEEP, beats, both_known

AFTER = """
import os, time
while not os.path.exists({flag!r}):
    time.sleep(0.05)
"""
# Waits until a process has ended whose pid is in a file.
ENDED = """
while os.path.exists("/proc/" + open({pid!r}).read()):
    time.sleep(0.05)
"""
# A peer of the culprit: it fails some time after the culprit has made the flag file.
VICTIM = """
import os, time
while not os.path.exists({flag!r}):
    time.sleep(0.05)
time.sleep({later})
raise RuntimeError("Connection closed by peer [10.9.0.11]:39583")
"""
# Its flag comes after its traceback.
HANGS = """
import atexit, time
def hang():
    open({flag!r}, "w").close()
    time.sleep(300)
atexit.register(hang)
raise ValueError("the reason")
"""
SLOW = """
import os, sys, time
open({flag!r}, "w").close()
while not os.path.exists({go!r}):
    time.sleep(0.05)
sys.exit(7)
"""


ON_A_MEMBER = pytest.mark.full(
    covered_by="tests/worker/run/test_culprit.py::test_the_rank_that_the_others_waited_for_is_the_cause"
)


def exit_of(node: Node, run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((node.folder(run) / "exit.json").read_text())
    return found


def both(culprit: str, victim: str) -> str:
    """Rank 0 and rank 1 act differently."""
    return f"import os\nexec({culprit!r} if os.environ['RANK'] == '0' else {victim!r})"


def start_together(trio: Trio, scripts: list[str], culprit: int, met: Path, **changes: Any) -> None:
    """The culprit begins once all ranks run: a rank that starts seconds after its peers is waited for, too."""
    waiting = list(scripts)
    waiting[culprit] = AFTER.format(flag=str(met)) + scripts[culprit]
    trio.start(*waiting, **changes)
    trio.joined()
    trio.running()
    met.touch()


@pytest.mark.parametrize("culprit", [0, 2], ids=["hub", "member"])
def test_a_rank_that_hangs_in_its_exit_on_another_node_is_the_cause(trio: Trio, tmp_path: Path, culprit: int) -> None:
    flag = str(tmp_path / "flag")
    scripts = [VICTIM.format(flag=flag, later=4)] * 3
    scripts[culprit] = HANGS.format(flag=flag)
    start_together(trio, scripts, culprit, tmp_path / "met")
    for status in trio.ended(60):
        assert (status["cause"]["host"], status["cause"]["rank"]) == (f"node{culprit}", culprit)
        assert "ValueError: the reason" in status["cause"]["message"]
    trio.supervisors_end()
    kept = exit_of(trio.nodes[0], trio.run)["candidates"]
    victims = {f"node{rank}" for rank in range(3) if rank != culprit}
    assert {one["host"] for one in kept} == victims
    assert all("a peer failed or hung first" in one["message"] for one in kept)


def test_a_culprit_that_is_slow_to_die_is_waited_for(trio: Trio, tmp_path: Path) -> None:
    for node in trio.nodes:  # the victims wait for as long as this test looks
        shorten(node, "gang/limits.py", VICTIMS_S=60.0, MUTE_S=60.0)
        shorten(node, "run/limits.py", VERDICT_S=90.0)
    flag, go, met = (tmp_path / name for name in ("flag", "go", "met"))
    victim = AFTER.format(flag=str(met)) + VICTIM.format(flag=str(flag), later=0)
    trio.start(victim, victim, AFTER.format(flag=str(met)) + SLOW.format(flag=str(flag), go=str(go)))
    trio.joined()
    trio.running()
    met.touch()
    victims = trio.nodes[:2]
    launchers = [node.pid(trio.run, "launcher") for node in victims]
    eventually(lambda: not any(proc.read_stat(pid) for pid in launchers), "the launchers of the victims end")
    for node in victims:
        beats(node, trio.run, 1)
        assert not (node.folder(trio.run) / "exit.json").exists()
    go.touch()
    for status in trio.ended(60):
        assert (status["cause"]["host"], status["cause"]["exit_code"]) == ("node2", 7)
    trio.supervisors_end()


def test_a_rank_that_hangs_in_its_exit_on_the_same_node_is_the_cause(node: Node, tmp_path: Path) -> None:
    flag = str(tmp_path / "flag")
    run = node.start(both(HANGS.format(flag=flag), VICTIM.format(flag=flag, later=4)))
    status = node.wait_state(run, seconds=60)
    assert (status["cause"]["rank"], status["cause"]["message"][-22:]) == (0, "ValueError: the reason")
    (other,) = exit_of(node, run)["candidates"]
    assert (other["rank"], other["exit_code"]) == (1, 1)
    assert status["candidates"] == [other]


TIMED_OUT = """
import os, time
while not os.path.exists({flag!r}):
    time.sleep(0.05)
time.sleep(3)
raise RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 10000ms for recv operation to complete")
"""
PREPARES = """
import time
def prepare():
    open({flag!r}, "w").close()
    time.sleep(300)
prepare()
"""


@pytest.mark.parametrize("late", [0, pytest.param(1, marks=ON_A_MEMBER)])
def test_the_rank_that_the_others_waited_for_is_the_cause(trio: Trio, tmp_path: Path, late: int) -> None:
    """All failures are time-outs of ranks that waited; the last look shows which rank was elsewhere."""
    flag = str(tmp_path / "flag")
    scripts = [TIMED_OUT.format(flag=flag)] * 3
    scripts[late] = PREPARES.format(flag=flag)
    start_together(trio, scripts, late, tmp_path / "met", doctor={"stall": 30.0})
    text = f"rank {late} on node{late} had not reached the collective of the others: it was at "
    for status in trio.ended(60):
        assert (status["cause"]["host"], status["cause"]["rank"]) == (f"node{late}", late), str(status["cause"])
        assert status["cause"]["message"].startswith(text)
        assert ".py:9 in prepare, asleep for another " in status["cause"]["message"]
    trio.supervisors_end()


def test_the_exit_code_is_the_failed_ranks_not_that_of_the_launcher(node: Node, trio: Trio, tmp_path: Path) -> None:
    run = node.start(both("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", SLEEP))
    assert node.wait_state(run)["exit_code"] == -signal.SIGSEGV
    start_together(trio, ["import sys; sys.exit(7)", SLEEP, SLEEP], 0, tmp_path / "met")
    first, *others = trio.ended()
    assert first["exit_code"] == 7
    assert all(one["exit_code"] not in (0, 7) for one in others)  # no rank failed there, so this is the launcher's code


def slow_to_end(request: dict[str, Any], seconds: float) -> None:
    """Once a rank has ended, the launcher waits before it ends, and leaves the other ranks alone."""
    launcher = Path(request["argv"][1])
    run = "ranks.run("
    before, after = launcher.read_text().split(run)
    slow = launcher.with_name("slow.py")
    slow.write_text(f"{before}import time\nranks._end = lambda *_: time.sleep({seconds})\n{run}{after}")
    request["argv"][1] = str(slow)


def test_a_launcher_that_is_slow_to_end_does_not_give_the_exit_code(node: Node) -> None:
    """The launcher of torch 1.13 waits for the other nodes until the supervisor stops it."""
    request = node.request("import sys, time; time.sleep(2); sys.exit(7)")
    slow_to_end(request, 60)
    node.started.append(request["run"]["run"])
    node.call("start", **request)
    status = node.wait_state(request["run"]["run"])
    assert (status["cause"]["exit_code"], status["exit_code"]) == (7, 7)


def test_a_rank_that_ended_early_is_the_cause_under_a_launcher_that_is_slow_to_end(node: Node, tmp_path: Path) -> None:
    """The victim is reported before the launcher has ended. The cause is sought again once the launcher has ended."""
    go, pid = tmp_path / "go", str(tmp_path / "pid")
    early = f"import os\nwith open({pid!r}, 'w') as file: file.write(str(os.getpid()))\n{AFTER.format(flag=str(go))}"
    victim = AFTER.format(flag=pid) + ENDED.format(pid=pid) + VICTIM.format(flag=str(go), later=0.3)
    request = node.request(both(early, victim))
    slow_to_end(request, 2)
    run = request["run"]["run"]
    node.started.append(run)
    node.call("start", **request)
    both_known(node, run)
    go.touch()
    cause = node.wait_state(run)["cause"]
    assert (cause["rank"], cause["exit_code"]) == (0, 0), cause
    assert cause["message"].endswith("before the others failed: do all ranks run the same number of steps?")


# A child of rank 0 that the kernel kills for memory; after a while rank 0 gets the same signal from another process.
OOM_EARLIER = """
import os, signal, subprocess, sys, time
child = subprocess.run([sys.executable, "-c", "x = b'x' * (1 << 30)"])
print("the child ended with", child.returncode, flush=True)
while not os.path.exists({go!r}):
    time.sleep(0.05)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def small(node: Node, tmp_path: Path) -> Iterator[Node]:
    """A node that gives its runs 256 MB."""
    with open("/proc/self/cgroup", encoding="ascii") as file:
        groups = dict(line.rstrip("\n").split(":", 2)[1:] for line in file)
    old = "memory" in groups
    parent = Path("/sys/fs/cgroup/memory" if old else "/sys/fs/cgroup" + groups[""])
    group = parent / f"ddpctl-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if old else "memory.max")).write_text(str(256 << 20))
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho $$ > {group}/cgroup.procs\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    node.python = str(python)
    yield node
    node.clean_up()
    node.python = sys.executable
    eventually(lambda: _removed(group), "the group is empty")


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return False
    return True


def test_an_oom_kill_of_something_else_some_time_ago_does_not_explain_a_kill(small: Node, tmp_path: Path) -> None:
    shorten(small, "run/limits.py", OOM_BEFORE_DEATH_S=1.0)
    go = tmp_path / "go"
    run = small.start(both(OOM_EARLIER.format(go=str(go)), SLEEP))
    eventually(lambda: b"the child ended" in small.text(run, 0), "the child is killed")
    beats(small, run, 3)  # the supervisor has seen that
    time.sleep(2)
    go.touch()
    status = small.wait_state(run, seconds=60)
    assert b"the child ended with -9" in small.text(run, 0)
    assert (status["cause"]["rank"], status["cause"]["reason"]) == (0, "signaled")
    assert "rank 0 was killed by SIGKILL, not by ddpctl (the OOM killer? see dmesg)" in status["cause"]["message"]


def test_a_rank_that_the_kernel_kills_for_memory(small: Node) -> None:
    run = small.start(both("import time; time.sleep(2); x = b'x' * (1 << 30)", SLEEP))
    status = small.wait_state(run, seconds=60)
    assert (status["cause"]["rank"], status["cause"]["reason"], status["exit_code"]) == (0, "oom", -9)
