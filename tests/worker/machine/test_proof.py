"""A stop answers that nothing is left only when that is so: by the run's control group, or its subreaper's children."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.machine import cgroup
from ddpctl_worker.machine.processes import Proof
from tests.worker.deadlines import shorten
from tests.worker.node import Node, Stream, eventually, processes_of
from tests.worker.programs import CHAIN, SLEEP, both_known, here, nothing_left, watchers_end


def groups() -> cgroup.ControlGroup:
    """A control group of this test's own; the test is skipped on a machine without it."""
    group = cgroup.make("test", str(os.getpid()))
    if group is None:
        pytest.skip("no writable control groups of version 2")
    return group


def without_groups(node: Node) -> None:
    """The worker finds no control groups."""
    python = node.scratch / "python"
    hide = "mount -t tmpfs none /sys/fs/cgroup && exec"
    python.write_text(f'#!/bin/sh\nexec unshare -m sh -c \'{hide} "$0" "$@"\' {sys.executable} "$@"\n')
    python.chmod(0o755)
    node.python = str(python)


def test_a_group_that_is_removed_while_it_is_read_was_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor removes the group that a stop is reading; the kernel then answers the read with ENODEV."""
    group = groups()

    def open_and_remove(path: str, **how: str) -> IO[str]:
        file = open(path, **how)  # type: ignore[call-overload] # noqa: SIM115
        group.remove()
        return cast(IO[str], file)

    monkeypatch.setattr(cgroup, "open", open_and_remove, raising=False)
    assert group.empty()
    assert not Path(group.path).exists()


@pytest.mark.parametrize("with_group", [True, False], ids=["group", "no-group"])
def test_a_chain_of_forks_does_not_survive(node: Node, with_group: bool) -> None:
    if with_group:
        groups().remove()
    elif os.geteuid() != 0:
        pytest.skip("hiding the control groups needs root")
    else:
        without_groups(node)
    run = node.start(CHAIN)
    here(node, run)
    assert bool(node.state(run)["group"]) == with_group
    grown = node.folder(run) / "output" / "chain"
    eventually(lambda: grown.stat().st_size > 20, "the chain grows")
    answer = node.call("stop", run=run, grace=1)
    size = grown.stat().st_size
    assert (answer["status"]["state"], answer["survivors"]) == ("killed", [])
    nothing_left(node, run)
    time.sleep(0.5)
    assert grown.stat().st_size == size
    watchers_end(node, run)


def test_the_group_of_a_run_is_gone_with_it(node: Node) -> None:
    groups().remove()
    run = node.start(SLEEP)
    here(node, run)
    path = Path(node.state(run)["group"])
    inside = {int(pid) for pid in (path / "cgroup.procs").read_text().split()}
    assert node.pid(run, "launcher") in inside
    assert not inside & {node.pid(run, "supervisor"), node.pid(run, "guardian")}
    node.call("stop", run=run, grace=5)
    watchers_end(node, run)
    assert not path.exists()


def stop_at_claim(node: Node, run: str, start: Stream) -> int | None:
    """Stop the supervisor once it has claimed its run. ``None``: it has started the launcher, or was ended before."""
    claim = node.folder(run) / "claim.json"
    while not claim.exists() and start.process.poll() is None:
        pass
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        pid = int(json.loads(claim.read_text())["supervisor"]["pid"])
        os.kill(pid, signal.SIGSTOP)
        while (state := Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]) not in "TZX":
            pass  # it may run on for a moment, and start the launcher
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        if state == "T" and not children and node.state(run).get("supervisor") is None:
            return pid
        os.kill(pid, signal.SIGCONT)
    return None


@contextlib.contextmanager
def claimed_and_stopped(node: Node, limits: dict[str, float]) -> Iterator[tuple[str, int]]:
    """Start a run, and stop its supervisor with SIGSTOP between the claim and the start of the launcher."""
    for _ in range(30):
        made = node.record(nproc=400, ranks=list(range(400)), timeouts={"start": 60, "stop": 10, **limits})
        request = node.request(
            SLEEP, made, argv=["/bin/sh", "-c", f"echo started >> {node.scratch}/started; sleep 300"]
        )
        run = made["run"]
        node.started.append(run)
        stream = node.open("start", **request)
        pid = stop_at_claim(node, run, stream)
        if pid is not None:
            try:
                yield run, pid
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
                stream.last()
            return
        stream.last()
        node.call("stop", run=run, grace=0)
        (node.scratch / "started").unlink(missing_ok=True)  # it was too late; the next try counts
    raise AssertionError("never caught between claim and launch")


def test_a_start_that_was_stopped_between_claim_and_launch_never_launches(node: Node) -> None:
    with claimed_and_stopped(node, {}) as (run, pid):
        answer = node.call("stop", run=run, grace=0)
        assert (answer["status"]["state"], answer["survivors"]) == ("killed", [])
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        eventually(lambda: not processes_of(run), "nothing of it is left", 10)
    assert not (node.scratch / "started").exists()


def test_a_start_that_stands_still_is_ended_at_its_deadline(node: Node) -> None:
    with claimed_and_stopped(node, {"start": 3}) as (run, _):
        status = node.wait_state(run)
        eventually(lambda: not processes_of(run), "nothing of it is left", 10)
    assert status["state"] in ("failed", "lost")
    assert not (node.scratch / "started").exists()


@pytest.mark.slow
def test_a_group_kills_what_forks_in_groups_below_it() -> None:
    group = groups()
    below = Path(group.path) / "below"
    below.mkdir()
    forks = "import os, time\nfor _ in range(3): os.fork()\ntime.sleep(60)"
    child = subprocess.Popen(
        ["sh", "-c", f'echo $$ > {below}/cgroup.procs && exec "$@"', "sh", sys.executable, "-c", forks]
    )
    try:
        eventually(lambda: len(group.pids()) == 8, "all have forked")
        assert not group.empty()
        assert not Proof(group).given()
    finally:
        group.kill()
        child.wait(60)
    eventually(group.empty, "the group is empty")
    assert Proof(group).given()
    group.remove()
    assert not os.path.exists(group.path)
    assert (group.empty(), group.pids()) == (True, set())


HANGS = """#!/bin/sh
[ "$1" = --version ] && echo py-spy 9.9 && exit
echo $$ >> {}
exec sleep 304
"""


def test_what_the_doctor_runs_is_none_of_the_job(node: Node) -> None:
    """A stop looks at the ranks first. The programs of this look end with it, and the answer does not count them."""
    helpers = node.scratch / "helpers"
    program = HANGS.format(helpers).encode()
    tool = {"hash": hashlib.sha256(program).hexdigest(), "kind": "binary"}
    store = node.base / "store"
    store.mkdir(parents=True, mode=0o700)
    node.base.chmod(0o700)
    (store / tool["hash"]).write_bytes(program)
    # The programs have time to start, and hang until the look is over.
    shorten(node, "run/limits.py", LAST_RANK_LOOK_S=5.0, PY_SPY_S=60.0)
    shorten(node, "doctor/limits.py", PY_SPY_S=60.0)
    run = node.start(SLEEP, node.record(doctor={"stall": 30.0}), py_spy=tool)
    here(node, run)
    both_known(node, run)
    eventually((node.folder(run) / "doctor" / "answers.sock").exists, "the doctor is there")
    answer = node.call("stop", run=run, grace=60)
    assert (answer["signalled"], answer["forced"], answer["survivors"]) == (3, 0, [])
    pids = [int(line) for line in helpers.read_text().split()]
    assert len(pids) == 2
    looks = json.loads((node.folder(run) / "last_look.json").read_text())["looks"]
    assert [one["state"] for one in looks] == ["sleeping", "sleeping"]
    watchers_end(node, run)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.slow
@given(st.one_of(st.none(), st.integers(), st.text(), st.sampled_from(["", "/.."]).map("/sys/fs/cgroup{}/x".format)))
def test_no_other_group_is_taken_from_a_record(path: object) -> None:
    assert cgroup.of_record(path) is None
    assert cgroup.of_record("/sys/fs/cgroup/../../ddpctl-run.node0") is None
    assert cgroup.of_record("/sys/fs/cgroup/a/ddpctl-run.node0") is not None
