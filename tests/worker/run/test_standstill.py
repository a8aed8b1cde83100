"""Work continues while a disk, a peer or a loop hangs: ranks write although the disk hangs, a run ends although the
disk takes no write, and the other nodes carry on although the loop of a supervisor hangs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ddpctl_worker.machine import proc
from tests.worker.deadlines import shorten
from tests.worker.node import Node, eventually, processes_of
from tests.worker.programs import SLEEP, both_known, nothing_left, thread_stopped, watchers_end

GUARD_S = 120.0
MB = 1 << 20
# Writes 2 MB a second until the file ".enough" exists. On another disk, it keeps the number of bytes that it has
# written and its longest wait for room in its pipe, which holds half a second of output; the time that it waited for a
# processor does not count. It starts a child now and then, so that the supervisor has something new to record.
WRITER = """
import os, select, subprocess, sys, time
os.set_blocking(1, False)
def unserved():
    with open("/proc/self/schedstat") as file:
        return int(file.read().split()[1]) / 1e9
longest, written, turn = 0.0, 0, 0
def write(data):
    global longest
    since = None
    while data:
        try:
            data = data[os.write(1, data):]
        except BlockingIOError:
            since = since or time.monotonic() - unserved()
            select.select([], [1], [], 1.0)
            longest = max(longest, time.monotonic() - unserved() - since)
def tell():
    with open(sys.argv[0] + ".new", "w") as file:
        file.write("%d %d %f" % (os.getppid(), written, longest))
    os.rename(sys.argv[0] + ".new", sys.argv[0] + ".told")
while not os.path.exists(sys.argv[0] + ".enough"):
    turn += 1
    if turn % 40 == 0:
        subprocess.Popen(["sleep", "1"])
    write((b"x" * 1023 + b"\\n") * 100)
    written += 102400
    tell()
    time.sleep(0.05)
"""
WAITS = """
import os, sys, time
while not os.path.exists(sys.argv[0] + ".enough"):
    time.sleep(0.05)
"""


class Disk:
    """A small filesystem that hangs on command, as a device or a server does: writers wait in the kernel."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextlib.contextmanager
    def hangs(self) -> Iterator[None]:
        subprocess.run(["fsfreeze", "-f", str(self.folder)], check=True)
        try:
            yield
        finally:
            subprocess.run(["fsfreeze", "-u", str(self.folder)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Mount a filesystem of its own as base_dir."""
    if os.geteuid() != 0:
        pytest.skip("mounting a filesystem needs root")
    image, folder = tmp_path / "disk.img", tmp_path / "base"
    with open(image, "wb") as file:
        file.truncate(600 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    folder.mkdir()
    done = subprocess.run(["mount", "-o", "loop", str(image), str(folder)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip("no loop devices here: " + done.stderr)
    folder.chmod(0o700)
    yield Disk(folder)
    subprocess.run(["umount", "-l", str(folder)], check=True)
    image.unlink()


def program(node: Node, run: str) -> Path:
    return node.scratch / f"{run}-{node.host}.py"


def enough(node: Node, run: str) -> None:
    """Make the ranks of WRITER and WAITS end."""
    Path(f"{program(node, run)}.enough").touch()


class Told(NamedTuple):
    """The last report of a rank of WRITER."""

    launcher: int = 0
    written: int = 0
    longest: float = 0.0


def told(node: Node, run: str) -> Told:
    try:
        launcher, written, longest = Path(f"{program(node, run)}.told").read_text().split()
    except FileNotFoundError:
        return Told()
    return Told(int(launcher), int(written), float(longest))


def writes_more(node: Node, run: str, size: int) -> None:
    before = told(node, run).written
    eventually(lambda: told(node, run).written >= before + size, "the rank goes on", GUARD_S)


def unserved(pid: int) -> float:
    """Return the seconds for which threads of the process were ready to run and had no processor."""
    waits = [path.read_text().split()[1] for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(map(int, waits)) / 1e9


def waits_for_a_disk(pid: int) -> bool:
    found = [proc.read_stat(int(path.name)) for path in Path(f"/proc/{pid}/task").glob("*")]
    return any(one is not None and one.state == "D" for one in found)


@pytest.mark.parametrize("when", ["start", "middle", "end"])
def test_a_rank_never_waits_for_a_hung_disk(disk: Disk, node: Node, when: str) -> None:
    """The guardian does not take the supervisor for stuck either, however long the disk hangs."""
    assert node.base == disk.folder
    shorten(node, "run/limits.py", STUCK_LOOP_S=12.0)
    made = node.record(nproc=1, ranks=[0])
    run = made["run"]
    node.started.append(run)
    start = node.open("start", **node.request(WRITER, made))
    writes_more(node, run, 1)
    if when != "start":
        start.result()
        writes_more(node, run, 4 * MB)
    launcher = proc.read_stat(told(node, run).launcher)
    assert launcher is not None
    with disk.hangs():
        writes_more(node, run, {"start": 8 * MB, "middle": 30 * MB, "end": 4 * MB}[when])
        if when == "end":
            enough(node, run)
            eventually(lambda: launcher_is_gone(launcher.pid), "the job is over", GUARD_S)
            eventually(lambda: waits_for_a_disk(launcher.parent), "its end is to be written", GUARD_S)
        pause, excuse = told(node, run).longest, unserved(launcher.parent)
    start.result()
    enough(node, run)
    status = node.wait_state(run)
    assert (status["state"], status["dropped_lines"]) == ("succeeded", 0)
    assert pause < 0.5 + excuse


def launcher_is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


ITSELF = "tests/worker/run/test_standstill.py::test_a_success_stays_one_on_a_disk_that_takes_nothing"


@pytest.mark.parametrize(
    ("fault", "killed"),
    [
        ("hangs", False),
        ("immutable", True),
        pytest.param("hangs", True, marks=pytest.mark.full(covered_by=ITSELF)),
        pytest.param("immutable", False, marks=pytest.mark.full(covered_by=ITSELF)),
    ],
)
def test_a_success_stays_one_on_a_disk_that_takes_nothing(disk: Disk, node: Node, fault: str, killed: bool) -> None:
    run = node.start(WAITS)
    node.wait_state(run, "running")
    launcher, supervisor = node.pid(run, "launcher"), node.pid(run, "supervisor")
    folder = node.folder(run)
    with contextlib.ExitStack() as broken:
        if fault == "hangs":
            broken.enter_context(disk.hangs())
        else:
            subprocess.run(["chattr", "+i", str(folder)], check=True)
            broken.callback(subprocess.run, ["chattr", "-i", str(folder)], check=True)
        enough(node, run)
        eventually(lambda: launcher_is_gone(launcher), "the job is over", GUARD_S)
        if killed:
            os.kill(supervisor, signal.SIGKILL)
        if fault == "hangs":
            writer = node.pid(run, "guardian") if killed else supervisor
            eventually(lambda: waits_for_a_disk(writer), "its end is to be written", GUARD_S)
        else:
            log = folder / "supervisor.log"
            eventually(lambda: "the run's end cannot be recorded yet" in log.read_text(), "an attempt", GUARD_S)
        assert not (folder / "exit.json").exists()
    status = node.wait_state(run)
    assert (status["state"], status["exit_code"], status["cause"]) == ("succeeded", 0, None)
    watchers_end(node, run)


def test_a_supervisor_killed_while_its_threads_hang_in_the_disk(disk: Disk, node: Node) -> None:
    """The supervisor cannot end before the disk is back. The processes that it left are ended all the same."""
    run = node.start("import time\nwhile True:\n    print(1, flush=True)\n    time.sleep(0.1)")
    node.wait_state(run, "running")
    supervisor = node.pid(run, "supervisor")
    with disk.hangs():
        eventually(lambda: waits_for_a_disk(supervisor), "a thread waits for the disk", GUARD_S)
        os.kill(supervisor, signal.SIGKILL)
        ours = ("ddpctl-guardian",)
        eventually(
            lambda: not [words for words in processes_of(f"{run}-").values() if not words.startswith(ours)],
            "the ranks end",
            60,
        )
    status = node.wait_state(run)
    assert (status["state"], status["cause"]["reason"]) == ("lost", "supervisor_lost")
    nothing_left(node, run)


def test_a_kill_ends_a_job_whose_disk_hangs(disk: Disk, node: Node) -> None:
    run = node.start(SLEEP)
    node.wait_state(run, "running")
    with disk.hangs():
        stop = node.open("stop", run=run, grace=1)
        answer = eventually(lambda: next((one for one in stop.frames if "ok" in one), None), "the stop answers", 60)
        assert answer["ok"], answer
        assert answer["result"]["survivors"] == []
        nothing_left(node, f"{run}-")
    stop.hang_up()
    assert node.wait_state(run)["state"] == "killed"
    watchers_end(node, run)


def test_a_kill_answers_though_the_end_cannot_be_written(disk: Disk, node: Node) -> None:
    """The job is over and has succeeded: the stop says that nothing runs, and invents no other end."""
    run = node.start(WAITS)
    node.wait_state(run, "running")
    launcher = node.pid(run, "launcher")
    folder = node.folder(run)
    subprocess.run(["chattr", "+i", str(folder)], check=True)
    try:
        enough(node, run)
        eventually(lambda: launcher_is_gone(launcher), "the job is over", GUARD_S)
        answer = node.call("stop", run=run, grace=0, by="somebody")
        assert answer["survivors"] == []
    finally:
        subprocess.run(["chattr", "-i", str(folder)], check=True)
    assert node.wait_state(run)["state"] == "succeeded"


LOOP = "tests/worker/run/test_standstill.py::test_a_supervisor_whose_loop_stands_still_is_ended_by_its_guardian"


@pytest.mark.parametrize(
    "how", [pytest.param("the process", marks=pytest.mark.full(covered_by=LOOP)), "its main thread"]
)
def test_a_supervisor_whose_loop_stands_still_is_ended_by_its_guardian(node: Node, how: str) -> None:
    shorten(node, "run/limits.py", STUCK_LOOP_S=12.0)
    run = node.start(SLEEP)
    node.wait_state(run, "running")
    pid = node.pid(run, "supervisor")
    with contextlib.ExitStack() as still:
        if how == "the process":
            os.kill(pid, signal.SIGSTOP)
        else:
            still.enter_context(thread_stopped(pid))
        eventually(lambda: not processes_of(f"{run}-"), "the job is ended", 90)
        status = node.wait_state(run)
    assert (status["state"], status["cause"]["reason"]) == ("lost", "supervisor_lost")
    assert "was stuck for 12 s" in status["cause"]["message"]
    watchers_end(node, run)


def test_a_launcher_that_outlives_its_ranks_is_stopped(node: Node) -> None:
    """All ranks have returned 0, and the launcher hangs."""
    shorten(node, "run/limits.py", LONE_LAUNCHER_S=3.0)
    request = node.request(WAITS)
    path = node.scratch / "hangs.py"
    path.write_text(Path(request["argv"][1]).read_text() + "import time; time.sleep(300)\n")
    request["argv"][1] = str(path)
    run = request["run"]["run"]
    node.started.append(run)
    node.call("start", **request)
    both_known(node, run)
    enough(node, run)
    status = node.wait_state(run, seconds=90)
    assert (status["state"], status["cause"]["reason"]) == ("failed", "exited")
    assert "every rank on node0 has ended" in status["cause"]["message"]
    assert "the launcher kept running for 3 s" in status["cause"]["message"]
    nothing_left(node, run)
