"""A supervisor that gets SIGTERM first has the ranks of all nodes save. Also: the files that count as a new save."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.checkpoint import fresh, limits
from ddpctl_worker.checkpoint.fresh import NewestSave
from tests.worker.checkpoints import JOB
from tests.worker.deadlines import shorten
from tests.worker.gang.test_gang import Trio, trio  # noqa: F401
from tests.worker.node import Node, eventually
from tests.worker.programs import SLEEP, here, nothing_left

TIMEOUT = 60.0
KEYS: dict[str, Any] = {"paths": [], "signal": "SIGUSR1", "timeout": TIMEOUT, "replicas": 0, "keep": 3}
TOKENS: dict[str, Any] = {"env": {"DDPCTL_CHECKPOINT_DIR": "{checkpoint_dir}"}, "token_env": ["DDPCTL_CHECKPOINT_DIR"]}
# Rank 0 alone writes, as most trainings do.
SAVES = """
import os, signal, time
def save(*_):
    print("asked", flush=True)
    if os.environ["RANK"] == "0":
        path = os.path.join(os.environ["DDPCTL_CHECKPOINT_DIR"], "step_7")
        with open(path + ".part", "w") as file:
            file.write("7")
        os.rename(path + ".part", path)
signal.signal(signal.SIGUSR1, save)
print("here", flush=True)
while True:
    time.sleep(300)
"""
# Every rank but the last writes a part of its own, and one rank writes slowly.
PARTS = """
import os, signal, time
def save(*_):
    rank = int(os.environ["RANK"])
    for piece in range({0: 1, 1: 6, 2: 0}[rank]):
        time.sleep(piece and 1)
        with open(os.path.join(os.environ["DDPCTL_CHECKPOINT_DIR"], "step_7.%d" % rank), "a") as file:
            file.write("7")
signal.signal(signal.SIGUSR1, save)
print("here", flush=True)
while True:
    time.sleep(300)
"""


def kept(node: Node) -> Path:
    return node.base / "checkpoints" / JOB / node.host


def train(trio: Trio, script: str) -> None:  # noqa: F811
    """Start the script on every node, and wait until all ranks are there."""
    for rank, node in enumerate(trio.nodes):
        node.start(script, trio.record(rank, checkpoint=KEYS), gang_key=trio.key, **TOKENS)
    trio.joined()
    trio.running()
    for node in trio.nodes:
        eventually(partial(said, node, trio.run, "here"), "the rank is there")


def test_all_nodes_save_before_one_of_them_is_shut_down(trio: Trio, tmp_path: Path) -> None:  # noqa: F811
    go_on = tmp_path / "go-on"
    wait = f"    while not os.path.exists({str(go_on)!r}): time.sleep(0.05)\n"
    train(trio, SAVES.replace("    if os", wait + "    if os"))
    os.kill(trio.nodes[2].pid(trio.run, "supervisor"), signal.SIGTERM)
    for node in trio.nodes:
        eventually(partial(said, node, trio.run, "asked"), "the rank is asked")
    go_on.touch()
    ends = trio.ended(90)
    log = (trio.nodes[2].folder(trio.run) / "supervisor.log").read_text()
    assert "before the end: saved on node0" in log  # the save ended its wait
    assert [end["state"] for end in ends] == ["failed"] * 3
    assert {(end["cause"]["host"], end["cause"]["signal"]) for end in ends} == {("node2", "SIGTERM")}
    assert (kept(trio.nodes[0]) / "step_7").read_text() == "7"
    for node in trio.nodes:
        assert said(node, trio.run, "asked") == 1


def test_a_node_that_still_writes_its_part_is_awaited(trio: Trio) -> None:  # noqa: F811
    for node in trio.nodes:
        shorten(node, "checkpoint/limits.py", STABLE_S=10.0)  # a rank without a processor writes nothing for a while
    train(trio, PARTS)
    os.kill(trio.nodes[2].pid(trio.run, "supervisor"), signal.SIGTERM)
    trio.ended()
    assert (kept(trio.nodes[0]) / "step_7.0").read_text() == "7"
    assert (kept(trio.nodes[1]) / "step_7.1").read_text() == "777777"


def said(node: Node, run: str, text: str) -> int:
    """Return how often the ranks of a node have printed the text."""
    return sum(one["text"] == text for one in node.lines(run))


def test_ranks_that_cannot_save_are_not_waited_for(node: Node) -> None:
    run = node.start(SLEEP, node.record(checkpoint=KEYS), **TOKENS)
    here(node, run)
    node.wait_state(run, "running")
    os.kill(node.pid(run, "supervisor"), signal.SIGTERM)
    status = node.wait_state(run, seconds=TIMEOUT - 10)
    assert (status["cause"]["reason"], status["cause"]["signal"]) == ("signaled", "SIGTERM")
    nothing_left(node, run)
    log = (node.folder(run) / "supervisor.log").read_text()
    assert "no checkpoint: rank 0, 1 does not handle SIGUSR1" in log


def test_a_checkpoint_that_never_comes_delays_the_end_by_the_timeout_only(node: Node) -> None:
    never = SAVES.replace("step_7", "step_7.part")  # its checkpoint is never whole
    run = node.start(never, node.record(checkpoint={**KEYS, "timeout": 10.0}), **TOKENS)
    here(node, run)
    node.wait_state(run, "running")
    begun = time.monotonic()
    os.kill(node.pid(run, "supervisor"), signal.SIGTERM)
    assert node.wait_state(run)["cause"]["signal"] == "SIGTERM"
    assert time.monotonic() - begun >= 10.0
    assert said(node, run, "asked") == 2


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh, "STABLE_S", 0.0)


@pytest.mark.usefixtures("soon")
def test_new_is_what_was_not_there_under_any_name(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_text("old")
    look = NewestSave(str(tmp_path)).look
    assert look() is None
    (tmp_path / "model.pt").rename(tmp_path / "model.pt.prev")
    (tmp_path / "model.pt.part").write_text("new")
    (tmp_path / ".ddpctl").mkdir()
    (tmp_path / ".ddpctl" / "model.pt.json").write_text("{}")
    assert look() is None
    (tmp_path / "model.pt.part").rename(tmp_path / "model.pt")
    assert look() == "model.pt"


@pytest.mark.usefixtures("soon")
def test_shards_alone_are_no_checkpoint(tmp_path: Path) -> None:
    look = NewestSave(str(tmp_path / "made later")).look
    step = tmp_path / "made later" / "step_7"
    step.mkdir(parents=True)
    assert look() is None
    (step / "__0_0.distcp").write_text("shard")
    assert look() is None
    (step / ".metadata").write_text("index")
    assert look() == "step_7"


def test_what_still_changes_is_not_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("ddpctl_worker.checkpoint.fresh.time.monotonic", lambda: clock[0])
    look = NewestSave(str(tmp_path)).look
    for second in range(5):
        (tmp_path / "model.pt").write_text("x" * (second + 1))
        clock[0] += 1.0
        assert look() is None
    clock[0] += limits.STABLE_S
    assert look() == "model.pt"


def test_a_save_in_several_files_is_awaited_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("ddpctl_worker.checkpoint.fresh.time.monotonic", lambda: clock[0])
    look = NewestSave(str(tmp_path)).look
    (tmp_path / "model.pt").write_text("x")
    assert look() is None
    for second in range(3):
        clock[0] += limits.STABLE_S / 2
        (tmp_path / "optimizer.pt").write_text("x" * (second + 1))
        os.utime(tmp_path / "optimizer.pt", (2e9 + second, 2e9 + second))
        assert look() is None
    clock[0] += limits.STABLE_S
    assert look() is not None
