"""Readers judge and write nothing, and what a power cut leaves of the lesser records hides no end."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.machine import proc, processes
from ddpctl_worker.record import status
from ddpctl_worker.record.paths import RunPaths
from ddpctl_worker.store.blobs import blob_path
from ddpctl_worker.wire.contract import TERMINAL
from tests.worker.node import WORKER, Node, Stream, eventually, processes_of
from tests.worker.programs import SLEEP, beats, here, watchers_end

CODE = "import sys; sys.path.insert(0, sys.argv[1]); from ddpctl_worker.__main__ import main; main()"
OPTIONAL = ("state.json", "processes.json", "claim.json", "stop.json", "heartbeat")


def records(node: Node, run: str) -> dict[str, bytes]:
    """Every record of the run, byte for byte, except the records that a live run continues to write."""
    live = ("heartbeat", "supervisor.log", "processes.json")
    found = (path for path in node.folder(run).iterdir() if path.is_file() and not path.name.startswith(live))
    return {path.name: path.read_bytes() for path in found}


class Elsewhere:
    """The verbs as another boot or another machine sees the same base_dir: real workers in their own namespaces."""

    def __init__(self, node: Node, boot: Path) -> None:
        if os.geteuid() != 0:
            pytest.skip("another boot_id and host name need root")
        self.node = node
        self.boot = boot
        self.boot.write_text("00000000-1111-2222-3333-444444444444\n")
        self.name: str | None = None
        self.new_pids = False

    def ask(self, verb: str, **request: Any) -> dict[str, Any]:
        body = {"verb": verb, "host": self.node.host, "base_dir": str(self.node.base), **request}
        setting = "" if self.name is None else f"hostname {self.name} && "
        setting += 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'
        flags = ["--mount", "--uts", *(["--pid", "--fork", "--mount-proc"] if self.new_pids else [])]
        argv = ["unshare", *flags, "sh", "-c", setting, str(self.boot), sys.executable, "-I", "-c", CODE, WORKER]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(json.dumps(body).encode() + b"\n")
        process.stdin.flush()
        return Stream(process).last()

    def status(self, run: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("status", run=run)["result"]["runs"][0]
        return found


@pytest.fixture
def elsewhere(node: Node, tmp_path: Path) -> Elsewhere:
    return Elsewhere(node, tmp_path / "boot_id")


def power_off(node: Node, run: str) -> None:
    """Leave the run as ten minutes after a power cut: no process is left, and no process had time to write."""
    for who in ("guardian", "supervisor"):
        os.kill(node.pid(run, who), signal.SIGSTOP)
    for pid in processes_of(run):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    eventually(lambda: not processes_of(run), "all of it is gone")
    for name in ("heartbeat", "state.json"):
        os.utime(node.folder(run) / name, (time.time() - 600,) * 2)


@pytest.mark.parametrize("kind", ["another name", "a clone", "another container"])
def test_another_machine_s_live_run_is_unreachable_there_and_lives_on(
    node: Node, elsewhere: Elsewhere, kind: str
) -> None:
    """base_dir is a shared home and the host's address leads to another machine now. A clone has the same machine id
    and name; containers of the same machine have the same boot."""
    run = node.start(SLEEP)
    here(node, run)
    node.wait_state(run, "running")
    elsewhere.name = None if kind == "a clone" else "another"
    if kind == "another container":
        elsewhere.boot.write_text(proc.boot_id() + "\n")
        elsewhere.new_pids = True
    before = records(node, run)
    for _ in range(2):
        found = elsewhere.status(run)
        assert (found["state"], found["cause"]) == ("unreachable", None)
        assert ("was restarted just now" if kind == "a clone" else "was started on") in found["note"]
    listed = elsewhere.ask("status", all=True)["result"]["runs"]
    assert [(one["run"], one["state"]) for one in listed] == [(run, "unreachable")]
    assert elsewhere.ask("tail", run=run)["result"]["state"] == "unreachable"
    for verb in ("stop", "tail"):
        refused = elsewhere.ask(verb, run=run, grace=0, follow=True)["error"]
        assert refused["kind"] == "other_machine"
        assert os.uname().nodename.partition(".")[0] in refused["message"]
        assert "address" in refused["hint"]
    elsewhere.ask("gc", days=0, delete=True)
    elsewhere.ask("fetch", run=run)
    assert records(node, run) == before
    beats(node, run)  # it looks whether another process has declared it over
    assert node.status(run)["state"] == "running"
    here(node, run)


@pytest.mark.parametrize("kind", ["reboot", "restarted container"])
def test_a_reboot_is_told_the_same_each_time_and_written_by_a_stop_alone(
    node: Node, elsewhere: Elsewhere, kind: str
) -> None:
    run = node.start(SLEEP)
    here(node, run)
    power_off(node, run)
    if kind == "restarted container":
        elsewhere.boot.write_text(proc.boot_id() + "\n")
        elsewhere.new_pids = True
    before = records(node, run)
    first, second = (elsewhere.status(run) for _ in range(2))
    assert first == second
    assert first["state"] == "lost"
    assert first["cause"]["reason"] == "node_rebooted"
    assert first["cause"]["time"] == first["ended"]
    assert elsewhere.ask("tail", run=run, follow=True)["result"]["state"] == "lost"
    assert records(node, run) == before
    answer = elsewhere.ask("stop", run=run, grace=0)["result"]
    assert (answer["signalled"], answer["survivors"]) == (0, [])
    told = ("state", "cause", "ended")
    assert [answer["status"][key] for key in told] == [first[key] for key in told]
    # From now on it stands, wherever it is read.
    assert json.loads(records(node, run)["exit.json"])["ended"] == first["ended"]
    assert [node.status(run)[key] for key in told] == [first[key] for key in told]


def test_a_run_that_is_lost_is_told_the_same_each_time_and_written_by_a_stop_alone(node: Node) -> None:
    run = node.start(SLEEP)
    here(node, run)
    eventually(lambda: node.status(run)["last_output_age_s"] is not None, "the heartbeat has it", pause=0.25)
    power_off(node, run)
    before = records(node, run)
    first, second = node.status(run), node.status(run)
    assert first == second
    assert (first["state"], first["cause"]["reason"]) == ("lost", "supervisor_lost")
    assert first["ended"] is not None
    assert node.open("tail", run=run, follow=True).result()["state"] == "lost"
    assert records(node, run) == before
    told = ("state", "cause", "ended")
    stopped = node.call("stop", run=run, grace=0)["status"]
    assert [stopped[key] for key in told] == [first[key] for key in told]
    assert (node.folder(run) / "exit.json").exists()


def test_a_start_that_broke_off_is_told_the_same_each_time(node: Node) -> None:
    """The starting worker is killed before it had a guardian; nothing is on its way any more."""
    code = {"hash": hashlib.sha256(b"code").hexdigest()}
    archive = Path(blob_path(str(node.base), code["hash"]))
    archive.parent.mkdir(mode=0o700, parents=True)
    os.mkfifo(archive)  # a start waits here, with its claim on disk, until a process writes
    request = node.request(SLEEP, node.record(code=code))
    run = request["run"]["run"]
    node.started.append(run)
    stream = node.open("start", **request)
    eventually((node.folder(run) / "run.json").exists, "the start is under way")
    stream.process.kill()
    stream.hang_up()
    eventually(lambda: node.status(run)["state"] != "starting", "it is decided")
    assert "supervisor" not in node.state(run)
    before = records(node, run)
    first, second = node.status(run), node.status(run)
    assert first == second
    assert (first["state"], first["cause"]["reason"]) == ("failed", "spawn_failed")
    assert records(node, run) == before
    assert node.call("stop", run=run, grace=0)["status"]["cause"] == first["cause"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = (
    "boot",
    "machine",
    "state",
    "starter",
    "supervisor",
    "guardian",
    "launcher",
    "cookie",
    "started",
    "ranks",
    "tree",
)
SPOILT = st.binary(max_size=64) | st.dictionaries(st.sampled_from(KEYS), JSON).map(lambda one: json.dumps(one).encode())


@contextlib.contextmanager
def record_of(end: str | None) -> Iterator[RunPaths]:
    """A run of this very process: it is alive. With ``end`` it is over."""
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base, "run-1", "node0")
        folder.mkdir(parents=True)
        me = processes.identify(os.getpid())
        assert me is not None
        who = {name: me.to_json() for name in ("supervisor", "guardian", "launcher")}
        state = {"state": "running", "boot": me.boot, "machine": proc.machine(), "started": "x", **who}
        (folder / "run.json").write_text(json.dumps({"run": "run-1", "host": "node0", "job": "j", "node_rank": 0}))
        (folder / "state.json").write_text(json.dumps(state))
        if end is not None:
            (folder / "exit.json").write_text(json.dumps({"state": end, "exit_code": 0, "ended": "then"}))
        yield RunPaths(str(folder))


@pytest.mark.slow  # each example writes a record to the disk
@given(st.dictionaries(st.sampled_from(OPTIONAL), SPOILT, min_size=1), st.sampled_from(sorted(TERMINAL)))
def test_whatever_is_in_the_lesser_records_an_ended_run_reads_as_ended(spoilt: dict[str, bytes], end: str) -> None:
    with record_of(end) as paths:
        for name, blob in spoilt.items():
            Path(paths.node, name).write_bytes(blob)
        found = status.node_status(paths)
        assert (found["state"], found["ended"]) == (end, "then")


@pytest.mark.slow  # each example writes a record to the disk
@given(st.dictionaries(st.sampled_from(OPTIONAL), SPOILT, min_size=1))
def test_whatever_is_in_the_lesser_records_a_run_that_has_not_ended_can_be_asked_for(spoilt: dict[str, bytes]) -> None:
    with record_of(None) as paths:
        for name, blob in spoilt.items():
            Path(paths.node, name).write_bytes(blob)
        found = status.node_status(paths)
        assert not os.path.exists(paths.exit)
        if "state.json" not in spoilt:
            assert found["state"] in ("running", "stale")


@pytest.mark.parametrize("name", OPTIONAL)
def test_an_ended_run_with_an_empty_record_can_be_listed_stopped_and_read(node: Node, name: str) -> None:
    """What a power cut leaves of a file that was renamed and not yet written."""
    run = node.start("print('here')")
    assert node.wait_state(run)["state"] == "succeeded"
    watchers_end(node, run)
    (node.folder(run) / name).write_bytes(b"")
    assert node.status(run)["state"] == "succeeded"
    assert [one["state"] for one in node.call("status", all=True)["runs"]] == ["succeeded"]
    answer = node.call("stop", run=run, grace=0)
    assert (answer["signalled"], answer["status"]["state"]) == (0, "succeeded")
    assert [node.text(run, rank) for rank in (0, 1)] == [b"here\n", b"here\n"]


def test_a_word_of_a_stop_that_cannot_be_read_is_a_stop_all_the_same(node: Node) -> None:
    run = node.start(SLEEP)
    here(node, run)
    (node.folder(run) / "stop.json").write_bytes(b"")
    os.kill(node.pid(run, "supervisor"), signal.SIGUSR1)
    assert node.wait_state(run)["state"] == "killed"
