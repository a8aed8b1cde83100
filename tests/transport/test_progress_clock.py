"""Nodes that live and make no progress: they hold no command."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import paramiko
import pytest
from paramiko.common import MSG_SERVICE_ACCEPT, MSG_USERAUTH_INFO_REQUEST

from ddpctl.environment.direct import FileSource, send_missing
from ddpctl.environment.spread import Addresses, bring_files
from ddpctl.errors import DdpctlError, RemoteError
from ddpctl.spec.command import Ran
from ddpctl.spec.inventory import Host
from ddpctl.spec.origin import JobId
from ddpctl.spec.plan import CodeRef
from ddpctl.spec.resuming import Holdings
from ddpctl.stages import follow as follow_module
from ddpctl.stages.fetch import fetch_run
from ddpctl.stages.follow import follow
from ddpctl.stages.restart import receive
from ddpctl.stages.restore import Restoring
from ddpctl.transport import conversation, quiet, watch
from ddpctl.transport.base import FleetOutcome, Frame
from ddpctl.transport.conversation import WorkerTransport
from ddpctl.transport.fleet import SSHFleet
from ddpctl.transport.limits import EMPTY_QUESTIONS, LEAST_BYTES
from ddpctl.transport.login import _Login
from ddpctl.transport.progress_clock import ProgressClock
from ddpctl.transport.quiet import QuietCalls
from ddpctl.transport.userauth import AuthReply, NoAnswer, Userauth
from ddpctl_worker.wire import contract

STALL_S = 0.4
HEARTBEAT = json.dumps({contract.KEEPALIVE: 1}).encode() + b"\n"


def heartbeats() -> Iterator[bytes]:
    while True:
        yield HEARTBEAT


def trickle(first: bytes = b"", then: bytes = b"x") -> Iterator[bytes]:
    yield first
    while True:
        yield then


WAYS: dict[str, Callable[[], Iterator[bytes]]] = {
    "hang": heartbeats,
    "trickle a line": lambda: trickle(b'{"chunk": "'),
    "trickle a file": lambda: trickle(b'{"chunk":true,"raw":1000000}\n'),
}


class HostilePipe:
    """A worker that greets, takes ``takes`` bytes of the body at a time, and says ``words``, each after a moment."""

    def __init__(self, words: Iterator[bytes], takes: int = 1) -> None:
        self.words, self.takes, self.header = words, takes, b""
        self.greeted = self.asked = False

    def send(self, data: memoryview, timeout: float) -> int:
        if not self.asked:
            self.header, self.asked = self.header + bytes(data), self.greeted
            return len(data)
        time.sleep(0.01)
        return min(len(data), self.takes)

    def recv(self, timeout: float) -> bytes | None:
        if not self.greeted:
            self.greeted = True
            said = json.loads(self.header.partition(b"\n")[0])
            return f"{said['banner']} {said['nonce']} {contract.HAVE}\n".encode()
        time.sleep(0.01)
        return next(self.words)

    def stderr(self) -> bytes:
        return b""

    def exit_code(self, timeout: float) -> int:
        return 0

    def end_input(self) -> None: ...

    def close(self, lost: bool = False) -> None: ...


class HostileTransport(WorkerTransport):
    user = "train"

    def __init__(self, words: Callable[[], Iterator[bytes]], takes: int = 1) -> None:
        self.said: list[str] = []
        super().__init__(Host(name="bad", address="bad"), QuietCalls(self.said.append))
        self._words, self._takes = words, takes

    def _worker(self, timeout: float | None) -> Any:
        return HostilePipe(self._words(), self._takes)

    def prepare(self) -> None: ...

    def run(self, argv: Sequence[str], *, timeout: float | None = 60.0, password: str | None = None) -> Ran:
        raise NotImplementedError

    def close(self) -> None: ...


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProgressClock.__init__, "__defaults__", (STALL_S,))
    monkeypatch.setattr(follow_module, "TAIL_LINES_S", STALL_S)
    monkeypatch.setattr(quiet, "QUIET_S", STALL_S / 2)


def source(tmp_path: Path, size: int) -> FileSource:
    path = tmp_path / "file"
    path.write_bytes(bytes(size))
    return FileSource(path, hashlib.sha256(bytes(size)).hexdigest(), size, "file")


def send_a_file(bad: HostileTransport, tmp_path: Path) -> Any:
    send_missing(bad, [source(tmp_path, 100_000)], Holdings({}, {}, 1 << 40))


def spread_a_file(bad: HostileTransport, tmp_path: Path) -> Any:
    known = FleetOutcome({"bad": Holdings({}, {}, 1 << 40)})
    found = bring_files("code", [source(tmp_path, 9 << 20)], SSHFleet({"bad": bad}), print, ["bad"], known=known)
    raise found.errors["bad"]


def get_the_code(bad: HostileTransport, tmp_path: Path) -> Any:
    receive(bad, CodeRef("a" * 64, 1 << 20), lambda event: None, cache=tmp_path)


def fetch_all(bad: HostileTransport, tmp_path: Path) -> Any:
    raise fetch_run("run", ["bad"], tmp_path, SSHFleet({"bad": bad}), lambda event: None).errors["bad"]


def restore_all(bad: HostileTransport, tmp_path: Path) -> Any:
    restoring = Restoring(JobId("lab", "exp", "job"), ["bad"], lambda event: None, Addresses())
    raise restoring.run(SSHFleet({"bad": bad}))["bad"]


def tail_all(bad: HostileTransport, tmp_path: Path) -> Any:
    raise follow("run", ["bad"], SSHFleet({"bad": bad}), lambda event: None, lambda groups: None, follow=False)["bad"]


VERBS: dict[Callable[[HostileTransport, Path], Any], str] = {
    send_a_file: "store_put",
    spread_a_file: "spread",
    get_the_code: "store_get",
    fetch_all: "fetch",
    restore_all: "restore",
    tail_all: "tail",
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("work", VERBS)
def test_no_command_waits_for_a_node_without_progress(
    impatient: None, tmp_path: Path, work: Callable[[HostileTransport, Path], Any], way: str
) -> None:
    bad = HostileTransport(WAYS[way])
    begun = time.monotonic()
    with pytest.raises(DdpctlError) as caught:
        work(bad, tmp_path)
    note = f"waiting for bad: nothing but signs of life from `{VERBS[work]}` for "
    assert any(text.startswith(note) for text in bad.said), bad.said
    assert "no progress" in str(caught.value)
    assert caught.value.host == "bad"
    assert time.monotonic() - begun < 120


class ThirdsClock(ProgressClock):
    """Each wait counts as a third of the time, on a busy machine too."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.waits = self.taken = 0

    def moved(self, count: int) -> None:
        super().moved(count)
        self.taken += count

    def waited(self, seconds: float) -> None:
        super().waited(STALL_S / 3)
        self.waits += 1


@pytest.mark.slow
def test_a_node_that_takes_the_file_slowly_is_waited_for() -> None:
    """Each third of the time brings enough bytes."""
    done = json.dumps({"ok": True, "result": {"stored": True, "bytes": 0}}).encode() + b"\n"
    clock = ThirdsClock(STALL_S)

    def words() -> Iterator[bytes]:
        for times in range(1, 10):
            while clock.taken < times * LEAST_BYTES:
                time.sleep(0.001)
            yield HEARTBEAT
        yield done

    bad = HostileTransport(words, takes=LEAST_BYTES // 10)
    args = {"hash": "a" * 64, "size": 1 << 30, "offset": 0}
    body = iter([bytes(1 << 20)] * 1000)
    bad.call("store_put", args, body=body, timeout=None, clock=clock)
    assert clock.waits >= 9


def test_lines_that_a_pager_holds_up_are_waited_for(impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time in which a person reads is no wait for the node. Only the reading takes time here."""
    now = 0.0
    for module in (watch, conversation):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    line = {"rank": [0], "stream": ["stdout"], "time": [5.0], "text": ["x"], "end": ["\n"], "attempt": [1]}
    frames = [{"lines": {**line, "offset": [number]}, "offset": number, "more": False} for number in (1, 2)]
    result = {"ok": True, "result": {"offset": 2, "state": "succeeded"}}
    bad = HostileTransport(lambda: iter(json.dumps(said).encode() + b"\n" for said in (*frames, result)))
    shown: list[int] = []

    def read(frame: Frame) -> None:
        nonlocal now
        shown.append(frame.data["offset"])
        now += 1.5 * STALL_S

    bad.call("tail", {"run": "run"}, on_frame=read, timeout=None, clock=ProgressClock(STALL_S))
    assert shown == [1, 2]
    assert bad.said == []


@pytest.mark.slow
def test_a_wait_for_other_hosts_counts_only_after_its_end() -> None:
    clock = ProgressClock(STALL_S)
    clock.pause()
    clock.waited(2 * STALL_S)
    clock.check("a call")
    clock.resume()
    clock.waited(2 * STALL_S)
    with pytest.raises(RemoteError, match=r"a call makes no progress: 0 bytes in 0\.4 s"):
        clock.check("a call")


def test_a_server_that_sends_other_messages_for_ever_ends_no_wait_of_a_login() -> None:
    """The deadline of an answer holds, whatever comes in place of the answer."""
    connection: Any = SimpleNamespace(is_active=lambda: True)
    auth = Userauth(connection, "alice", 0.2)
    connection._send_message = lambda message: None

    class Endless:
        def get(self, timeout: float) -> tuple[int, paramiko.Message]:
            time.sleep(0.001)
            return MSG_USERAUTH_INFO_REQUEST, paramiko.Message()

    auth._answers = Endless()  # type: ignore[assignment]
    with pytest.raises(NoAnswer) as caught:
        auth._wait({MSG_SERVICE_ACCEPT})
    assert caught.value.silent


def test_a_server_that_asks_nothing_for_ever_refuses() -> None:
    asked = 0

    def respond() -> AuthReply:
        nonlocal asked
        asked += 1
        return AuthReply(prompts=())

    hop: Any = SimpleNamespace(user="alice")
    login = _Login(hop, SimpleNamespace(respond=respond), None)  # type: ignore[arg-type]
    assert login._quiet(AuthReply(prompts=())).prompts is None
    assert asked == EMPTY_QUESTIONS
