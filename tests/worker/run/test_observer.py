"""The last look at ranks that are about to be stopped: it is kept in time, whole or not."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddpctl_worker.doctor.look import Looks
from ddpctl_worker.doctor.process import look_at_process
from ddpctl_worker.record.paths import RunPaths
from ddpctl_worker.run import observer
from ddpctl_worker.run.limits import LAST_RANK_LOOK_S
from ddpctl_worker.run.observer import Observer
from tests.worker.node import eventually


class Seen:
    """An observer of a sleeping rank and an ended rank, with the values that it has recorded."""

    def __init__(self, folder: Path, pid: int) -> None:
        self.put: list[dict[str, Any]] = []
        living = SimpleNamespace(rank=0, local_rank=0, pid=pid)
        dead = SimpleNamespace(rank=1, local_rank=1, pid=1 << 22)
        roster: Any = SimpleNamespace(
            alive=lambda: [living], dead=lambda: [(dead, SimpleNamespace(seen=time.monotonic()))]
        )
        drain: Any = SimpleNamespace(said=dict, count_timeouts=dict)
        recorder: Any = SimpleNamespace(put=lambda path, value, durable: self.put.append(value))
        self.woken = threading.Event()
        order: Any = {"run": {"host": "node0", "nnodes": 1, "doctor": {"stall": 30.0}}}
        self.observer = Observer(order, RunPaths(str(folder)), roster, drain, recorder, None, self.woken.set)

    def until_kept(self) -> None:
        """Wait until the ranks may be stopped."""
        eventually(lambda: self.observer.last_look(undecided=False), "the look is kept", 60.0)

    def states(self) -> list[str]:
        return [one["state"] for one in self.put[0]["looks"]]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stop waits for the look, however late that gets a processor."""
    monkeypatch.setattr(observer, "LAST_RANK_LOOK_S", 60.0)


@pytest.fixture
def seen(tmp_path: Path) -> Iterator[Seen]:
    with subprocess.Popen(["sleep", "300"]) as process:
        eventually(lambda: look_at_process(process.pid).state == "sleeping", "it sleeps")  # type: ignore[union-attr]
        yield Seen(tmp_path, process.pid)
        process.kill()


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_the_ranks_may_be_stopped_once_it_is_kept(seen: Seen) -> None:
    seen.until_kept()
    assert seen.states() == ["sleeping", "ended"]
    assert [one["host"] for one in seen.put[0]["looks"]] == ["node0", "node0"]


@pytest.mark.slow
@pytest.mark.parametrize("begun", [True, False], ids=["hangs", "not-begun"])
def test_what_is_known_is_kept_when_a_look_hangs(seen: Seen, monkeypatch: pytest.MonkeyPatch, begun: bool) -> None:
    """A look may wait for a disk or a processor. The stop waits no longer than the limit, and the record is kept."""
    real, looked, over = Looks.run, threading.Event(), threading.Event()

    def hangs(looks: Looks, seconds: float) -> None:
        if begun:
            real(looks, 60.0)
        looked.set()
        over.wait(240.0)

    monkeypatch.setattr(Looks, "run", hangs)
    now = [100.0]
    monkeypatch.setattr(observer, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    assert not seen.observer.last_look(undecided=False)
    assert looked.wait(60.0)
    assert not seen.observer.last_look(undecided=False)
    now[0] += LAST_RANK_LOOK_S
    assert seen.observer.last_look(undecided=False)
    over.set()
    assert seen.states() == ["sleeping" if begun else "unknown", "ended"]


@pytest.mark.slow
def test_a_look_that_cannot_be_kept_stops_no_stop(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "shorten_look", lambda one: 1 / 0)
    seen.until_kept()
    assert seen.put == []
