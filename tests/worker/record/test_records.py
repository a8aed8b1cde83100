"""Records that survive SIGKILL, are written once, and are judged against the machine."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.machine import fs
from ddpctl_worker.record import limits, record
from ddpctl_worker.record.paths import RunPaths
from ddpctl_worker.wire.channel import WorkerError
from tests.worker.deadlines import shorten
from tests.worker.node import WORKER, Node, eventually
from tests.worker.programs import KILLED_AT_A_CALL, SLEEP, here, watchers_end


@pytest.mark.slow
def test_a_killed_writer_leaves_the_old_or_the_new_record(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    code = f"""
import sys
sys.path.insert(0, {WORKER!r})
from ddpctl_worker.machine.fs import write_json
n = 0
while True:
    n += 1
    write_json({str(path)!r}, {{"n": n, "pad": "x" * 5000, "end": n}}, durable=False)
"""
    last = 0
    for turn in range(30):
        writer = subprocess.Popen([sys.executable, "-c", code])
        eventually(lambda before=last: path.exists() and (fs.read_json(str(path)) or {})["n"] >= 1, "a record")  # type: ignore[misc]
        time.sleep(0.002 * (turn % 10))
        writer.kill()
        writer.wait()
        found = fs.read_json(str(path))
        assert found is not None
        assert found["n"] == found["end"]
        last = found["n"]


def test_the_exit_record_is_written_once(tmp_path: Path) -> None:
    path = str(tmp_path / "exit.json")
    won = []
    threads = [
        threading.Thread(target=lambda n=n: won.append(n) if fs.write_once(path, {"n": n}) else None) for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert fs.read_json(path) == {"n": won[0]}
    assert os.listdir(tmp_path) == ["exit.json"]


def test_the_exit_record_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    path = str(tmp_path / "exit.json")
    assert fs.write_once(path, {"n": 1})
    assert not fs.write_once(path, {"n": 2})
    assert fs.read_json(path) == {"n": 1}


def test_an_exit_record_is_there_though_its_first_writer_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without hard links. The writer dies just before the record gets its name."""
    paths = RunPaths(str(tmp_path))
    code = f"""
import os, sys
sys.path.insert(0, {WORKER!r})
from ddpctl_worker.machine import fs
from ddpctl_worker.record import record
from ddpctl_worker.record.paths import RunPaths
rename = os.rename

def refuse(*_):
    raise PermissionError(1, "no hard links here")

def die(old, new):
    if new.endswith("/exit.json"):
        os.kill(os.getpid(), 9)
    rename(old, new)

os.link, os.rename = refuse, die
record.save(RunPaths({paths.top!r}), {{"state": "failed"}})
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL

    def refuse(*_: object) -> None:
        raise PermissionError(1, "no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    assert not os.path.exists(paths.exit)
    assert record.ExitWriter(paths).wrote(lambda: {"state": "lost"})
    first = fs.read_json(paths.exit)
    assert first is not None
    assert first["state"] in ("failed", "lost")
    assert record.ExitWriter(paths).wrote(lambda: {"state": "killed"})
    assert fs.read_json(paths.exit) == first


def test_unreadable_records_are_told(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    assert fs.read_json(str(path)) is None
    path.write_text('{"n": 1')
    with pytest.raises(WorkerError, match="not readable as JSON"):
        fs.read_json(str(path))
    path.unlink()
    path.symlink_to("/etc/hostname")
    with pytest.raises(WorkerError, match="symbolic link"):
        fs.read_json(str(path))


def test_the_heartbeat_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    path = str(tmp_path / "heartbeat")
    assert record.read_heartbeat(path) is None
    heart = record.HeartbeatFile(path)
    beat = record.Heartbeat(12.5, 0.0, 3, 2, 8)
    heart.write(beat)
    heart.close()
    assert record.read_heartbeat(path) == beat
    blob = bytearray(Path(path).read_bytes())
    assert len(blob) == 36
    blob[3] ^= 1
    Path(path).write_bytes(blob)
    assert record.read_heartbeat(path) is None


def test_a_record_that_changes_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the room of the reserve. The next write with room on the disk fills the reserve again."""
    path, reserve = str(tmp_path / "agreed.json"), str(tmp_path / "agreed.reserve")
    record.replace(path, {"n": 1}, reserve)
    assert os.stat(reserve).st_size == limits.RESERVE_BYTES

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(fs, "_write_draft", full)
        patch.setattr(os, "posix_fallocate", full)
        record.replace(path, {"n": 2}, reserve)
        assert fs.read_json(path) == {"n": 2}
        with pytest.raises(OSError, match="No space"):
            record.replace(path, {"n": 3}, reserve)
    assert fs.read_json(path) == {"n": 2}
    record.replace(path, {"n": 4}, reserve)
    assert fs.read_json(path) == {"n": 4}
    assert os.stat(reserve).st_size == limits.RESERVE_BYTES
    assert sorted(os.listdir(tmp_path)) == ["agreed.json", "agreed.reserve"]


@pytest.mark.parametrize("links", [True, False])
def test_the_reserve_takes_the_exit_record_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """With and without hard links. The first record stays, and a disk that takes no name keeps the reserve."""
    paths = RunPaths(str(tmp_path))
    record.make_reserve(paths.reserve)
    size = os.stat(paths.reserve).st_size

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def refuse(*_: object) -> None:
        raise PermissionError(1, "no hard links here")

    monkeypatch.setattr(fs, "_write_draft", full)
    if not links:
        monkeypatch.setattr(os, "link", refuse)
    with monkeypatch.context() as patch:
        patch.setattr(os, "link" if links else "mkdir", full)
        with pytest.raises(OSError, match="No space"):
            record.save(paths, {"state": "failed"})
    assert os.listdir(tmp_path) == ["reserve"]
    assert record.save(paths, {"state": "failed"})
    assert fs.read_json(paths.exit) == {"state": "failed"}
    record.make_reserve(paths.reserve, size)
    record.save(paths, {"state": "lost"})
    assert fs.read_json(paths.exit) == {"state": "failed"}
    assert sorted(os.listdir(tmp_path)) == ["exit.json", *([] if links else ["exit.json.claim"])]


KILLED_ON_A_FULL_DISK = f"""{KILLED_AT_A_CALL}
import errno
from ddpctl_worker.machine import fs
from ddpctl_worker.record import record
from ddpctl_worker.record.paths import RunPaths

def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")

fs._write_draft = full
if sys.argv[3] == "False":
    os.link = refuse
for name in ("rename", "mkdir", "open", "link", "unlink"):
    setattr(os, name, counted(getattr(os, name)))
record.save(RunPaths(sys.argv[1]), {{"state": "failed"}})
"""


@pytest.mark.parametrize("links", [True, False])
def test_a_writer_that_is_killed_on_a_full_disk_leaves_the_record_or_its_room_to_the_next_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """With and without hard links. The disk is full until a reserve is removed."""
    draft, found = fs._write_draft, set()

    def full(path: str, *args: Any) -> str:
        if any(name.startswith("reserve") for name in os.listdir(os.path.dirname(path))):
            raise OSError(errno.ENOSPC, "No space left on device")
        return draft(path, *args)

    def refuse(*_: object) -> None:
        raise PermissionError(1, "no hard links here")

    monkeypatch.setattr(fs, "_write_draft", full)
    if not links:
        monkeypatch.setattr(os, "link", refuse)
    for step in itertools.count(1):
        paths = RunPaths(str(tmp_path / str(step)))
        os.mkdir(paths.top)
        record.make_reserve(paths.reserve)
        command = [sys.executable, "-S", "-c", KILLED_ON_A_FULL_DISK, paths.top, str(step), str(links)]
        died = subprocess.run(command).returncode
        if died == 0:
            break
        assert died == -signal.SIGKILL
        assert record.ExitWriter(paths).wrote(lambda: {"state": "lost"})
        first = fs.read_json(paths.exit)
        assert first in ({"state": "failed"}, {"state": "lost"})
        found.add(first["state"])
        assert record.ExitWriter(paths).wrote(lambda: {"state": "killed"})
        assert fs.read_json(paths.exit) == first
    assert found == {"failed", "lost"}


def test_the_reserve_of_a_living_writer_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes the record into these bytes now. Files of the script stay, too."""
    paths = RunPaths(str(tmp_path))
    names = {f"reserve.{os.getpid()}.0a1b2c3d", "reserve.txt", "reserve.\u00b2.0a1b2c3d"}
    for name in names:
        (tmp_path / name).touch()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fs, "_write_draft", full)
    with pytest.raises(OSError, match="No space"):
        record.save(paths, {"state": "lost"})
    assert set(os.listdir(tmp_path)) == names


def test_an_error_of_the_disk_at_the_last_rename_leaves_the_record_to_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without hard links, on a full disk."""
    paths, rename = RunPaths(str(tmp_path)), os.rename
    record.make_reserve(paths.reserve)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def refuse(*_: object) -> None:
        raise PermissionError(1, "no hard links here")

    def fail(old: str, new: str) -> None:
        if new == paths.exit and os.path.exists(old):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(old, new)

    monkeypatch.setattr(fs, "_write_draft", full)
    monkeypatch.setattr(os, "link", refuse)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fail)
        for _ in range(2):
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                record.save(paths, {"state": "failed"})
    assert not record.save(paths, {"state": "lost"})
    assert fs.read_json(paths.exit) == {"state": "failed"}


@pytest.mark.parametrize("fault", [errno.ESTALE, errno.EIO, errno.EACCES])
def test_a_folder_that_cannot_be_read_was_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: int
) -> None:
    """The end is recorded once the disk is back. Only a folder that is really gone needs no record."""
    paths, end = RunPaths(str(tmp_path / "run")), {"state": "failed"}
    os.mkdir(paths.node)
    writer = record.ExitWriter(paths)
    writer.gone = 0.0
    with monkeypatch.context() as patch:
        for name in ("stat", "open"):
            patch.setattr(os, name, _failing(getattr(os, name), paths.node, fault))
        assert not writer.wrote(lambda: end)
        assert not writer.wrote(lambda: end)
    assert writer.wrote(lambda: end)
    assert fs.read_json(paths.exit) == end
    shutil.rmtree(paths.node)
    assert writer.wrote(lambda: end)
    assert not os.path.exists(paths.node)


def test_a_folder_must_be_away_without_a_break_to_count_as_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that answers with an error says nothing about the folder, so the time begins again."""
    paths = RunPaths(str(tmp_path / "run"))
    writer = record.ExitWriter(paths)
    writer.gone = 0.5
    assert not writer.wrote(dict)
    time.sleep(0.6)
    with monkeypatch.context() as patch:
        for name in ("stat", "open"):
            patch.setattr(os, name, _failing(getattr(os, name), paths.node, errno.ESTALE))
        assert not writer.wrote(dict)
    assert not writer.wrote(dict)
    time.sleep(0.6)
    assert writer.wrote(dict)


def _failing(call: Callable[..., Any], folder: str, fault: int) -> Callable[..., Any]:
    """``call`` fails for every path in ``folder``."""

    def fail(path: Any, *args: Any, **options: Any) -> Any:
        if str(path).startswith(folder):
            raise OSError(fault, os.strerror(fault))
        return call(path, *args, **options)

    return fail


def test_folders_of_the_script_are_no_attempts(tmp_path: Path) -> None:
    for name in ("1", "2", "10", "0", "03", "\u00b2", "\u0664", "best", "5.old"):
        (tmp_path / "attempts" / name).mkdir(parents=True)
    assert [paths.attempt for paths in RunPaths(str(tmp_path)).attempts()] == [1, 2, 10]


def test_status_fields(node: Node) -> None:
    run = node.start(SLEEP)
    status = node.wait_state(run, "running")
    assert status["ranks"] == [0, 1]
    assert status["attempt"] == 1
    eventually(lambda: node.status(run)["heartbeat_age_s"] < 5, "a fresh heartbeat")
    assert status["pid"] == node.pid(run, "launcher")
    assert status["record"]["run"] == run
    assert (status["cause"], status["exit_code"], status["ended"]) == (None, None, None)
    eventually(lambda: node.status(run)["last_output_age_s"] is not None, "output is noticed", pause=0.25)


def test_runs_are_listed_newest_first_and_only_of_this_host(node: Node, make_node: object) -> None:
    assert callable(make_node)
    other = make_node("node9")
    ids = [f"r{number}-{os.getpid()}" for number in (1, 2, 3)]  # no other test's runs have them
    first = node.start("print(1)", node.record(ids[0], created="2026-01-01T00:00:00Z"))
    node.wait_state(first)
    second = node.start(SLEEP, node.record(ids[1], created="2026-01-02T00:00:00Z", job="other"))
    third = node.start("print(1)", node.record(ids[2], created="2026-01-03T00:00:00Z"))
    node.wait_state(third)
    assert [one["run"] for one in node.call("status", all=True)["runs"]] == [third, second, first]
    assert [one["run"] for one in node.call("status")["runs"]] == [third, second]
    assert [one["run"] for one in node.call("status", job="job", all=True)["runs"]] == [third, first]
    assert [one["run"] for one in node.call("status", job=ids[0], all=True)["runs"]] == [first]
    assert other.call("status", all=True)["runs"] == []
    assert node.call("status", run="nothing")["runs"] == []


def test_a_hanging_supervisor_is_stale_and_can_be_stopped(node: Node) -> None:
    shorten(node, "record/limits.py", STALE_S=4.0)
    run = node.start(SLEEP)
    here(node, run)
    pid = node.pid(run, "supervisor")
    os.kill(pid, signal.SIGSTOP)
    try:
        status = node.wait_state(run, "stale", seconds=60)
        assert status["heartbeat_age_s"] > 3.9
        answer = node.call("stop", run=run, grace=0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    assert answer["survivors"] == []
    assert answer["status"]["state"] in ("killed", "lost")


def test_a_run_with_a_spoilt_state_can_be_stopped(node: Node) -> None:
    run = node.start(SLEEP)
    here(node, run)
    (node.folder(run) / "state.json").write_text("{")
    answer = node.call("stop", run=run, grace=5)
    assert (answer["status"]["state"], answer["survivors"]) == ("killed", [])


@pytest.mark.parametrize("spoilt", ["exit.json", "state.json", "run.json"])
def test_a_spoilt_record_hides_no_other_run(node: Node, spoilt: str) -> None:
    old = node.start("print(1)", node.record(f"old-{os.getpid()}", created="2026-01-01T00:00:00Z"))
    node.wait_state(old)
    watchers_end(node, old)
    run = node.start(SLEEP)
    if spoilt == "state.json":
        (node.folder(old) / "exit.json").unlink()
    (node.folder(old) / spoilt).write_text("{")
    found = {one["run"]: one for one in node.call("status", all=True)["runs"]}
    assert found[run]["state"] in ("starting", "running")
    if spoilt != "run.json":
        assert found[old]["state"] == "stale"
        assert spoilt in found[old]["cause"]["message"]
    (node.folder(old) / spoilt).write_text("{}")
    node.started.remove(old)
