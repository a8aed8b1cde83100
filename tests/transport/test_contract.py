"""The contract of every transport, on a worker of this machine and on a worker behind SSH."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ddpctl.errors import Interrupted, RemoteError
from ddpctl.spec.inventory import Host
from ddpctl.transport.base import Frame, Transport
from ddpctl.transport.local import LocalTransport
from tests.lab import Lab
from tests.transport.support import workers_of_host, workers_of_this_machine

HOUR = {"frames": 1, "every": 3600}  # a call that does not end by itself, and of which nothing comes


@dataclass
class Side:
    """A transport and the processes of its worker."""

    transport: Transport
    workers: Callable[[], list[int]]

    def serves(self) -> bool:
        """A child of the worker serves the call."""
        return len(self.workers()) == 2

    def wait_for_end(self) -> None:
        deadline = time.monotonic() + 60
        while found := self.workers():
            assert time.monotonic() < deadline, f"still there: {found}"
            time.sleep(0.02)


def local_workers() -> list[int]:
    """Children of this process, and the child of each that serves a call."""
    parents = workers_of_this_machine()
    return [pid for pid, parent in parents.items() if os.getpid() in (parent, parents.get(parent))]


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Side]:
    transport = LocalTransport(Host(name="node0", address="me", connection="local", base_dir=str(tmp_path / "base")))
    yield Side(transport, local_workers)
    transport.close()


@pytest.fixture
def ssh(lab3: Lab, node0: Transport) -> Side:
    return Side(node0, lambda: workers_of_host(lab3[0]))


@pytest.fixture(params=[pytest.param("local", marks=pytest.mark.slow), pytest.param("ssh", marks=pytest.mark.lab)])
def side(request: pytest.FixtureRequest) -> Side:
    found: Side = request.getfixturevalue(request.param)
    return found


def test_body_and_frames_at_once(side: Side) -> None:
    """More than any pipe or window holds, both ways at the same time."""
    body = [bytes([number]) * (1 << 20) for number in range(24)]
    frames: list[Frame] = []
    request = {"size": 24 << 20, "frames": 24, "raw": 1 << 20}
    result = side.transport.call("echo", request, body=iter(body), on_frame=frames.append)
    assert result["got"] == 24 << 20
    assert result["sha256"] == hashlib.sha256(b"".join(body)).hexdigest()
    assert [frame.data["n"] for frame in frames] == list(range(24))
    assert all(len(frame.raw) == 1 << 20 for frame in frames)


def test_a_body_that_cannot_be_read(side: Side) -> None:
    def broken() -> Iterator[bytes]:
        yield b"x" * 100
        raise OSError("the file is gone")

    with pytest.raises(OSError, match="the file is gone"):
        side.transport.call("echo", {"size": 1000}, body=broken())


def test_an_error_of_the_worker(side: Side) -> None:
    for verb, args, kind in (("echo", {"fail": "no_space"}, "no_space"), ("no-such-verb", {}, "bad_request")):
        with pytest.raises(RemoteError) as caught:
            side.transport.call(verb, args)
        assert (caught.value.kind, caught.value.host) == (kind, "node0")


def test_the_worker_is_told_its_host_by_the_transport(side: Side) -> None:
    """Whatever the caller's arguments say."""
    assert side.transport.call("echo", {"host": "other", "text": "t"})["text"] == "t"


def test_cancel_ends_the_worker_and_not_the_connection(side: Side) -> None:
    """Nothing comes from the worker meanwhile: the caller's wish alone ends the wait."""
    frames: list[Frame] = []
    with pytest.raises(Interrupted):
        side.transport.call("echo", HOUR, on_frame=frames.append, timeout=None, cancel=side.serves)
    side.wait_for_end()
    assert frames == []
    assert side.transport.call("echo", {"text": 1})["text"] == 1


def test_the_timeout_of_a_call(side: Side) -> None:
    with pytest.raises(RemoteError) as caught:
        side.transport.call("echo", HOUR, timeout=1)
    assert (caught.value.kind, caught.value.exit_code) == ("timeout", 4)
    side.wait_for_end()


def test_until_brings_the_result(side: Side) -> None:
    enough = threading.Event()
    request = {"frames": 600, "every": 0.2}
    result = side.transport.call("echo", request, on_frame=lambda frame: enough.set(), until=enough)
    assert 1 <= result["sent"] < 600
    assert side.transport.call("echo", HOUR, until=enough)["sent"] == 0, "it was set before the call"
    side.wait_for_end()
