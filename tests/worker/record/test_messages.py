"""No message of the worker is longer than the orchestrator takes, however much there is to tell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddpctl.transport.base import Frame
from ddpctl.transport.pipe import FrameReader
from ddpctl_worker.mesh.firewall import firewall
from ddpctl_worker.record.limits import ANSWER_BYTES
from ddpctl_worker.wire.channel import Channel
from tests.worker.node import Node

MOST = 4 << 20


def test_status_leaves_out_the_oldest_runs_that_are_over_and_says_how_many(node: Node, tmp_path: Path) -> None:
    hosts = [f"node{number}" for number in range(3000)]
    for number in range(150):
        made = node.record(f"run-{number:03}", hosts=hosts, host=node.host, created=f"2026-01-02T03:{number:03}")
        folder = node.folder(made["run"])
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps(made))
        if number:  # the oldest run is not over
            (folder / "exit.json").write_text(json.dumps({"state": "succeeded", "ended": "2026-01-02"}))
    for path in (node.base, *node.base.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    answer = node.call("status", all=True)
    assert len(json.dumps(answer)) < MOST
    told = [one["run"] for one in answer["runs"]]
    assert told[-1] == "run-000"
    assert told[:-1] == [f"run-{number:03}" for number in range(149, 150 - len(told), -1)]
    assert answer["left_out"] == 150 - len(told) > 0
    assert len(json.dumps(answer["runs"])) > ANSWER_BYTES // 2


def test_metrics_of_many_ranks_share_one_message(node: Node) -> None:
    record = node.record()
    folder = node.folder(record["run"])
    (folder / "metrics").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(record))
    for path in (node.base, *node.base.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    line = json.dumps({"step": 1, "loss": 0.123456789}) + "\n"
    for rank in range(8):
        (folder / "metrics" / f"rank-{rank}.jsonl").write_text(line * ((2 << 20) // len(line)))
    answer = node.call("metrics", run=record["run"])
    assert len(answer["ranks"]) == 8
    assert all(one["lines"] for one in answer["ranks"].values())
    assert len(json.dumps(answer)) < MOST


@pytest.mark.slow
def test_firewall_rules_travel_as_raw_bytes(tmp_path: Path) -> None:
    """A node of a big cluster has megabytes of rules."""
    out = tmp_path / "out"
    with out.open("wb") as file:
        answer = firewall({}, Channel(0, file.fileno()))
    assert set(answer) == {"uid", "ufw", "firewalld", "errors"}
    reader = FrameReader()
    found = reader.feed(out.read_bytes())
    assert reader.feed(b"{}\n") == [Frame({})]
    assert [set(frame.data) for frame in found] == [{"tool"}] * len(found)
