"""What must go on while something stands still: ranks on a hung disk, a run's end on a disk that takes nothing, and the
other nodes beside a supervisor whose loop hangs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpctl_worker.run import record
from tests.worker.node import Node, eventually, processes_of
from tests.worker.programs import SLEEP, nothing_left, thread_stopped, watchers_end

LONG_S, HANG_S = 20.0, 12.0
# Writes 2 MB a second and remembers, on another disk, how long it had to wait at most because nobody emptied its pipe
# (which holds half a second of it). It starts a child now and then, so that there is something new to write down.
WRITER = """
import os, select, subprocess, sys, time
out, seconds = sys.argv[0] + ".pause", {seconds}
os.set_blocking(1, False)
longest, begun = 0.0, time.monotonic()
def write(data):
    global longest
    since = None
    while data:
        try:
            data = data[os.write(1, data):]
        except BlockingIOError:
            since = since or time.monotonic()
            select.select([], [1], [], 1.0)
            longest = max(longest, time.monotonic() - since)
open(sys.argv[0] + ".begun", "w").close()
turn = 0
while time.monotonic() - begun < seconds:
    turn += 1
    if turn % 40 == 0:
        subprocess.Popen(["sleep", "1"])
    write((b"x" * 1023 + b"\\n") * 100)
    time.sleep(0.05)
with open(out + ".new", "w") as file:
    file.write(str(longest))
os.rename(out + ".new", out)
"""


class Disk:
    """A small filesystem of its own that hangs on command, as a device or a server does: writers wait in the kernel."""

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
    """base_dir is a filesystem of its own."""
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


def begun(node: Node, run: str) -> None:
    eventually(Path(f"{program(node, run)}.begun").exists, "the rank writes")


@pytest.mark.parametrize("when", ["start", "middle", "end"])
def test_a_rank_never_waits_for_a_hung_disk(disk: Disk, node: Node, when: str) -> None:
    assert node.base == disk.folder
    made = node.record(nproc=1, ranks=[0])
    run = made["run"]
    node.started.append(run)
    seconds = {"start": HANG_S + 4, "middle": LONG_S + 8, "end": 8.0}[when]
    start = node.open("start", **node.request(WRITER.format(seconds=seconds), made))
    begun(node, run)
    if when != "start":
        start.result()
        time.sleep(4)
    with disk.hangs():
        time.sleep(LONG_S if when == "middle" else HANG_S)
    start.result()
    status = node.wait_state(run)
    assert (status["state"], status["dropped_lines"]) == ("succeeded", 0)
    assert float(Path(f"{program(node, run)}.pause").read_text()) < 0.5


def launcher_is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("killed", [False, True], ids=["supervised", "supervisor-killed"])
@pytest.mark.parametrize("fault", ["hangs", "immutable"])
def test_a_success_stays_one_on_a_disk_that_takes_nothing(disk: Disk, node: Node, fault: str, killed: bool) -> None:
    run = node.start("import time; time.sleep(3)")
    node.wait_state(run, "running")
    launcher, supervisor = node.pid(run, "launcher"), node.pid(run, "supervisor")
    folder = node.folder(run)
    with contextlib.ExitStack() as broken:
        if fault == "hangs":
            broken.enter_context(disk.hangs())
        else:
            subprocess.run(["chattr", "+i", str(folder)], check=True)
            broken.callback(subprocess.run, ["chattr", "-i", str(folder)], check=True)
        eventually(lambda: launcher_is_gone(launcher), "the job is over", 30)
        if killed:
            os.kill(supervisor, signal.SIGKILL)
        time.sleep(HANG_S)
        assert not (folder / "exit.json").exists()
    status = node.wait_state(run)
    assert (status["state"], status["exit_code"], status["cause"]) == ("succeeded", 0, None)
    watchers_end(node, run)


def test_a_supervisor_killed_while_its_threads_hang_in_the_disk(disk: Disk, node: Node) -> None:
    """It cannot end before the disk is back; what it left is ended all the same."""
    run = node.start("import time\nwhile True:\n    print(1, flush=True)\n    time.sleep(0.1)")
    node.wait_state(run, "running")
    with disk.hangs():
        time.sleep(3)
        os.kill(node.pid(run, "supervisor"), signal.SIGKILL)
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
    run = node.start("import time; time.sleep(3)")
    node.wait_state(run, "running")
    launcher = node.pid(run, "launcher")
    folder = node.folder(run)
    subprocess.run(["chattr", "+i", str(folder)], check=True)
    try:
        eventually(lambda: launcher_is_gone(launcher), "the job is over", 30)
        answer = node.call("stop", run=run, grace=0, by="somebody")
        assert answer["survivors"] == []
    finally:
        subprocess.run(["chattr", "-i", str(folder)], check=True)
    assert node.wait_state(run)["state"] == "succeeded"


@pytest.mark.parametrize("how", ["the process", "its main thread"])
def test_a_supervisor_whose_loop_stands_still_is_ended_by_its_guardian(node: Node, how: str) -> None:
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
    assert "was stuck for 20 s" in status["cause"]["message"]
    watchers_end(node, run)


def test_a_launcher_that_outlives_its_ranks_is_stopped(node: Node) -> None:
    """All ranks have returned 0, and the launcher hangs."""
    request = node.request("import time; time.sleep(1)")
    path = node.scratch / "hangs.py"
    path.write_text(Path(request["argv"][1]).read_text().replace("sys.exit(code)", "time.sleep(300)"))
    request["argv"][1] = str(path)
    run = request["run"]["run"]
    node.started.append(run)
    node.call("start", **request)
    status = node.wait_state(run, seconds=90)
    assert (status["state"], status["cause"]["reason"]) == ("failed", "exited")
    assert "every rank on node0 has ended" in status["cause"]["message"]
    assert "the launcher kept running" in status["cause"]["message"]
    nothing_left(node, run)


def test_an_older_heartbeat_is_still_read(tmp_path: Path) -> None:
    body = struct.pack("<ddQI", 1.0, 2.0, 3, 4)
    (tmp_path / "heartbeat").write_bytes(body + struct.pack("<I", zlib.crc32(body)))
    beat = record.read_heartbeat(str(tmp_path / "heartbeat"))
    assert beat is not None
    assert (beat.at, beat.last_output, beat.dropped, beat.attempt) == (1.0, 2.0, 3, 4)
