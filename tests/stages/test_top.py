"""Watching hosts: their answers become a single picture, and an error of a host shows in its own row only."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ddpctl.errors import DdpctlError, RemoteError, Unreachable
from ddpctl.spec.top import Overview
from ddpctl.stages import top as stage
from ddpctl.stages.top import HostWatch, read_overview
from ddpctl.transport import answers, limits
from ddpctl.transport.base import Frame
from tests.transport.dry import Asked, DryFleet, DryTransport, Stream

RANK = {"pid": 41, "state": "running", "cpu": 99.5, "rss_mb": 10.5, "output_age_s": 0.5, "metrics": {"step": 3}}
GPU = {
    "index": 0,
    "name": "NVIDIA H100",
    "use": 97.0,
    "memory": 1,
    "memory_total": 2,
    "temperature": 71.0,
    "power_w": 350.5,
    "power_limit_w": None,
    "holders": [{"pid": 41, "user": "ada", "command": "x", "job": "train", "run": "r1", "rank": 0, "memory": None}],
    "error": None,
}


def pulse(**changes: Any) -> dict[str, Any]:
    return {
        "load": 0.5,
        "cores": 8,
        "cpu": None,
        "memory": 4,
        "memory_total": 64,
        "late": {},
        "errors": {},
        "gpus": [GPU],
        "gpu_error": None,
        "runs": {"r1": {"0": RANK}},
        **changes,
    }


def status(host: str, state: str = "running", hosts: tuple[str, ...] = ("a", "b")) -> dict[str, Any]:
    record = {"project": "exp", "hosts": list(hosts), "world_size": len(hosts)}
    where = {"host": host, "node_rank": hosts.index(host), "ranks": [hosts.index(host)]}
    return {"run": "r1", "job": "train", "cluster": "lab", "state": state, "record": record, **where}


def says(host: str, over: threading.Event | None = None) -> Stream:
    """A status and a pulse; then nothing until it is ``over``."""

    def frames() -> Iterator[Frame]:
        yield from (Frame({"run": status(host)}), Frame({"pulse": pulse()}))
        if over is not None:
            over.wait(120)

    return Stream(frames(), {})  # type: ignore[arg-type]


def until(watch: HostWatch, done: Callable[[Overview], Any], seconds: float = 60) -> Overview:
    deadline = time.monotonic() + seconds
    while not done(seen := watch.overview()):
        assert time.monotonic() < deadline, seen
        time.sleep(0.02)
    return seen


def test_one_look_at_all_hosts() -> None:
    gone = DryTransport("b", unreachable=Unreachable("no route to b", host="b"))
    seen, outcome = read_overview(DryFleet([DryTransport("a", {"top": says("a")}), gone]))
    assert list(outcome.errors) == ["b"]
    first, second = seen.hosts
    assert first.pulse is not None
    assert first.pulse.gpus is not None
    assert first.pulse.gpus[0].holders[0].rank == 0
    assert first.pulse.runs["r1"]["0"].metrics == {"step": 3}
    assert (second.pulse, second.error) == (None, "no route to b")
    (run,) = seen.runs
    assert [node.state for node in run.nodes] == ["running", "unreachable"]


def test_a_host_that_breaks_is_a_row_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RETRY_FIRST_S", 0.01)
    monkeypatch.setattr(limits, "RETRY_MOST_S", 0.02)
    over = threading.Event()
    ill: list[DdpctlError | Stream] = [Unreachable("no route to b", host="b")]

    def b(asked: Asked) -> DdpctlError | Stream:
        return ill[0]

    watch = HostWatch(DryFleet([DryTransport("a", {"top": says("a", over)}), DryTransport("b", {"top": b})]))
    watch.start()
    until(watch, lambda seen: seen.hosts[1].error == "no route to b")
    ill[0] = RemoteError("python is missing", kind="bug", host="b")
    until(watch, lambda seen: seen.hosts[1].error == "python is missing")
    ill[0] = Stream([Frame({"pulse": {"load": "high"}})], {})
    until(watch, lambda seen: "top: pulse" in (seen.hosts[1].error or ""))
    assert watch.overview().hosts[0].host == "a"
    ill[0] = says("b", over)
    until(watch, lambda seen: seen.hosts[1].pulse and [node.state for node in seen.runs[0].nodes] == ["running"] * 2)
    watch.stop()
    over.set()


def test_a_run_is_shown_if_an_overview_is_made_between_its_status_and_the_first_pulse() -> None:
    told, seen, over = threading.Event(), threading.Event(), threading.Event()

    def frames() -> Iterator[Frame]:
        yield Frame({"run": status("a", hosts=("a",))})
        told.set()
        seen.wait(60)
        yield Frame({"pulse": pulse()})
        over.wait(120)

    watch = HostWatch(DryFleet([DryTransport("a", {"top": Stream(frames(), {})})]))  # type: ignore[arg-type]
    watch.start()
    assert told.wait(60)
    assert watch.overview().runs == ()
    seen.set()
    until(watch, lambda now: [run.run for run in now.runs] == ["r1"])
    over.set()
    watch.stop()


def test_a_host_that_says_nothing_more_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "TOP_SILENT_S", -1.0)
    seen, _ = read_overview(DryFleet([DryTransport("a", {"top": says("a")})]))
    assert re.fullmatch(r"silent for \d+ s", seen.hosts[0].error or "")


def test_a_run_that_is_removed_goes() -> None:
    frames = [Frame({"run": status("a")}), Frame({"pulse": pulse()}), Frame({"pulse": pulse(runs={})})]
    seen, _ = read_overview(DryFleet([DryTransport("a", {"top": Stream(frames, {})})]))
    assert seen.runs == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"cpu": float("nan")},
        {"cpu": 101.0},
        {"cores": -1},
        {"memory": {"total": 1}},
        {"memory": -1},
        {"late": {"gpus": "long"}},
        {"late": {"disk": 1.0}},
        {"gpus": [{**GPU, "use": -1.0}]},
        {"gpus": [{**GPU, "holders": [{"pid": 1}]}]},
        {"runs": {"../r1": {}}},
        {"runs": {"r1": {"x": RANK}}},
        {"runs": {"r1": {"0": {**RANK, "state": "x" * 21}}}},
    ],
)
def test_what_no_pulse_is_like_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(RemoteError) as caught:
        answers.check_frame("top", Frame({"pulse": pulse(**changes)}), "a", {})
    assert caught.value.kind == "protocol"


def test_a_node_speaks_for_itself() -> None:
    with pytest.raises(RemoteError, match="another host"):
        answers.check_frame("top", Frame({"run": status("b")}), "a", {})
