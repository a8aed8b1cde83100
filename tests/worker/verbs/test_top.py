"""The stream of ``ddpctl top`` on a node: a real run, files that hang, and the budget."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.record.logs import _SUFFIX
from ddpctl_worker.verbs import gauge as gauges
from ddpctl_worker.verbs import top_runs as looked
from ddpctl_worker.verbs.gauge import Gauge, Reading
from ddpctl_worker.verbs.top_machine import Machine
from ddpctl_worker.verbs.top_runs import RunReader
from ddpctl_worker.wire.contract import TERMINAL
from tests.worker.node import Node, Stream, eventually

TRAINS = """
import json, os, time
for step in range(6000):
    print("step", step, flush=True)
    with open(os.environ["DDPCTL_METRICS"], "a") as file:
        file.write(json.dumps({"step": step, "samples_per_s": 10.5, "other": 1}) + "\\n")
    time.sleep(0.05)
"""


def told(stream: Stream, key: str) -> list[dict[str, Any]]:
    return [frame[key] for frame in stream.frames if key in frame]


def ranks(stream: Stream, run: str) -> dict[str, dict[str, Any]]:
    """As the last pulse has them."""
    pulses = told(stream, "pulse")
    found: dict[str, dict[str, Any]] = pulses[-1]["runs"].get(run, {}) if pulses else {}
    return found


def test_a_run_from_its_start_to_its_end(node: Node) -> None:
    stream = node.open("top")
    eventually(lambda: told(stream, "pulse"), "a pulse before any run")
    run = node.start(TRAINS)
    eventually(lambda: set(ranks(stream, run)) == {"0", "1"}, "both ranks")

    def at_work() -> dict[str, dict[str, Any]]:
        seen = ranks(stream, run)
        known = [one for one in seen.values() if one["cpu"] is not None and one["rss_mb"] > 1 and one["metrics"]]
        known = [one for one in known if one["output_age_s"] is not None and one["output_age_s"] < 3]
        return seen if [one["state"] in ("running", "sleeping") for one in known] == [True, True] else {}

    seen = eventually(at_work, "what they use and write")
    assert all(set(one["metrics"]) == {"step", "samples_per_s"} for one in seen.values())
    assert all(os.path.exists(f"/proc/{one['pid']}") for one in seen.values())
    before = seen["0"]["metrics"]["step"]
    eventually(lambda: ranks(stream, run)["0"]["metrics"]["step"] > before, "later steps")
    eventually(lambda: ranks(stream, run)["1"]["printed"].get("step", 0) > before, "the same in its output")
    node.call("stop", run=run, grace=1.0, by="me")
    eventually(lambda: told(stream, "run")[-1]["state"] in TERMINAL, "its end")
    eventually(lambda: told(stream, "pulse")[-1]["runs"][run] == {}, "no rank of it")
    count = len(told(stream, "run"))
    assert count < 10, "a status that has not changed was sent again"
    assert "heartbeat_age_s" not in told(stream, "run")[0]
    stream.hang_up()


def test_once_is_one_pulse_with_shares_of_time(node: Node) -> None:
    stream = node.open("top", once=True)
    assert stream.result() == {}
    (pulse,) = told(stream, "pulse")
    assert pulse["cpu"] is not None
    assert pulse["memory_total"] >= pulse["memory"] > 0
    assert pulse["gpus"] == [] or pulse["gpu_error"] is None
    assert pulse["late"] == pulse["errors"] == {}


def test_of_ended_runs_the_newest_of_a_job_is_shown_and_a_removed_one_goes(node: Node) -> None:
    old, new = (node.start("", node.record(f"20260102T03040{number}Z-abcdef")) for number in (1, 2))
    for run in (old, new):
        node.wait_state(run)
    runs = RunReader(str(node.base), node.host)
    assert list(runs.read()) == [new]
    node.call("remove", run=new)
    assert list(runs.read()) == []


def test_an_ended_run_is_read_once_and_the_folder_of_runs_listed_when_it_changes(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = node.start("")
    node.wait_state(run)
    os.utime(node.base / "runs", (1e9, 1e9))  # a folder that has just changed is listed again
    runs = RunReader(str(node.base), node.host)
    first = runs.read()

    def not_again(*_: object) -> Any:
        raise AssertionError("read again")

    monkeypatch.setattr(looked, "status_or_fault", not_again)
    monkeypatch.setattr(os, "listdir", not_again)
    assert runs.read() == first


def test_a_run_that_starts_right_after_a_look_is_seen_though_the_folders_time_stays(node: Node) -> None:
    now = time.time()
    (node.base / "runs").mkdir(parents=True)
    os.utime(node.base / "runs", (now, now))
    runs = RunReader(str(node.base), node.host)
    assert runs.read() == {}
    run = node.start("")
    os.utime(node.base / "runs", (now, now))
    assert list(runs.read()) == [run]


def test_a_folder_of_a_run_that_this_host_joins_later(node: Node) -> None:
    runs = RunReader(str(node.base), node.host)
    (node.base / "runs" / "20260102T030405Z-abcdef").mkdir(parents=True)
    assert runs.read() == {}
    run = node.start("", node.record("20260102T030405Z-abcdef"))
    assert list(runs.read()) == [run]


def test_a_run_whose_record_cannot_be_read_for_a_moment_comes_back(node: Node) -> None:
    """As on a network file system that does not answer."""
    run = node.start("import time; time.sleep(600)")
    runs = RunReader(str(node.base), node.host)
    assert list(runs.read()) == [run]
    record = node.folder(run) / "run.json"
    elsewhere = record.rename(record.with_name("elsewhere"))
    assert runs.read() == {}
    elsewhere.rename(record)
    assert list(runs.read()) == [run]
    node.call("stop", run=run, grace=0.0, by="me")


def test_only_the_new_end_of_the_metrics_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    path.write_text('{"step": 1, "loss": 2.5}\n')
    grown = looked._Grown(str(path))
    assert grown.values() == {"step": 1, "loss": 2.5}
    with path.open("a") as file:
        file.write("x" * 100_000 + '\n{"step": 2}\n')
    assert grown.values() == {"step": 2, "loss": 2.5}
    path.write_text('{"step": 0}\n')  # of another attempt
    assert grown.values()["step"] == 0
    path.unlink()
    assert grown.values()["step"] == 0


def test_which_rank_wrote_last_is_found_at_the_end_of_a_long_log(tmp_path: Path) -> None:
    log = looked._Log(str(tmp_path))
    assert log.ages() == {}
    now = time.time()
    path = tmp_path / ("0" * 20 + _SUFFIX)
    line = '{"t":%.6f,"r":%s,"s":"o","x":"a","e":"\\n"}\n'
    path.write_text(line % (now - 5000, 1) * 5000 + line % (now - 20, 0) + line % (now, "null") + '{"t":1')
    assert log.ages().keys() == {"0", "1"}
    assert 19 < log.ages()["0"] < 1000
    with path.open("a") as file:
        file.write('.5,"r":2,"s":"o","x":"b","e":"\\n"}\n')  # the line that was half there
    assert log.ages().keys() == {"0", "1", "2"}


def test_progress_is_read_from_the_new_end_of_a_log(tmp_path: Path) -> None:
    log = looked._Log(str(tmp_path))
    path = tmp_path / ("0" * 20 + _SUFFIX)
    line = '{"t":1.000000,"r":%s,"s":"o","x":"%s","e":"\\n"}\n'
    path.write_text(line % (0, "step 1 loss 2.5") + line % ("null", "step 9") + line % (1, "epoch 3"))
    log.ages()
    assert log.printed == {"0": {"step": 1, "loss": 2.5}, "1": {"epoch": 3}}
    with path.open("a") as file:
        file.write(line % (0, "step 2") + line % (0, "a line without progress"))
    log.ages()
    assert log.printed["0"] == {"step": 2, "loss": 2.5}


def test_a_reading_that_hangs_is_late_and_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauges, "READING_LATE_S", 600.0)
    hangs = threading.Event()
    gauge = Gauge("disk", lambda: hangs.wait(240))
    gauge.start()
    gauge.request_reading()
    assert gauge.result(0.01) == (None, None, None)
    monkeypatch.setattr(gauges, "READING_LATE_S", 0.2)
    late = eventually(lambda: gauge.result(0.01).late_s, "word that it is late")
    assert late >= 0.2
    hangs.set()
    assert eventually(lambda: gauge.result(0.01).value, "its answer") is True
    assert gauge.result(0.01).late_s is None


def test_a_reading_that_fails_is_tried_again() -> None:
    mounted = threading.Event()

    def read() -> str:
        if not mounted.is_set():
            raise OSError("gone")
        return "there"

    gauge = Gauge("disk", read)
    gauge.start()

    def look() -> Reading:
        gauge.request_reading()
        return gauge.result(0.05)

    eventually(lambda: look().error == "OSError('gone')", "word of the failure")
    mounted.set()
    eventually(lambda: look() == ("there", None, None), "the second answer")


def test_what_costs_much_is_read_less_often() -> None:
    count = []

    def read() -> int:
        until = time.thread_time() + 0.1
        while time.thread_time() < until:
            pass
        count.append(1)
        return len(count)

    gauge = Gauge("dear", read)
    gauge.start()
    gauge.request_reading()
    eventually(lambda: gauge.result(0.1).value, "the first one")
    for _ in range(20):
        gauge.request_reading()
        gauge.result(0.01)
    assert len(count) == 1  # 0.1 s are 0.3 % of half a minute


def test_the_machine_between_two_looks() -> None:
    machine = Machine()
    assert machine.read()["cpu"] is None
    time.sleep(0.05)
    second = machine.read()
    assert 0 <= second["cpu"] <= 100
    assert second["cores"] >= 1
