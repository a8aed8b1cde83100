"""Many hosts at once, on tables instead of connections."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time

import pytest

from ddpctl.errors import DdpctlError, InternalFault, Interrupted, RemoteError, Unreachable, UsageError
from ddpctl.spec.command import Ran
from ddpctl.transport import fleet as fleet_module
from ddpctl.transport.base import Frame, Transport
from ddpctl.transport.fleet import SSHFleet
from ddpctl.transport.limits import WORKERS
from tests.transport.dry import DryFleet, DryTransport, Stream


def fleet(count: int = 4) -> DryFleet:
    return DryFleet(DryTransport(f"n{n}", {"echo": {"n": n}}) for n in range(count))


def test_every_host_finishes_and_is_reported_in_order() -> None:
    hosts = DryFleet(
        [
            DryTransport("slow", {"echo": lambda _asked: time.sleep(0.05) or {"state": "running"}}),  # type: ignore[func-returns-value]
            DryTransport("gone", unreachable=Unreachable("no answer")),
            DryTransport("bad", {"echo": RemoteError("no such run", kind="no_such_run")}),
            DryTransport("good", {"echo": {"state": "failed"}}),
        ]
    )
    outcome = hosts.map(lambda transport: transport.call("echo", {"run": "r"})["state"])
    assert list(outcome.results.items()) == [("slow", "running"), ("good", "failed")]
    assert list(outcome.errors) == ["gone", "bad"]
    assert str(outcome.errors["gone"]) == "gone: no answer"
    assert [(asked.host, asked.verb, asked.args) for asked in hosts.calls] == [
        ("slow", "echo", {"run": "r"}),
        ("bad", "echo", {"run": "r"}),
        ("good", "echo", {"run": "r"}),
    ]


def test_none_is_a_result() -> None:
    assert dict(fleet(2).map(lambda _transport: None).results) == {"n0": None, "n1": None}


def test_on_done_is_called_on_the_calling_thread() -> None:
    seen: list[tuple[str, object, bool]] = []
    here = threading.current_thread()

    def done(host: str, result: object) -> None:
        seen.append((host, result, threading.current_thread() is here))

    fleet(3).map(lambda transport: transport.call("echo")["n"], on_done=done)
    assert sorted(seen) == [("n0", 0, True), ("n1", 1, True), ("n2", 2, True)]


def test_a_fault_of_ours_is_one_hosts_error_and_the_others_are_served() -> None:
    def work(transport: Transport) -> str:
        if transport.host == "n0":
            raise ZeroDivisionError("oh")
        time.sleep(0.1)
        return "done"

    outcome = fleet(4).map(work)
    assert dict(outcome.results) == dict.fromkeys(["n1", "n2", "n3"], "done")
    fault = outcome.errors["n0"]
    assert isinstance(fault, InternalFault)
    assert isinstance(fault.__cause__, ZeroDivisionError)
    assert "n0: internal error: ZeroDivisionError: oh (test_fleet.py:" in str(fault)
    assert "--debug" in str(fault)


def test_map_works_on_so_many_at_once_and_together_on_all() -> None:
    count, lock, now, most = 2 * WORKERS, threading.Lock(), 0, 0

    def work(_transport: Transport) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.02)
        with lock:
            now -= 1

    fleet(count).map(work)
    assert most <= WORKERS
    barrier = threading.Barrier(count)
    assert len(fleet(count).together(lambda _transport: barrier.wait(60)).results) == count


def test_chosen_hosts_and_unknown_ones() -> None:
    hosts = fleet(4)
    assert list(hosts.map(lambda transport: transport.host, ["n2", "n0", "n2"]).results) == ["n2", "n0"]
    assert dict(hosts.map(lambda transport: transport.host, []).results) == {}
    with pytest.raises(UsageError, match="n9"):
        hosts.map(lambda transport: transport.host, ["n9"])


def test_the_table_answers_streams_and_functions() -> None:
    host = DryTransport("h", {"echo": Stream([Frame({"n": 1}), Frame({"n": 2}, b"raw")], {"end": True})})
    frames: list[Frame] = []
    assert host.call("echo", on_frame=frames.append) == {"end": True}
    assert [frame.raw for frame in frames] == [b"", b"raw"]
    with pytest.raises(DdpctlError):
        host.call("echo", cancel=lambda: True)
    twice = DryTransport("h", {"echo": lambda asked: {"v": asked.args["v"] * 2}})
    assert twice.call("echo", {"v": 4}, body=[b"a", b"b"]) == {"v": 8}
    assert twice.calls[-1].body == b"ab"
    with pytest.raises(DdpctlError):
        twice.call("unknown")


def test_hosts_without_a_connection_are_named_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "CONNECT_NEWS_S", 0.01)
    said: queue.SimpleQueue[str] = queue.SimpleQueue()
    heard: list[str] = []

    class Slow(DryTransport):
        def prepare(self) -> None:
            while heard[-1:] != ["waiting for n1: no connection yet"]:  # n0 may need a moment too
                heard.append(said.get(timeout=60))

    hosts = SSHFleet({"n0": DryTransport("n0", {}), "n1": Slow("n1", {})}, say=said.put)
    assert len(hosts.map(lambda transport: transport.host).results) == 2
    assert set(heard) <= {"waiting for n0,n1: no connection yet", "waiting for n1: no connection yet"}


def test_nothing_begins_after_ctrl_c() -> None:
    """The fleet can be used again, to stop the work that had begun."""
    hosts, begun, over = fleet(3 * WORKERS), list[str](), threading.Event()

    def work(transport: Transport) -> None:
        begun.append(transport.host)
        over.wait()

    def press() -> None:
        while len(begun) < WORKERS:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()
    with pytest.raises(KeyboardInterrupt):
        hosts.map(work)
    over.set()
    deadline = time.monotonic() + 60
    while left := [thread.name for thread in threading.enumerate() if thread.name.startswith("ddpctl-")]:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)
    assert len(begun) == WORKERS
    assert hosts.map(lambda transport: transport.call("echo")["n"]).ok


def test_work_that_has_begun_makes_no_further_call_after_ctrl_c() -> None:
    """Not even on a new connection, although the fleet can be used again."""
    hung_up, left = threading.Event(), queue.SimpleQueue[type[BaseException]]()

    class Busy(DryTransport):
        def close(self) -> None:
            hung_up.set()

    def answer(_argv: object, _password: object) -> Ran:
        os.kill(os.getpid(), signal.SIGINT)
        hung_up.wait(60)
        return Ran(None, error="the connection was lost")

    def work(transport: Transport) -> None:
        transport.run(["first"])
        for further in (lambda: transport.run(["second"]), lambda: transport.call("echo"), transport.prepare):
            with pytest.raises(Interrupted) as error:
                further()
            left.put(error.type)

    host = Busy("n0", {"echo": {"n": 0}}, runs=answer)
    hosts = SSHFleet({"n0": host})
    with pytest.raises(KeyboardInterrupt):
        hosts.map(work)
    assert [left.get(timeout=60) for _ in range(3)] == [Interrupted] * 3
    assert (host.ran, host.calls) == ([(("first",), None)], [])
    assert hosts.map(lambda transport: transport.call("echo")["n"]).results == {"n0": 0}
