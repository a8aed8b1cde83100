"""Connections by strangers to the listeners of a run: they wait for nothing, and no process waits for them."""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpctl.environment.spread import new_credentials
from ddpctl_worker.agent import talk
from ddpctl_worker.agent.talk import AnswerServer, PeerLine
from ddpctl_worker.gang.hub import HubGang
from ddpctl_worker.gang.member import MemberGang
from ddpctl_worker.machine import acceptor, fs, net
from ddpctl_worker.machine.acceptor import Acceptor, UnprovedSession
from ddpctl_worker.machine.limits import MOST_ADDRESSES
from ddpctl_worker.machine.strangers import OTHERS, Places, Tally, network_of
from ddpctl_worker.mesh import wire as mesh_wire
from ddpctl_worker.mesh.listener import Listener
from ddpctl_worker.store.relay import Serving, connect, context, send_line

HERE = "127.0.0.1"
KEY = talk.key_of("ab" * 32)


# --- which connection has to go --------------------------------------------------------------------------------------


def test_the_oldest_of_the_address_with_most_has_to_go() -> None:
    places: Places[str] = Places(4)
    assert [places.add(name, address, 0.0) for name, address in (("peer", "10.0.0.2"), ("a", "10.0.0.9"))] == [None] * 2
    assert [places.add(name, "10.0.0.9", 1.0) for name in ("b", "c")] == [None] * 2
    assert [places.add(name, "10.0.0.9", 2.0) for name in ("d", "e")] == ["a", "b"]
    assert "peer" in places
    assert len(places) == 4


def test_without_a_worst_address_the_oldest_has_to_go() -> None:
    places: Places[int] = Places(3)
    assert [places.add(number, f"10.0.0.{number}", float(number)) for number in range(5)] == [None] * 3 + [0, 1]


def test_who_has_proved_itself_takes_no_place() -> None:
    places: Places[str] = Places(1)
    places.add("peer", "10.0.0.2", 0.0)
    places.remove("peer")
    assert places.add("other", "10.0.0.2", 1.0) is None
    assert places.list_late(1.5) == ["other"]


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("10.0.0.9", "10.0.0.9"),
        ("::ffff:10.0.0.9", "10.0.0.9"),
        ("2001:db8:1:2:aaaa::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::1"),
        ("node1", "node1"),
        ("", ""),
    ],
)
def test_sources(address: str, source: str) -> None:
    assert network_of(address) == source


def test_the_tally_stays_small() -> None:
    tally = Tally()
    for number in range(MOST_ADDRESSES + 500):
        tally.add(f"10.{number >> 8}.{number & 255}.1", "no proof")
    tally.add("10.0.0.1", "no proof")
    told = tally.to_json()
    assert told["count"] == MOST_ADDRESSES + 501
    assert told["addresses"] == MOST_ADDRESSES + 1
    assert list(told["most"].items())[:2] == [(OTHERS, 500), ("10.0.0.1", 2)]


@pytest.mark.slow
def test_the_record_of_strangers(tmp_path: Path) -> None:
    tally = Tally()
    tally.start(str(tmp_path / "strangers.json"))
    tally.add("10.0.0.9", "not a word")
    until = time.monotonic() + 60
    while not (found := fs.read_optional(str(tmp_path / "strangers.json"))) and time.monotonic() < until:
        time.sleep(0.02)
    assert (found["count"], found["most"], found["why"]) == (1, {"10.0.0.9": 1}, "not a word")


# --- the listeners ---------------------------------------------------------------------------------------------------


class Flood:
    """Holds ``count`` idle connections, and opens new connections all the time."""

    def __init__(self, port: int, count: int = 300) -> None:
        self._port, self._count, self._over = port, count, threading.Event()
        self.made = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Flood:
        self._thread.start()
        until = time.monotonic() + 60
        while self.made < self._count and time.monotonic() < until:
            time.sleep(0.01)
        assert self.made >= self._count
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        held: list[socket.socket] = []
        while not self._over.is_set():
            with contextlib.suppress(OSError):
                held.append(socket.create_connection((HERE, self._port), 1))
                self.made += 1
            if len(held) > self._count:
                held.pop(0).close()
            self._over.wait(0.0 if self.made < self._count else 0.005)
        for sock in held:
            sock.close()


@pytest.fixture
def asked() -> Iterator[tuple[AnswerServer, PeerLine]]:
    desk = AnswerServer(KEY, "run", "a", ["a", "b"], HERE)
    desk.start(lambda host, question: {"n": question["n"] + 1})
    line = PeerLine(KEY, "run", "b", {"a": (HERE, desk.port)})
    yield desk, line
    line.close()
    desk.close()


@pytest.mark.slow
def test_agents_answer_each_other_in_a_flood(asked: tuple[AnswerServer, PeerLine]) -> None:
    desk, line = asked
    with Flood(desk.port):
        for number in range(20):
            fresh = PeerLine(KEY, "run", "b", {"a": (HERE, desk.port)})
            assert fresh.ask("a", {"n": number}, 60.0)["n"] == number + 1
            fresh.close()
            assert line.ask("a", {"n": number}, 60.0)["n"] == number + 1


@pytest.mark.slow
def test_the_next_question_needs_no_new_connection(
    asked: tuple[AnswerServer, PeerLine], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, line = asked
    assert line.ask("a", {"n": 1}, 60.0)["n"] == 2

    def refused(*_: object) -> None:
        raise AssertionError("a new connection")

    monkeypatch.setattr(socket, "create_connection", refused)
    assert [line.ask("a", {"n": number}, 60.0)["n"] for number in range(5)] == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_a_connection_that_the_other_side_closed_is_made_again(asked: tuple[AnswerServer, PeerLine]) -> None:
    _, line = asked
    assert line.ask("a", {"n": 1}, 60.0)["n"] == 2
    line._open["a"].sock.shutdown(socket.SHUT_RDWR)
    assert line.ask("a", {"n": 2}, 60.0)["n"] == 3


class Said(Serving):
    def _answer(self, sock: ssl.SSLSocket, request: dict[str, object]) -> None:
        send_line(sock, {"size": None})


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[[], bytes]]:
    who = new_credentials()
    serving = Said("a", context(who.certificate, who.key, str(tmp_path), True), net.listen_at(HERE, 0, 512))
    tls = context(who.certificate, who.key, str(tmp_path), False)

    def ask() -> bytes:
        with connect((HERE, serving.port), tls) as sock:
            send_line(sock, {"to": "a", "k": "list"})
            return sock.recv(100)

    ask.port = serving.port  # type: ignore[attr-defined]
    yield ask
    serving.close()


@pytest.mark.slow
def test_checkpoints_and_files_are_served_in_a_flood(served: Callable[[], bytes]) -> None:
    with Flood(served.port):  # type: ignore[attr-defined]
        assert [served() for _ in range(10)] == [b'{"size": null}\n'] * 10


@pytest.mark.slow
def test_a_member_joins_its_hub_in_a_flood() -> None:
    port = net.listen(0)
    place = {"hub_host": "a", "hub_addr": HERE, "port": port.getsockname()[1], "bind_addr": HERE}
    port.close()
    run: Any = {"run": "run", "hosts": ["a", "b"], "gang": place, "timeouts": {"start": 60}}
    hub_run: Any = {**run, "host": "a"}
    hub = HubGang(hub_run, KEY, lambda: None)
    hub.start()
    member_run: Any = {**run, "host": "b"}
    member = MemberGang(member_run, KEY, lambda: None)
    with Flood(place["port"]):
        member.start()
        until = time.monotonic() + 60
        while hub.missing() and time.monotonic() < until:
            time.sleep(0.02)
        assert not hub.missing()


@pytest.mark.slow
def test_a_port_of_the_preflight_answers_in_a_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpctl_worker.mesh.listener.MAX_CONNECTIONS", 100)
    sock, over = net.listen_at(HERE, 0, 512), threading.Event()
    port = sock.getsockname()[1]
    server = Listener(b"k" * 32, "a", [sock])
    thread = threading.Thread(target=server.serve, args=(over.is_set, 60.0))
    thread.start()
    try:
        with Flood(port), socket.create_connection((HERE, port), 60) as dialer:
            dialer.sendall(mesh_wire.greeting(mesh_wire.new_challenge()))
            assert dialer.recv(200)
        assert len(server._connections) <= 101
    finally:
        over.set()
        thread.join()


# --- without descriptors, without threads ----------------------------------------------------------------------------


@contextlib.contextmanager
def no_descriptor() -> Iterator[None]:
    limits, held = resource.getrlimit(resource.RLIMIT_NOFILE), []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(64, len(os.listdir("/proc/self/fd")) + 20), limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        yield
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.fixture
def echo() -> Iterator[tuple[Acceptor, int]]:
    sock = net.listen_at(HERE, 0, 512)
    made = Acceptor(sock, lambda line: UnprovedSession(line, lambda line: line.sendall(b"here")), "echo")
    made.start()
    yield made, sock.getsockname()[1]
    made.close()


def test_a_lack_of_descriptors_is_waited_out(echo: tuple[Acceptor, int]) -> None:
    made, port = echo
    caller = socket.socket()
    caller.settimeout(60)
    with no_descriptor():
        caller.connect((HERE, port))
        until = time.monotonic() + 60
        while not made._trouble and time.monotonic() < until:
            time.sleep(0.01)
        began = time.process_time()
        time.sleep(0.3)
        spent = time.process_time() - began
    assert "Too many open files" in made._trouble
    assert spent < 0.2, "it waits, and does not try all the time"
    with caller:
        assert caller.recv(10) == b"here"


def test_a_lack_of_threads_ends_no_listener(echo: tuple[Acceptor, int], monkeypatch: pytest.MonkeyPatch) -> None:
    made, port = echo

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as scarce:
        scarce.setattr(threading.Thread, "start", refused)
        with socket.create_connection((HERE, port), 60) as caller:
            assert caller.recv(10) == b""
    with socket.create_connection((HERE, port), 60) as caller:
        assert caller.recv(10) == b"here"
    assert made.alive


def test_who_says_nothing_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "HELLO_S", 0.2)
    desk = AnswerServer(KEY, "run", "a", ["a", "b"], HERE)
    desk.start(lambda host, question: {})
    try:
        with socket.create_connection((HERE, desk.port), 60) as caller:
            assert caller.recv(10) == b""
    finally:
        desk.close()


def test_a_hub_without_descriptors_listens_again() -> None:
    """Its loop continues meanwhile."""
    place = {"hub_host": "a", "hub_addr": HERE, "port": 0, "bind_addr": HERE}
    run: Any = {"run": "run", "host": "a", "hosts": ["a", "b"], "gang": place, "timeouts": {"start": 60}}
    hub = HubGang(run, KEY, lambda: None)
    hub._selector = selectors.DefaultSelector()
    hub._listen(0.0)
    assert hub._listener is not None
    with no_descriptor():
        hub._accept(1.0)
    assert [hub._listener, hub._listen_at] == [None, 1.5]
    hub._listen(1.5)
    assert hub._listener is not None
    hub._close_all()
