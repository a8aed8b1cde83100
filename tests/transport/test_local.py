"""This machine as a host, for real: the protocol over a child's pipes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ddpctl.errors import PythonMissing, RemoteError, ShellBroken
from ddpctl.spec.inventory import Host, Inventory
from ddpctl.transport import conversation
from ddpctl.transport.base import Frame
from ddpctl.transport.fleet import open_fleet
from ddpctl.transport.local import LocalTransport
from tests.e2e.site import until
from tests.transport.support import workers_of_this_machine

pytestmark = pytest.mark.slow


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalTransport]:
    transport = LocalTransport(Host(name="me", address="me", connection="local", base_dir=str(tmp_path / "base")))
    yield transport
    transport.close()


def workers() -> list[int]:
    """Workers that are children of this process."""
    return [pid for pid, parent in workers_of_this_machine().items() if parent == os.getpid()]


def test_until_that_never_comes_leaves_no_thread(local: LocalTransport) -> None:
    before = threading.active_count()
    assert local.call("echo", {"frames": 1}, until=threading.Event())["sent"] == 1
    deadline = time.monotonic() + 60
    while threading.active_count() > before:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_interpreter_that_is_not_there(tmp_path: Path) -> None:
    for python in ("/no/python", "no-such-python", str(tmp_path)):
        host = Host(name="me", address="me", connection="local", python=python, base_dir=str(tmp_path / "b"))
        with pytest.raises(PythonMissing, match=python):
            LocalTransport(host).call("echo")


def test_an_interpreter_that_says_something_else(tmp_path: Path) -> None:
    host = Host(name="me", address="me", connection="local", python="/bin/cat", base_dir=str(tmp_path / "b"))
    with pytest.raises(ShellBroken) as caught:
        LocalTransport(host).call("echo")
    assert str(caught.value).startswith("me: ")
    assert "/bin/cat" in str(caught.value)


def test_a_fleet_of_local_hosts(tmp_path: Path) -> None:
    hosts = [
        Host(name=f"l{n}", address="localhost", connection="local", base_dir=str(tmp_path / str(n))) for n in range(3)
    ]
    fleet = open_fleet(Inventory(hosts=tuple(hosts), ssh_config=str(tmp_path / "none")))
    outcome = fleet.together(lambda transport: transport.call("echo", {"text": transport.host})["text"])
    fleet.close()
    assert dict(outcome.results) == {"l0": "l0", "l1": "l1", "l2": "l2"}


def test_one_worker_serves_one_call_after_the_other(local: LocalTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a verb does to its process ends with the call; closing the transport ends the worker."""
    monkeypatch.setattr(conversation, "READY_S", 60.0)  # a worker that is late would be replaced
    assert local.call("echo", {"text": "first"})["text"] == "first"
    first = workers()
    assert local.call("echo", {"text": "second"})["text"] == "second"
    assert local.call("echo", {"text": "third"})["text"] == "third"
    assert workers() == first
    assert len(first) == 1
    local.close()
    until(lambda: not workers())


def test_a_waiting_worker_that_died_is_replaced(local: LocalTransport) -> None:
    local.call("echo", {"text": "first"})
    [worker] = workers()
    os.kill(worker, signal.SIGKILL)
    os.waitid(os.P_PID, worker, os.WEXITED | os.WNOWAIT)
    assert local.call("echo", {"text": "second"})["text"] == "second"
    assert worker not in workers()


def test_calls_side_by_side_leave_one_waiting_worker(local: LocalTransport) -> None:
    with ThreadPoolExecutor(4) as pool:
        texts = pool.map(lambda n: local.call("echo", {"text": f"{n}", "frames": 2, "every": 0.2})["text"], range(4))
        assert list(texts) == ["0", "1", "2", "3"]
    until(lambda: len(workers()) == 1)


def test_a_child_of_the_worker_that_dies_is_an_error_of_that_call(local: LocalTransport) -> None:
    def kill(frame: Frame) -> None:
        [worker] = workers()
        for child in Path(f"/proc/{worker}/task/{worker}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)

    with pytest.raises(RemoteError, match="ended without a result") as caught:
        local.call("echo", {"frames": 99, "every": 0.2}, on_frame=kill)
    assert caught.value.kind == "died"
    assert local.call("echo", {"text": "next"})["text"] == "next"
