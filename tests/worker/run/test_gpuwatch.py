"""How busy the GPUs of a run are: read beside it, kept in its record. The library is a stand-in (nvml_library.py)."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.run import gpuwatch
from ddpctl_worker.run.gpuwatch import GpuRecord, join_readings, read_gpus
from ddpctl_worker.run.limits import GPU_READING_S
from tests.worker import nvml_library
from tests.worker.node import Node, eventually, processes_of
from tests.worker.programs import here

SLEEPS = """
import os, time
if os.environ["RANK"] == "1":
    with open(os.environ["HOLDER"], "w") as file:
        file.write(str(os.getpid()))
print("here", flush=True)
time.sleep(600)
"""
HELPER = "ddpctl_worker.run.gpuwatch"


def gpu(index: int = 0, use: float | None = 50.0, **changed: Any) -> dict[str, Any]:
    known = {"memory": 20 << 30, "memory_total": 80 << 30, "temperature": 60.0, "power_w": 300.0, "slowed": False}
    return {"index": index, "name": "NVIDIA H100", "use": use, "holders": [], **known, **changed}


def helpers(node: Node) -> list[int]:
    """The processes that read this node's GPUs."""
    return [pid for pid, line in processes_of(node.env["HOLDER"]).items() if HELPER in line]


@pytest.fixture
def two_gpus(node: Node, tmp_path: Path) -> Node:
    if nvml_library.build(tmp_path, gpus=2) is None:
        pytest.skip("there is no C compiler")
    node.env.update(LD_LIBRARY_PATH=str(tmp_path), HOLDER=str(tmp_path / "holder"))
    return node


def test_a_run_keeps_what_its_gpus_did(two_gpus: Node) -> None:
    node = two_gpus
    run = node.start(SLEEPS)
    kept = node.folder(run) / "gpus.json"

    def read() -> dict[str, Any] | None:
        found: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {"gpus": [{"held": False}]}
        return found if found["gpus"][0]["held"] else None

    found = eventually(read, "it is in the record", seconds=240)
    assert [one["index"] for one in found["gpus"]] == [0, 1]
    first = found["gpus"][0]
    assert (first["name"], first["held"], first["memory_total_mb"], first["power_max_w"]) == (
        "NVIDIA H100",
        True,
        80 << 10,
        350.5,
    )
    assert all(40 < use < 98 for use in first["use"] if use is not None)
    assert set(first["memory_mb"]) - {None} == {40 << 10}
    eventually(lambda: node.call("history", run=run)["gpus"] == {"1": read()}, "a report has it")
    eventually(lambda: json.loads(node.files(run)[0]["record/gpus.json"]) == read(), "it is fetched")
    node.call("stop", run=run, grace=1, by="bob")


def test_who_reads_them_is_not_the_job_s_and_ends_with_it(two_gpus: Node) -> None:
    node = two_gpus
    run = node.start(SLEEPS)
    here(node, run)
    eventually(lambda: helpers(node), "somebody reads them", 120)
    answer = node.call("stop", run=run, grace=1, by="bob")
    assert (answer["survivors"], answer["signalled"]) == ([], 3), "the launcher and two ranks"
    eventually(lambda: not helpers(node), "nobody reads them any more", 120)


def test_who_reads_them_ends_with_the_supervisor(two_gpus: Node) -> None:
    node = two_gpus
    run = node.start(SLEEPS)
    eventually(lambda: helpers(node), "somebody reads them", 120)
    os.kill(node.pid(run, "supervisor"), signal.SIGKILL)
    assert node.wait_state(run)["cause"]["reason"] == "supervisor_lost"
    eventually(lambda: not helpers(node), "nobody reads them any more", 120)


def test_without_gpus_nothing_is_kept(node: Node) -> None:
    run = node.start("")
    assert node.wait_state(run)["state"] == "succeeded"
    assert not (node.folder(run) / "gpus.json").exists()
    assert node.call("history", run=run)["gpus"] == {}


def test_a_window_is_read_several_times(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("ddpctl_worker.run.gpuwatch.time.monotonic", lambda: now[0])
    monkeypatch.setattr("ddpctl_worker.run.gpuwatch.time.sleep", lambda seconds: now.append(now.pop() + seconds))
    monkeypatch.setattr(gpuwatch, "GPU_READING_SHARE", 1e6)
    uses = [10.0, 20.0, 60.0, 30.0]
    readings = iter(uses)
    found = read_gpus(lambda: {"gpus": [gpu(use=next(readings))], "error": None}, 3.5 * GPU_READING_S)
    assert found["gpus"][0]["use"] == sum(uses) / len(uses)
    assert found["error"] is None
    assert list(readings) == []


def test_where_there_is_none_it_is_read_once() -> None:
    readings = iter([{"gpus": [], "error": "NVML: GPU is lost"}])
    assert read_gpus(lambda: next(readings), 100.0) == {"gpus": [], "error": "NVML: GPU is lost"}


def test_what_several_readings_say_together() -> None:
    mine = {"run": "r1", "pid": 5}
    readings = [
        [gpu(use=10.0, memory=1 << 30, holders=[mine]), gpu(1, use=None, temperature=None)],
        [gpu(use=30.0, memory=3 << 30, power_w=100.0, slowed=True), gpu(1, use=None, temperature=None, power_w=None)],
        [gpu(use=None, temperature=71.0, holders=[{"run": None, "pid": 6}])],
    ]
    first, second = join_readings(readings)
    assert (first["use"], first["memory"], first["temperature"]) == (20.0, 20 << 30, 71.0)
    assert (first["power_w"], first["slowed"], first["runs"]) == (pytest.approx(233.3, 0.001), True, ["r1"])
    assert (second["use"], second["temperature"], second["power_w"], second["runs"]) == (None, None, 300.0, [])


@pytest.mark.slow
def test_a_gpu_that_is_lost_is_a_gap_and_a_long_run_stays_small() -> None:
    record = GpuRecord("r1")
    for number in range(3 * 7 * 24 * 120):  # three weeks
        seen = join_readings([[gpu(use=80.0), *([gpu(1, use=40.0)] if number < 100 else [])]])
        record.add(1e5 + 30.0 * number, seen)
    first, second = record.to_json()["gpus"]
    assert set(first["use"]) == {80.0}
    assert 120 <= len(first["use"]) <= 240
    assert len(first["use"]) * first["every_s"] >= 3 * 7 * 86400 - 30
    assert len(second["use"]) * second["every_s"] < 3100
    assert not first["held"]
