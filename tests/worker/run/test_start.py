"""The environment, folders and code that a start gives the job, and the starts that are refused."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import stat
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.record.paths import RunPaths
from ddpctl_worker.run.launcher import has_way_in, make_shim
from tests.worker.node import Node, eventually
from tests.worker.programs import watchers_end

DUMP = """
import json, os, sys
mask = os.umask(0)
with open("/proc/self/stat") as stat:
    session = int(stat.read().rpartition(")")[2].split()[3])
json.dump({
    "env": dict(os.environ), "cwd": os.getcwd(), "argv": sys.argv, "umask": mask, "python": sys.executable,
    "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd")), "session": session == os.getsid(0),
    "oom": open("/proc/self/oom_score_adj").read().strip(), "stdin": os.read(0, 10).decode(),
}, sys.stdout)
"""


def dumped(node: Node, run: str) -> dict[str, Any]:
    assert node.wait_state(run)["state"] == "succeeded", node.lines(run)
    found: dict[str, Any] = json.loads(node.text(run, node.status(run)["ranks"][0]))
    return found


def test_environment(node: Node) -> None:
    node.env.update(RANK="7", WORLD_SIZE="9", PET_NNODES="3", TORCHELASTIC_RUN_ID="x", MASTER_ADDR="no", DDPCTL_X="y")
    node.env.update(KEPT="käpt", SSH_CONNECTION="1 2 3 4")
    run = node.start(
        DUMP,
        env={"PLAN": "{run_dir}/is text", "PATHS": "{code_dir}/lib:/x", "OUT": "{output_dir}", "LIKE": "{output_dir}x"},
        token_env=["PATHS", "OUT", "LIKE"],
        secrets={"TOKEN": "s3cret value"},
    )
    seen = dumped(node, run)
    env, folder = seen["env"], str(node.folder(run))
    assert env["KEPT"] == "käpt"
    assert env["RANK"] == "0"
    for name in ("WORLD_SIZE", "PET_NNODES", "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "DDPCTL_X", "SSH_CONNECTION"):
        assert name not in env
    assert env["PLAN"] == "{run_dir}/is text"
    assert env["PATHS"] == f"{folder}/code/lib:/x"
    assert env["OUT"] == f"{folder}/output"
    assert env["LIKE"] == "{output_dir}x"
    assert env["TOKEN"] == "s3cret value"
    assert (env["DDPCTL_JOB"], env["DDPCTL_RUN"], env["DDPCTL_RUN_DIR"]) == ("job", run, folder)
    assert env["DDPCTL_OUTPUT_DIR"] == f"{folder}/output"
    assert env["DDPCTL_HOST"] == node.host
    assert env["DDPCTL_METRICS"] == f"{folder}/metrics/rank-0.jsonl"
    assert "PYTHON_EXEC" not in env  # the pipes' shim leaves no trace in the rank
    assert seen["cwd"] == str(node.scratch)


def test_the_login_s_locale_is_left_alone(node: Node) -> None:
    """Python itself turns LC_CTYPE=C into C.UTF-8, in its own environment: the launcher must not inherit that."""
    for name in ("LANG", "LC_ALL"):
        node.env.pop(name, None)
    node.env["LC_CTYPE"] = "C"
    run = node.start("", argv=["/usr/bin/env"])
    node.wait_state(run)
    assert b"\nLC_CTYPE=C\n" in b"\n" + node.text(run, None)


def test_a_rank_starts_as_if_by_hand(node: Node) -> None:
    previous = os.umask(0o027)
    try:
        run = node.start(DUMP)
    finally:
        os.umask(previous)
    seen = dumped(node, run)
    assert seen["umask"] == 0o027
    assert seen["fds"] in ([0, 1, 2, 3], [0, 1, 2, 3, 4])  # 3 is the listing itself
    assert seen["stdin"] == ""
    with open("/proc/self/oom_score_adj", encoding="ascii") as file:
        own = int(file.read())
    assert int(seen["oom"]) in (own, own + 100)  # raised where the supervisor's cannot be lowered


def test_a_secret_is_written_nowhere(node: Node) -> None:
    run = node.start("import time; print('here', flush=True); time.sleep(300)", secrets={"TOKEN": "hunter2-sesame"})
    eventually(lambda: node.lines(run), "output")
    for path in node.base.rglob("*"):
        if path.is_file():
            with contextlib.suppress(FileNotFoundError):  # a record that is written under another name first
                assert b"hunter2-sesame" not in path.read_bytes()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            assert b"hunter2-sesame" not in (entry / "cmdline").read_bytes()
        except OSError:
            continue
    assert "hunter2-sesame" not in json.dumps(node.status(run))


def test_everything_is_private(node: Node) -> None:
    previous = os.umask(0)
    try:
        run = node.start("open('made', 'w')")
    finally:
        os.umask(previous)
    node.wait_state(run)
    watchers_end(node, run)
    for path in [node.base / "runs", *node.base.joinpath("runs").rglob("*")]:
        assert path.lstat().st_mode & 0o077 == 0, path


@pytest.mark.parametrize(
    "words", [["a b", "$(id)", ";", "'", '"', "*", "-x", "žluť", "a\nb", "", "{run_dir}/x", "${X}"]]
)
def test_arguments_arrive_byte_for_byte(node: Node, words: list[str]) -> None:
    request = node.request(DUMP)
    request["argv"] += words
    node.call("start", **request)
    assert dumped(node, request["run"]["run"])["argv"][1:] == words


def _archive(node: Node, *members: tuple[tarfile.TarInfo, bytes]) -> dict[str, Any]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    blob = buffer.getvalue()
    digest = hashlib.sha256(blob).hexdigest()
    store = node.base / "store"
    store.mkdir(parents=True, mode=0o700, exist_ok=True)
    node.base.chmod(0o700)
    (store / digest).write_bytes(blob)
    return {"hash": digest, "size": len(blob), "git_commit": None, "dirty": None}


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info


def test_code_is_unpacked_and_run_from_there(node: Node) -> None:
    code = _archive(
        node,
        (_member("pkg", tarfile.DIRTYPE, mode=0o755), b""),
        (_member("pkg/lib.py"), b"WORD = 'from the archive'"),
        (_member("tool.sh", mode=0o755), b"#!/bin/sh\n"),
        (_member("alias", tarfile.SYMTYPE, "pkg/lib.py"), b""),
    )
    script = """
import os, sys
sys.path.insert(0, os.getcwd())
from pkg import lib
print(lib.WORD, os.access("tool.sh", os.X_OK), open("alias").read()[:4])
"""
    run = node.start(script, node.record(code=code), cwd="{code_dir}")
    assert node.wait_state(run)["state"] == "succeeded"
    assert node.text(run, 0) == b"from the archive True WORD\n"


HOSTILE = {
    "absolute": [(_member("/etc/evil"), b"x")],
    "parent": [(_member("a/../../evil"), b"x")],
    "link out": [(_member("l", tarfile.SYMTYPE, "../../.."), b"")],
    "absolute link": [(_member("l", tarfile.SYMTYPE, "/etc"), b"")],
    "through a link": [(_member("l", tarfile.SYMTYPE, "sub"), b""), (_member("l/evil"), b"x")],
    "link below a link": [
        (_member("a/b/c/x", tarfile.SYMTYPE, "../../.."), b""),
        (_member("a/b/c/x/evil", tarfile.SYMTYPE, "../../../../etc/passwd"), b""),
    ],
    "link through a link": [
        (_member("a/b/x", tarfile.SYMTYPE, "../.."), b""),
        (_member("a/b/evil", tarfile.SYMTYPE, "x/../../../../etc"), b""),
    ],
    "link through a link that comes later": [
        (_member("a/b/evil", tarfile.SYMTYPE, "x/../y"), b""),
        (_member("a/b/x", tarfile.SYMTYPE, "../.."), b""),
    ],
    "hard link": [(_member("h", tarfile.LNKTYPE, "/etc/passwd"), b"")],
    "device": [(_member("d", tarfile.CHRTYPE), b"")],
    "fifo": [(_member("p", tarfile.FIFOTYPE), b"")],
    "twice": [(_member("a"), b"1"), (_member("a"), b"2")],
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_archives_are_refused(node: Node, kind: str) -> None:
    record = node.record(code=_archive(node, *HOSTILE[kind]))
    status = node.call("start", **node.request("print(1)", record, cwd="{code_dir}"))["status"]
    if kind == "through a link":
        # The folder is made first, so the link finds its place taken.
        assert not (node.folder(record["run"]) / "code" / "sub").exists()
    assert status["state"] == "failed"
    assert status["cause"]["reason"] == "spawn_failed"
    assert "code could not be unpacked" in status["cause"]["message"]
    assert not (node.folder(record["run"]) / "code").exists()
    assert not list(node.base.rglob("evil"))


def test_a_broken_archive_is_refused(node: Node) -> None:
    code = _archive(node, (_member("a"), os.urandom(100_000)))
    path = node.base / "store" / code["hash"]
    path.write_bytes(path.read_bytes()[:50_000])
    status = node.call("start", **node.request("print(1)", node.record(code=code)))["status"]
    assert status["cause"]["reason"] == "spawn_failed"


def test_code_that_was_never_sent(node: Node) -> None:
    record = node.record(code={"hash": "0" * 64, "size": 1})
    status = node.call("start", **node.request("print(1)", record))["status"]
    assert "not on this node" in status["cause"]["message"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"argv": ["/does/not/exist"]}, "cannot start /does/not/exist: No such file"),
        ({"argv": ["/etc/passwd"]}, "cannot start /etc/passwd: Permission denied"),
        ({"cwd": "/does/not/exist"}, "there is no working folder /does/not/exist"),
    ],
)
def test_what_cannot_be_started_says_why(node: Node, change: dict[str, Any], words: str) -> None:
    request = node.request("print(1)", **change)
    status = node.call("start", **request)["status"]
    assert (status["state"], status["cause"]["reason"]) == ("failed", "spawn_failed")
    assert words in status["cause"]["message"]
    again = node.call("start", **request)["status"]
    assert again["cause"] == status["cause"]


@pytest.mark.parametrize("run", ["../x", "a/b", "", ".", "..", "-x", "a\0b", None, 3])
def test_names_that_would_leave_their_folder_are_refused(node: Node, run: Any) -> None:
    record = node.record()
    record["run"] = run
    last = node.open("start", **node.request("print(1)", node.record()) | {"run": record}).last()
    assert last["error"]["kind"] == "bad_request"


@pytest.mark.parametrize("key", ["serial", "attempt", "timeouts"])
def test_a_record_that_lacks_a_key_is_refused(node: Node, key: str) -> None:
    """No default takes the place of the key: a default number could be that of another start."""
    request = node.request("print(1)")
    del request["run"][key]
    last = node.open("start", **request).last()
    assert (last["error"]["kind"], last["error"]["message"]) == ("bad_request", f"the run's record lacks {key}")
    assert not node.folder(request["run"]["run"]).exists()


def test_a_folder_of_somebody_else_or_open_to_others_is_refused(node: Node, tmp_path: Path) -> None:
    node.base.mkdir(mode=0o700)
    runs = node.base / "runs"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    runs.symlink_to(elsewhere)
    assert node.open("start", **node.request("print(1)")).last()["error"]["kind"] == "unsafe_path"
    runs.unlink()
    runs.mkdir()
    runs.chmod(0o777)
    assert node.open("start", **node.request("print(1)")).last()["error"]["kind"] == "unsafe_path"
    if os.geteuid() == 0:
        runs.chmod(0o700)
        os.chown(runs, 12345, 12345)
        assert node.open("start", **node.request("print(1)")).last()["error"]["kind"] == "unsafe_path"
    assert list(elsewhere.iterdir()) == []


HELLO = """
import os, time
os.write(1, b"hello\\n")
while not os.path.exists({go!r}):
    time.sleep(0.05)
"""


def test_a_filesystem_without_exec_still_runs_the_job(node: Node) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a noexec filesystem needs root")
    node.base.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=0700,noexec", "tmpfs", str(node.base)], check=True)
    try:
        # Both ranks share the launcher's pipe here. An unbuffered print writes its line break in a separate call, and
        # the other rank's words may come in between. HELLO writes a line in a single call, so the line stays whole.
        record = node.record(doctor={"stall": 30})
        run = node.start(HELLO.format(go=str(node.scratch / "go")), record)
        log = node.folder(run) / "supervisor.log"
        eventually(lambda: "ranks here are only seen from outside" in log.read_text(), "the supervisor says so")
        looks: list[dict[str, Any]] = []

        def looked() -> bool:
            looks[:] = node.call("doctor", run=run)["looks"]
            return len(looks) == 2

        eventually(looked, "somebody looks")
        assert [(one["rank"], "pause_s" in one) for one in looks] == [(0, True), (1, True)]  # the supervisor does
        (node.scratch / "go").touch()
        assert node.wait_state(run)["state"] == "succeeded"
        assert [(one["rank"], one["text"]) for one in node.lines(run)] == [(None, "hello")] * 2
    finally:
        eventually(
            lambda: subprocess.run(["umount", str(node.base)], stderr=subprocess.DEVNULL, check=False).returncode == 0,
            "nothing of the run holds the filesystem",
        )
        node.started.clear()


@pytest.mark.slow
def test_what_lets_the_doctor_see_the_ranks_may_fail_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank has its own pipes even if the shim cannot let the doctor see the ranks."""

    def full(*_: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def shim(name: str) -> RunPaths:
        paths = RunPaths(str(tmp_path / name))
        os.mkdir(paths.node)
        assert make_shim(paths, sys.executable, {}, 1, doctor=True)
        assert stat.S_ISFIFO(os.stat(paths.fifo(0, "out")).st_mode)
        return paths

    paths = shim("fine")
    assert has_way_in(paths)
    assert stat.S_IMODE(os.stat(paths.doctor).st_mode) == 0o700
    monkeypatch.setattr("ddpctl_worker.run.launcher.shutil.copy", full)
    assert not has_way_in(shim("full"))
    assert not has_way_in(shim("a:colon"))
    assert not has_way_in(RunPaths(str(tmp_path / "noexec")))


def test_the_channel_that_started_it_can_close(node: Node) -> None:
    """No process of the run holds a descriptor of the starting worker: an SSH channel would stay open."""
    request = node.request("import time; time.sleep(300)")
    node.started.append(request["run"]["run"])
    stream = node.open("start", **request)
    assert stream.result()["status"]["state"] in ("starting", "running")
    out = stream.process.stdout
    assert out is not None
    assert out.closed  # its reader came to the end of the pipe, which needs every writer to be gone
