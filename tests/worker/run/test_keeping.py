"""The looks of the keeper's loop, with a clock that the test turns and a supervisor that sends the test's messages."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.checkpoint import manifest
from ddpctl_worker.checkpoint.folder import list_entries
from ddpctl_worker.checkpoint.keeper import Keeper
from ddpctl_worker.machine import child, proc
from ddpctl_worker.run import keeper_process, keeping
from ddpctl_worker.run.limits import LAST_KEEPER_LOOK_S
from tests.worker.checkpoint.test_whole import saved_by_torch


class Supervised:
    """A keeper's loop. ``keep`` runs it through the items of ``script``: (seconds from the start, message or call)."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.now, self.begun = top / "job" / "a", 100.0, time.time()
        self.folder.mkdir(parents=True)
        self.script: list[tuple[float, Mapping[str, Any] | Callable[[], object] | None]] = []
        self.looks: list[float] = []
        self.priorities: list[int] = []  # the priority of the thread that made each look
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        self.listing_s = 0.0  # the seconds that a listing takes

        def listed(folder: str) -> Any:
            self.now += self.listing_s
            self.looks.append(self.now - 100.0)
            self.priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
            return list_entries(folder)

        monkeypatch.setattr("ddpctl_worker.checkpoint.keeper.list_entries", listed)

    def wait(self, timeout: float | None = None) -> Mapping[str, Any] | None:
        """Return the supervisor's next message, as ``_Words.wait`` does."""
        until = self.now + (timeout or 0.0)
        while self.script and 100.0 + self.script[0][0] <= until:
            at, word = self.script.pop(0)
            self.now = max(self.now, 100.0 + at)
            if not callable(word):
                return word
            word()
        self.now = until
        return {}

    def keep(self, **order: Any) -> None:
        given = {"folder": str(self.folder), "host": "a", "since": self.begun - 1, "keep": 3}
        given.update(serial=1, run="r", attempt=1, lag=str(self.folder.parent / "saved.json"))
        keeper_process.keep(self, {**given, "outputs": [], "timeout": 60.0, **order})  # type: ignore[arg-type]

    def write(self, path: str, content: bytes = b"weights") -> Path:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        return file

    @property
    def known(self) -> list[str]:
        return sorted(one["entry"] for one in manifest.read_all(str(self.folder)))


@pytest.fixture
def supervised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Supervised:
    return Supervised(tmp_path, monkeypatch)


def hash_for(seconds: float, supervised: Supervised, monkeypatch: pytest.MonkeyPatch) -> None:
    made = manifest.make

    def make(*args: Any) -> Any:
        supervised.now += seconds
        return made(*args)

    monkeypatch.setattr(manifest, "make", make)


def test_a_long_hash_is_no_reason_to_look_away(supervised: Supervised, monkeypatch: pytest.MonkeyPatch) -> None:
    hash_for(10.0, supervised, monkeypatch)
    supervised.write("step_1.pt", saved_by_torch())
    known: list[str] = []
    supervised.script = [
        (13, lambda: supervised.write("step_2.pt", saved_by_torch())),
        (30, lambda: known.extend(supervised.known)),
        (31, None),
    ]
    supervised.keep()
    assert known == ["step_1.pt", "step_2.pt"]


def test_the_last_look_does_not_wait_behind_busy_processors(supervised: Supervised) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    supervised.script += [(9, {"ended": True})]
    supervised.keep()
    assert set(supervised.priorities[:-1]) == {19}
    assert supervised.priorities[-1] == own


def test_the_port_does_not_wait_behind_busy_processors(supervised: Supervised, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short run ends before a port that a busy host tells late, and then no host copies from this host."""
    own, told, listeners = os.getpriority(os.PRIO_PROCESS, 0), list[tuple[int, list[str]]](), list[socket.socket]()

    def say(**message: Any) -> None:
        told.append((os.getpriority(os.PRIO_PROCESS, threading.get_native_id()), list(message)))

    def keep_listener(order: object, listener: socket.socket) -> None:
        listeners.append(listener)

    monkeypatch.setattr(keeper_process, "_say", say)
    monkeypatch.setattr(keeper_process, "_replication", keep_listener)
    supervised.script += [(9, None)]
    supervised.keep(copying={"address": "127.0.0.1"})
    assert told == [(own, ["port"])]
    for listener in listeners:
        listener.close()


def test_a_last_look_that_outlives_the_run_has_the_lowest_priority_again(
    supervised: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, seen = os.getpriority(os.PRIO_PROCESS, 0), []

    def lower() -> None:
        if threading.current_thread() is threading.main_thread():
            seen.append(supervised.now - 100.0)
        else:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)

    def hash_slowly(keeper: Keeper, order: object, ended: bool | None, copies: object) -> None:
        if ended and keeper._read_on is not None:
            keeper._read_on(1)
            supervised.now += LAST_KEEPER_LOOK_S
            keeper._read_on(1)

    monkeypatch.setattr(keeper_process, "_lower_priority", lower)
    monkeypatch.setattr(keeper_process, "_turn", hash_slowly)
    supervised.script += [(9, {"ended": True})]
    supervised.keep()
    assert seen == [9 + LAST_KEEPER_LOOK_S]
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


def test_looking_itself_takes_a_small_share_of_the_time(supervised: Supervised) -> None:
    supervised.listing_s = 1.0
    supervised.script = [(90, None)]
    supervised.keep()
    assert supervised.looks == [1, 22, 43, 64, 85]


def test_it_looks_often_once_ranks_were_asked_to_save(supervised: Supervised) -> None:
    supervised.listing_s = 1.0
    supervised.script = [(5, lambda: keeping.look_soon(str(supervised.folder))), (36, None)]
    supervised.keep(timeout=20.0)
    hurried = [at for at in supervised.looks if 5 < at < 27]
    assert len(hurried) >= 5
    assert supervised.looks[-1] < 30, "and not for ever"


def test_words_do_not_put_a_look_off(supervised: Supervised) -> None:
    supervised.script = [(at, {"died": None, "since": 0.0}) for at in range(1, 20)]
    supervised.script.append((20, None))
    supervised.keep()
    assert len(supervised.looks) >= 9


def test_a_folder_that_other_users_can_write_to_stops_the_keeper_for_as_long_as_they_can(
    supervised: Supervised, capfd: pytest.CaptureFixture[str]
) -> None:
    hidden = supervised.folder / ".ddpctl"
    hidden.mkdir()
    hidden.chmod(0o770)
    supervised.write("step_1.pt", saved_by_torch())
    supervised.write("model.bin")
    known: list[str] = []
    supervised.script = [
        (8, {"died": 0.0, "since": supervised.begun}),
        (10, {"died": None, "since": supervised.begun}),
        (20, lambda: known.extend(supervised.known)),
        (20, lambda: hidden.chmod(0o700)),
        (30, None),
    ]
    supervised.keep()
    assert known == []
    assert supervised.known == ["model.bin", "step_1.pt"]
    said = [line for line in capfd.readouterr().err.splitlines() if "writable by others" in line]
    assert len(said) == 1, "once, not at every look"
    assert f"chmod go-w {hidden}" in said[0]


class KilledKeeper(BaseException):
    """Ends the keeper as SIGKILL would: no code of the keeper runs afterwards."""


def is_killed(*args: object) -> None:
    raise KilledKeeper


def next_start(supervised: Supervised) -> list[str]:
    """Return the entries that are complete after the look of the next start, which is later than all writes."""
    keeper = Keeper(str(supervised.folder), "a", since=time.time() + 60)
    keeper.look(ended=False)
    return supervised.known


def while_hashing(supervised: Supervised, *words: Mapping[str, Any] | Callable[[], object]) -> None:
    """Send messages while the keeper hashes a large file that came to rest under live ranks; then kill the keeper."""
    supervised.write("large.bin", b"x" * (8 << 20))
    supervised.script = [(2.0, {"servers": {}}), *((2.0, word) for word in words)]
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(KilledKeeper):
        patch.setattr(manifest, "write", is_killed)
        supervised.script.append((30.0, None))
        supervised.keep()
    assert supervised.known == []


def test_what_came_to_rest_under_live_ranks_is_hashed_by_the_next_start(supervised: Supervised) -> None:
    supervised.write("step_1/weights.bin")
    while_hashing(supervised)
    supervised.write("late.bin")
    assert next_start(supervised) == ["large.bin", "step_1"]


def test_what_a_run_that_ended_well_has_left_is_hashed_by_the_next_start(supervised: Supervised) -> None:
    while_hashing(supervised, lambda: supervised.write("final/weights.bin"), {"ended": True, "linger": True})
    assert next_start(supervised) == ["final", "large.bin"]


def test_what_changes_before_the_next_start_is_not(supervised: Supervised) -> None:
    while_hashing(supervised)
    supervised.write("large.bin", b"y" * 100)
    assert next_start(supervised) == []


def test_what_was_written_when_a_rank_died_is_not(supervised: Supervised) -> None:
    while_hashing(supervised, {"died": time.time(), "since": 0.0}, {"ended": False, "linger": False})
    assert next_start(supervised) == []


def test_after_a_power_cut_it_is_not(supervised: Supervised, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut, a file may have its size and its time without its content."""
    while_hashing(supervised)
    monkeypatch.setattr(proc, "boot_id", lambda: "another")
    assert next_start(supervised) == []


def test_a_death_that_is_heard_of_while_it_is_hashed_takes_it_back(supervised: Supervised) -> None:
    supervised.write("large.bin", b"x" * (8 << 20))
    died = time.time()
    supervised.script = [(2.0, {"servers": {}}), (2.0, {"died": died, "since": 0.0}), (30.0, None)]
    supervised.keep()
    assert supervised.known == []


def test_an_order_that_no_pipe_holds_does_not_stop_the_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process reads nothing for a while: the rest of the order follows at later turns, then the next message."""
    got, may_read = tmp_path / "got", tmp_path / "may-read"
    wait = "import os, sys, time\nwhile not os.path.exists(sys.argv[2]): time.sleep(0.01)\n"
    read = f"{wait}open(sys.argv[1], 'wb').write(sys.stdin.buffer.read())"
    monkeypatch.setattr(child, "command", lambda module: [sys.executable, "-I", "-c", read, str(got), str(may_read)])
    supervised = keeping.KeeperHandle({"outputs": ["x" * (1 << 19)]}, str(tmp_path))
    supervised.start()
    supervised.report_death(None, 1.0)
    may_read.touch()
    (pid,) = supervised.pids()
    while not supervised.settled(succeeded=True, seconds=60.0):
        time.sleep(0.05)
        supervised.report_death(None, 1.0)
        if supervised._writer is not None and not supervised._writer.waiting:
            break
    process = supervised._process
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()
    os.waitpid(pid, 0)
    supervised.ended(pid)
    order, *messages = map(json.loads, got.read_bytes().splitlines())
    assert order["outputs"] == ["x" * (1 << 19)]
    assert {"ended": True, "linger": False} in messages
