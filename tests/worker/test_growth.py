"""A run that takes in a host which is back: when it is stopped for that, and when not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddpctl_worker.agent.growth import Growth, RankSaver
from ddpctl_worker.agent.part import LocalPart
from ddpctl_worker.agent.talk import Unanswered
from ddpctl_worker.checkpoint.fresh import Fresh
from tests.worker.checkpoints import OF_JOB
from tests.worker.handclock import HandClock

ATTEMPT = {"attempt": 2, "hosts": ["a", "b"]}


class Steps(HandClock):
    """A clock whose threads run at once; at each pause the next step happens, and after the last one the growth is
    stopped."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        super().__init__()
        self.left = list(steps)
        self.stop: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.left:
            self.left.pop(0)()
        else:
            self.stop()

    def thread(self, work: Callable[..., None], name: str, *args: Any) -> Any:
        return SimpleNamespace(start=lambda: work(*args))


class Hosts:
    """What each of them is asked, and answers."""

    def __init__(self, *deaf: str) -> None:
        self.asked: list[tuple[str, str]] = []
        self.saved: str | None = None
        self.saving: list[str] = []
        self.silent = False
        self.near = ["a", "b", "c"]
        self._deaf = deaf

    def ask(self, host: str, question: dict[str, Any]) -> Mapping[str, Any]:
        self.asked.append((host, question["what"]))
        if self.silent:
            raise Unanswered("no answer")
        return {"ready": host not in self._deaf, "saved": self.saved, "saving": host in self.saving}

    def grow(self, *steps: Callable[[], object], reach: bool = True) -> Growth:
        """To the end of it; one of ``steps`` happens before each look."""
        clock = Steps(*steps)
        growth = Growth(ATTEMPT, ["a", "b", "c"], self.ask, lambda hosts: reach, lambda: self.near, clock)
        clock.stop = growth.stop
        growth.start()
        return growth

    def change(self, **values: Any) -> Callable[[], None]:
        return lambda: self.__dict__.update(values)

    def count(self, what: str) -> int:
        return sum(one == what for _, one in self.asked)


def nothing() -> None:
    pass


def test_the_ranks_are_asked_and_a_new_checkpoint_is_waited_for() -> None:
    hosts = Hosts()
    growth = hosts.grow(nothing, nothing)
    assert growth.saved is None
    assert hosts.asked[:4] == [("a", "look"), ("b", "look"), ("a", "send"), ("b", "send")]
    growth = hosts.grow(nothing, hosts.change(saved="step_3"))
    assert growth.saved == "step_3"


def test_a_save_of_several_hosts_is_waited_for() -> None:
    hosts = Hosts()
    hosts.saved, hosts.saving = "step_3", ["b"]
    growth = hosts.grow(nothing, nothing)
    assert growth.saved is None
    growth = hosts.grow(nothing, hosts.change(saving=[]))
    assert growth.saved == "step_3"


def test_where_one_rank_would_die_of_the_signal_none_gets_it() -> None:
    """The ranks' own next checkpoint counts."""
    hosts = Hosts("b")
    growth = hosts.grow(hosts.change(saved="step_3"))
    assert growth.saved == "step_3"
    assert hosts.count("send") == 0


def test_nothing_is_asked_of_hosts_that_do_not_reach_each_other() -> None:
    hosts = Hosts()
    growth = hosts.grow(reach=False)
    assert growth.failed
    assert hosts.asked == []


def test_a_host_that_is_lost_meanwhile_ends_it() -> None:
    hosts = Hosts()
    growth = hosts.grow(nothing, hosts.change(near=["a", "c"], silent=True))
    assert growth.failed
    assert growth.saved is None


def test_a_host_that_is_busy_is_not_asked_to_save_again() -> None:
    """The save takes all of its disk, so that it does not answer for a while."""
    hosts = Hosts()
    silent, back = hosts.change(silent=True), hosts.change(saved="step_3", silent=False)
    growth = hosts.grow(nothing, silent, nothing, nothing, back)
    assert not growth.failed
    assert growth.saved == "step_3"
    assert (hosts.count("look"), hosts.count("send")) == (2, 2)


def test_a_slow_disk_is_looked_at_once_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = {**OF_JOB, "host": "a", "checkpoint": None}
    saver = RankSaver(str(tmp_path), run)
    part = LocalPart(str(tmp_path / "a"), 2)
    saver.answer({"attempt": 2, "what": "look"}, part)
    begun, slow = threading.Event(), threading.Event()

    def look(self: Fresh) -> str:
        begun.set()
        assert slow.wait(60.0)
        return "step_3"

    monkeypatch.setattr(Fresh, "look", look)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(saver.answer({"attempt": 2, "what": "seen"}, part)))
    thread.start()
    assert begun.wait(60.0)
    assert saver.answer({"attempt": 2, "what": "seen"}, part) == {"saved": None, "saving": True}
    slow.set()
    thread.join()
    assert found == [{"saved": "step_3", "saving": False}]
