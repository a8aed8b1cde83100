"""Checkpoints of real runs: the keeper finds them, and commands list, fetch and move them without a live run."""

from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.checkpoint import manifest
from ddpctl_worker.record import paths
from ddpctl_worker.run import keeping
from ddpctl_worker.run.start import _keeper
from ddpctl_worker.wire import contract
from tests.worker.checkpoints import JOB, OF_JOB
from tests.worker.deadlines import shorten
from tests.worker.node import Node, eventually

SETTINGS = {"paths": [], "signal": "SIGUSR1", "timeout": 120.0, "replicas": 1, "keep": 3}
FOLDER = {
    "env": {contract.ENV_CHECKPOINT_DIR: contract.CHECKPOINT_DIR_TOKEN},
    "token_env": [contract.ENV_CHECKPOINT_DIR],
}
SAVE = """
import os, sys, time
folder = os.environ["DDPCTL_CHECKPOINT_DIR"]
if os.environ["RANK"] == "0":
    with open(folder + "/model.bin.tmp", "wb") as file:
        file.write(b"weights")
    os.replace(folder + "/model.bin.tmp", folder + "/model.bin")
"""


def start(node: Node, script: str, *, outputs: list[str] | None = None, **settings: Any) -> str:
    record = node.record(checkpoint={**SETTINGS, **settings}, outputs=outputs or [])
    return node.start(script, record, **FOLDER)


def known(node: Node) -> list[str]:
    return [one["entry"] for one in node.call("checkpoints", job_id=JOB)["manifests"]]


def test_what_is_written_right_before_the_end_is_known(node: Node) -> None:
    run = start(node, SAVE)
    assert node.wait_state(run)["state"] == "succeeded"
    answer = node.call("checkpoints", job_id=JOB)
    assert answer["unknown"] == []
    (one,) = answer["manifests"]
    digest = hashlib.sha256(b"weights").hexdigest()
    assert (one["entry"], one["host"], one["files"][""]["sha256"]) == ("model.bin", node.host, digest)


def test_checkpoints_of_a_live_run_are_not_set_aside(node: Node) -> None:
    """Another controller has started it since ``up --fresh`` looked for live runs."""
    run = start(node, SAVE + "time.sleep(600)\n")
    eventually(lambda: known(node) == ["model.bin"], "a manifest is written")
    assert node.call("set_aside", job_id="lab/exp/other", when="20260102T030405Z") == {"name": None}
    refused = node.open("set_aside", job_id=JOB, when="20260102T030405Z").last()["error"]
    assert (refused["kind"], refused["message"]) == (contract.LIVE, f"run {run} is live here")
    assert refused["hint"] == f"ddpctl kill {run}, or start without --fresh"
    assert known(node) == ["model.bin"]
    node.call("stop", run=run, grace=1, by="me")
    assert node.wait_state(run)["state"] == "killed"
    assert node.call("set_aside", job_id=JOB, when="20260102T030405Z") == {"name": "job@20260102T030405Z"}
    assert known(node) == []


def test_it_is_known_while_the_ranks_run_on(node: Node) -> None:
    run = start(node, SAVE + "time.sleep(600)\n")
    eventually(lambda: known(node) == ["model.bin"], "a manifest is written")
    node.call("stop", run=run, grace=1, by="me")
    assert node.wait_state(run)["state"] == "killed"
    assert known(node) == ["model.bin"]


def test_a_writer_that_was_killed_leaves_nothing_that_counts(node: Node) -> None:
    script = SAVE.replace('"/model.bin.tmp", "wb"', '"/model.bin", "wb"').split("    os.replace")[0]
    run = start(node, script + "        file.flush(); os.kill(os.getppid(), 9); os.kill(os.getpid(), 9)\n")
    assert node.wait_state(run)["state"] == "failed"
    answer = node.call("checkpoints", job_id=JOB)
    assert answer["manifests"] == []
    assert [one["entry"] for one in answer["unknown"]] == ["model.bin"]


LONG_SAVE = (
    SAVE.split("    with open")[0]
    + """
    with open(folder + "/model.bin", "wb") as file:
        print("saves", flush=True)
        while True:
            file.write(b"weights")
            file.flush()
            time.sleep(0.05)
"""
)


def test_a_kill_during_a_long_save_names_the_file(node: Node) -> None:
    shorten(node, "run/limits.py", KILLED_KEEPER_LOOK_S=60.0)  # a keeper without a processor finds the file late
    run = start(node, LONG_SAVE)
    eventually(lambda: [one["entry"] for one in node.call("checkpoints", job_id=JOB)["unknown"]], "the save has begun")
    node.call("stop", run=run, grace=1, by="me")
    status = node.wait_state(run)
    (file,) = status["unfinished"]
    assert (status["state"], file["path"]) == ("killed", "model.bin")
    assert file["bytes"] > 0


def test_a_killed_keeper_ends_no_run(node: Node) -> None:
    go_on = node.scratch / "go-on"
    wait = f"import os, time\nwhile not os.path.exists({str(go_on)!r}): time.sleep(0.05)\n"
    run = start(node, wait + SAVE)
    node.wait_state(run, "running")
    (keeper,) = eventually(lambda: keepers(node), "there is a keeper")
    assert node.status(run)["keeper_ended"] is None
    os.kill(keeper, signal.SIGKILL)
    said = eventually(lambda: node.status(run)["keeper_ended"], "the status says so")
    go_on.touch()
    end = node.wait_state(run)
    assert (end["state"], end["keeper_ended"]) == ("succeeded", said)
    assert keepers(node) == []
    assert known(node) == [], "the next run's keeper finds it"


def test_a_keeper_leaves_the_processors_to_the_ranks(node: Node) -> None:
    run = start(node, SAVE + "time.sleep(600)\n")
    eventually(lambda: known(node) == ["model.bin"], "a manifest is written")
    (keeper,) = keepers(node)
    threads = [int(path.name) for path in Path(f"/proc/{keeper}/task").iterdir()]
    assert 19 in [os.getpriority(os.PRIO_PROCESS, thread) for thread in threads]
    node.call("stop", run=run, grace=1, by="me")


def test_a_keeper_ends_with_its_supervisor(node: Node) -> None:
    run = start(node, SAVE + "time.sleep(600)\n")
    node.wait_state(run, "running")
    (keeper,) = eventually(lambda: keepers(node), "there is a keeper")
    os.kill(int(Path(f"/proc/{keeper}/stat").read_text().rsplit(")", 1)[1].split()[1]), signal.SIGKILL)
    assert node.wait_state(run)["state"] == "lost"
    eventually(lambda: not Path(f"/proc/{keeper}").exists(), "it has ended")


def begun(folder: Path) -> tuple[keeping.KeeperHandle, int]:
    order: dict[str, Any] = {"folder": str(folder), "host": "node0", "keep": 3, "outputs": [], "timeout": 120.0}
    order.update(serial=1, run="r", attempt=1, lag=str(folder.parent / "saved.json"))
    one = keeping.KeeperHandle(order, str(folder))
    one.start()
    return one, one.pids()[0]


@pytest.mark.slow
def test_after_a_success_what_takes_long_to_hash_is_hashed_after_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "job" / "node0"
    (folder / "final").mkdir(parents=True)
    one, pid = begun(folder)
    (folder / "final" / "weights.bin").write_bytes(b"weights")
    os.kill(pid, signal.SIGSTOP)
    assert not one.settled(succeeded=True, linger=True, seconds=0.2)
    eventually(lambda: one.settled(succeeded=True, linger=True, seconds=0.2), "the run ends")
    assert one.stuck() == [pid], "it is not waited for"
    one._process.stdin.close()  # type: ignore[union-attr]  # as when the supervisor ends
    one._process.stdout.close()  # type: ignore[union-attr]
    os.kill(pid, signal.SIGCONT)
    assert os.waitpid(pid, 0)[1] == 0
    assert [found["entry"] for found in manifest.read_all(str(folder))] == ["final"]


@pytest.mark.slow
def test_a_keeper_that_cannot_end_is_waited_for_only_for_a_while(tmp_path: Path) -> None:
    one, pid = begun(tmp_path)
    os.kill(pid, signal.SIGSTOP)
    assert not one.settled(succeeded=True, seconds=0.2)
    eventually(lambda: one.settled(succeeded=True, seconds=0.2), "it is given up")
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    one.ended(pid)
    assert one.pids() == []


def keepers(node: Node) -> list[int]:
    """Return the pids of the keepers below this test's supervisors."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, rest = stat.read_text().split("(", 1)[1].rsplit(")", 1)
            parent = int(rest.split()[1])
            said = Path(f"/proc/{parent}/fd/2").readlink()
        except OSError:
            continue
        if name == "ddpctl-keeper" and str(said).startswith(str(node.base)) and rest.split()[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def test_no_more_are_kept_than_asked_for(node: Node) -> None:
    script = (
        SAVE + "    for step in range(1, 6):\n        os.link(folder + '/model.bin', folder + '/step_%d.bin' % step)\n"
    )
    script += "        os.utime(folder + '/step_%d.bin' % step, (time.time() + step, time.time() + step))\n"
    script = script.replace("os.link(", "__import__('shutil').copy(")
    node.wait_state(start(node, script, keep=2))
    assert sorted(known(node)) == ["model.bin", "step_4.bin", "step_5.bin"]


UNMODIFIED = """
import os, sys
if os.environ["RANK"] == "0":
    epoch = 0
    os.makedirs("saved_models", exist_ok=True)
    if os.path.exists("saved_models/snapshot.pt"):
        with open("saved_models/snapshot.pt") as file:
            epoch = int(file.read())
    print("starts after", epoch, flush=True)
    for epoch in range(epoch + 1, epoch + 3):
        with open("snapshot.tmp", "w") as file:
            file.write(str(epoch))
        os.replace("snapshot.tmp", "saved_models/snapshot.pt")
        with open("saved_models/best.bin", "w") as file:
            file.write("best of %d" % epoch)
"""


def test_an_unmodified_script_finds_its_files_in_the_next_run(node: Node) -> None:
    for after in (0, 2):
        code = node.scratch / f"code{after}"
        code.mkdir()
        record = node.record(checkpoint={**SETTINGS, "paths": ["saved_models"]}, outputs=["saved_models"])
        run = node.start(UNMODIFIED, record, cwd=str(code), **FOLDER)
        assert node.wait_state(run)["state"] == "succeeded"
        stream = node.open("tail", run=run)
        stream.result()
        assert f"starts after {after}" in [line["text"] for line in stream.lines]
        assert sorted(known(node)) == ["saved_models"]
        stream = node.open("fetch", run=run)
        assert stream.result()["missing"] == []
        names = [frame["file"]["path"] for frame in stream.frames if "file" in frame]
        assert {"outputs/saved_models/best.bin", "outputs/saved_models/snapshot.pt"} <= set(names)


def test_a_path_that_cannot_be_kept_is_why_the_run_does_not_start(node: Node) -> None:
    code = node.scratch / "code"
    code.mkdir()
    (code / "saved_models").symlink_to(node.scratch)
    record = node.record(checkpoint={**SETTINGS, "paths": ["saved_models"]})
    status = node.call("start", **node.request(UNMODIFIED, record, cwd=str(code), **FOLDER))["status"]
    assert status["state"] == "failed"
    assert "saved_models is a symbolic link in the code" in status["cause"]["message"]


def test_files_are_sent_as_their_manifest_says(node: Node) -> None:
    node.wait_state(start(node, SAVE))
    (one,) = node.call("checkpoints", job_id=JOB)["manifests"]
    asked = {"job_id": JOB, "writer": node.host, "entry": "model.bin", "version": one["version"], "paths": [""]}
    stream = node.open("fetch_checkpoint", **asked)
    stream.result()
    assert [frame["file"]["path"] for frame in stream.frames if "file" in frame] == ["model.bin"]
    assert b"".join(stream.raw) == b"weights"
    stream = node.open("fetch_checkpoint", **{**asked, "version": "0" * 32})
    assert stream.last()["error"]["kind"] == contract.NO_SUCH_CHECKPOINT


def test_what_is_set_aside_is_not_deleted_and_not_listed(node: Node) -> None:
    node.wait_state(start(node, SAVE))
    assert node.call("set_aside", job_id=JOB, when="20260102T030405Z") == {"name": "job@20260102T030405Z"}
    assert node.call("set_aside", job_id=JOB, when="20260102T030405Z") == {"name": "job@20260102T030405Z"}, "shared"
    assert node.call("set_aside", job_id=JOB, when="20260102T030406Z") == {"name": None}
    assert known(node) == []
    assert (node.base / "checkpoints" / f"{JOB}@20260102T030405Z" / node.host / "model.bin").read_bytes() == b"weights"
    node.call("gc", days=0, delete=True)
    assert (node.base / "checkpoints" / f"{JOB}@20260102T030405Z" / node.host / "model.bin").exists()


@pytest.mark.parametrize(
    "bad",
    [{"job_id": "../../x"}, {"job_id": ""}, {"job_id": "a/b"}, {"job_id": "a/b/c/d"}, {"job_id": JOB, "when": "../x"}],
)
def test_a_name_leads_nowhere_else(node: Node, bad: dict[str, str]) -> None:
    asked = {"when": "20260102T030405Z", **bad}
    assert node.open("set_aside", **asked).last()["error"]["kind"] == contract.BAD_REQUEST


def test_a_benchmarks_run_has_no_keeper(node: Node) -> None:
    record = node.record(checkpoint=SETTINGS)
    folder = {**FOLDER, "env": {contract.ENV_CHECKPOINT_DIR: f"{contract.RUN_DIR_TOKEN}/checkpoints"}}
    run = node.start(SAVE + "time.sleep(600)\n", record, **folder)
    node.wait_state(run, "running")
    assert keepers(node) == []


@pytest.mark.parametrize("replicas", [0, 1])
def test_without_replicas_nothing_is_copied_while_the_run_is_live(tmp_path: Path, replicas: int) -> None:
    """The hosts have addresses and certificates all the same, because a later attempt needs them when it begins."""
    run: Any = {**OF_JOB, "run": "r", "host": "a", "hosts": ["a", "b"]}
    run |= {"serial": 1, "attempt": 1, "outputs": [], "gang": {"port": 1, "bind_addr": "10.0.0.1"}}
    run["checkpoint"] = {**SETTINGS, "replicas": replicas}
    folder = paths.checkpoint_dir(str(tmp_path), JOB, "a")
    os.makedirs(folder)
    pem = {"certificate": "c", "key": "k"}
    order, refused = _keeper(run, str(tmp_path), folder, str(tmp_path), False, pem)
    assert refused is None
    assert order is not None
    assert order.get("copying", {}).get("address") == ("10.0.0.1" if replicas else None)
