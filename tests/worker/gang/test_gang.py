"""Three supervisors of one run, on three names of this machine, watch each other over loopback."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.gang.limits import MAX_HELLO, MAX_LINE, MAX_MESSAGE, SILENT_S
from ddpctl_worker.gang.member import MemberGang
from ddpctl_worker.gang.wire import HubWire, MemberWire
from ddpctl_worker.machine.strangers import Stranger
from tests.worker.conftest import MakeNode
from tests.worker.deadlines import shorten
from tests.worker.node import Node, eventually, processes_of
from tests.worker.programs import SLEEP, thread_stopped

HOSTS = ["node0", "node1", "node2"]


class Trio:
    """A run on three nodes."""

    def __init__(self, make_node: MakeNode) -> None:
        self.nodes = [make_node(host) for host in HOSTS]
        self.run = f"gang-{secrets.token_hex(6)}"
        self.key = secrets.token_hex(32)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def record(self, rank: int, **changes: Any) -> dict[str, Any]:
        place = {"hub_host": "node0", "hub_addr": "127.0.0.1", "port": self.port, "bind_addr": "127.0.0.1"}
        return self.nodes[rank].record(
            self.run, node_rank=rank, nnodes=3, hosts=HOSTS, nproc=1, ranks=[rank], world_size=3, gang=place, **changes
        )

    def start(self, *scripts: str, only: tuple[int, ...] = (0, 1, 2), **changes: Any) -> None:
        for rank in only:
            self.nodes[rank].start(scripts[rank], self.record(rank, **changes), gang_key=self.key)

    def running(self) -> None:
        for node in self.nodes:
            node.wait_state(self.run, "running")

    def joined(self, log: str = "") -> None:
        """All three are connected: the hub's port has two established connections."""
        wanted = f":{self.port:04X}"

        def connected() -> bool:
            with open("/proc/net/tcp", encoding="ascii") as table:
                rows = [line.split() for line in table]
            return sum(row[1].endswith(wanted) and row[3] == "01" for row in rows) >= 2

        eventually(connected, "the gang is complete")

    def ended(self, seconds: float = 30.0) -> list[dict[str, Any]]:
        return [node.wait_state(self.run, seconds=seconds) for node in self.nodes]

    def supervisors_end(self) -> None:
        eventually(lambda: not any(_alive(node, self.run) for node in self.nodes), "the supervisors end")


def in_simulation(*values: Any, name: str) -> Any:
    """Return test values that run with real processes in ``make test-all`` only.

    The simulator covers them under many seeds.
    """
    return pytest.param(
        *values, id=name, marks=pytest.mark.full(covered_by="tests/simulator/test_seeds.py::test_gangs")
    )


def _alive(node: Node, run: str) -> bool:
    pid = node.pid(run, "supervisor")
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def trio(make_node: MakeNode) -> Trio:
    return Trio(make_node)


def after(flag: Path) -> str:
    """The head of a script that begins once the test has made this file."""
    return f"import os, time\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.05)\n"


@pytest.mark.parametrize("culprit", [in_simulation(0, name="hub"), pytest.param(2, id="member")])
def test_a_failure_stops_all_and_names_the_culprit(trio: Trio, tmp_path: Path, culprit: int) -> None:
    go_on, scripts = tmp_path / "go-on", [SLEEP] * 3
    scripts[culprit] = after(go_on) + "raise ValueError('boom')"
    trio.start(*scripts)
    trio.joined()
    trio.running()
    go_on.touch()
    for status in trio.ended():
        assert status["state"] == "failed"
        assert status["cause"]["host"] == f"node{culprit}"
        assert status["cause"]["rank"] == culprit
        assert status["cause"]["message"] == f"rank {culprit} exited with code 1: ValueError: boom"
        assert "Traceback" in status["cause"]["traceback"]
    trio.supervisors_end()


@pytest.mark.full(covered_by="tests/simulator/test_seeds.py::test_gangs")
def test_victims_that_speak_first_are_not_the_cause(trio: Trio, tmp_path: Path) -> None:
    """The culprit waits for the victims' files: on a busy machine a fixed delay would not ensure the order."""
    go_on = tmp_path / "go-on"
    victim = after(go_on) + "open(%r, 'w'); raise RuntimeError('Connection closed by peer [10.9.0.11]:39583')"
    files = [str(tmp_path / name) for name in HOSTS[:2]]
    waits = f"import os, time\nwhile not all(map(os.path.exists, {files})):\n    time.sleep(0.05)\ntime.sleep(1.5)\n"
    culprit = waits + "raise ValueError('the reason')"
    trio.start(victim % files[0], victim % files[1], culprit)
    trio.joined()
    trio.running()
    go_on.touch()
    for status in trio.ended():
        assert status["cause"]["host"] == "node2"
        assert "the reason" in status["cause"]["message"]


def test_success_stands_whatever_happens_to_the_others_later(trio: Trio, tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    trio.start("print(1)", SLEEP, after(go_on) + "raise ValueError('late')")
    trio.nodes[0].wait_state(trio.run, "succeeded")
    go_on.touch()
    first, second, third = trio.ended()
    assert first["state"] == "succeeded"
    assert (second["state"], third["state"]) == ("failed", "failed")
    assert second["cause"]["host"] == "node2"
    trio.supervisors_end()


@pytest.mark.full(covered_by="tests/simulator/test_seeds.py::test_gangs")
def test_all_succeed_and_nobody_stays_behind(trio: Trio) -> None:
    trio.start(*["import time; time.sleep(2)"] * 3)
    assert [one["state"] for one in trio.ended()] == ["succeeded"] * 3
    trio.supervisors_end()


@pytest.mark.parametrize("where", [in_simulation(0, name="hub"), pytest.param(1, id="member")])
def test_a_kill_on_one_node_is_a_kill_on_all(trio: Trio, where: int) -> None:
    trio.start(SLEEP, SLEEP, SLEEP)
    trio.joined()
    trio.nodes[where].call("stop", run=trio.run, grace=5, by="alice")
    for status in trio.ended():
        assert status["state"] == "killed"
        assert status["cause"]["reason"] == "killed_by_user"
        assert "alice" in status["cause"]["message"]
    trio.supervisors_end()


@pytest.mark.parametrize("lost", [pytest.param(0, id="hub"), in_simulation(1, name="member")])
def test_a_node_that_vanishes_stops_the_others_with_its_name(trio: Trio, lost: int) -> None:
    """SIGSTOP of guardian and supervisor is what a power loss looks like from afar: connected, and not a word."""
    trio.start(SLEEP, SLEEP, SLEEP)
    trio.running()
    trio.joined()
    gone = trio.nodes[lost]
    pids = [gone.pid(trio.run, "guardian"), gone.pid(trio.run, "supervisor")]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        for node in trio.nodes:
            if node is not gone:
                status = node.wait_state(trio.run, seconds=60)
                assert status["state"] == "failed"
                assert status["cause"]["reason"] == "node_lost"
                assert status["cause"]["host"] == gone.host
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("lost", [in_simulation(0, name="hub"), pytest.param(1, id="member")])
def test_a_killed_supervisor_stops_the_others(trio: Trio, lost: int) -> None:
    trio.start(SLEEP, SLEEP, SLEEP)
    trio.running()
    trio.joined()
    os.kill(trio.nodes[lost].pid(trio.run, "supervisor"), signal.SIGKILL)
    for node, status in zip(trio.nodes, trio.ended(), strict=True):
        assert status["cause"]["reason"] == "supervisor_lost"
        assert status["cause"]["host"] == f"node{lost}"
        assert status["state"] == ("lost" if node is trio.nodes[lost] else "failed")


@pytest.mark.full(covered_by="tests/simulator/test_seeds.py::test_gangs")
def test_nodes_that_never_come_are_named(trio: Trio) -> None:
    waits = "import time; time.sleep(300)"
    limits = {"start": 30, "stop": 2, "silence": None}
    record = trio.record(0, timeouts=limits)
    # A launcher that waits in the rendezvous: it has no rank yet.
    trio.nodes[0].start(SLEEP, record, gang_key=trio.key, argv=["/bin/sleep", "300"])
    record = trio.record(1, timeouts=limits)
    trio.nodes[1].start(waits, record, gang_key=trio.key, argv=["/bin/sleep", "300"])
    for node in trio.nodes[:2]:
        status = node.wait_state(trio.run, seconds=60)
        assert status["state"] == "failed"
        assert status["cause"]["reason"] == "rendezvous_timeout"
        assert status["cause"]["host"] == "node2"
        assert "node2 never joined" in status["cause"]["message"]


def test_nodes_that_cannot_watch_each_other_are_named_though_their_ranks_run(trio: Trio) -> None:
    limits = {"start": 20, "stop": 2, "silence": None}
    trio.start(SLEEP, SLEEP, only=(0, 1), timeouts=limits)
    record = trio.record(2, timeouts=limits)
    record["gang"] = dict(record["gang"], hub_addr="127.0.0.2")
    trio.nodes[2].start(SLEEP, record, gang_key=trio.key)
    ended = trio.ended(60)
    assert [(status["state"], status["cause"]["reason"]) for status in ended] == [("failed", "rendezvous_timeout")] * 3
    said = ended[0]["cause"]["message"]
    assert f"port {trio.port} of node0 within 20 s" in said
    assert "node2" in said
    logged = (trio.nodes[2].folder(trio.run) / "supervisor.log").read_text()
    why = "[Errno 111] Connection refused"
    assert logged.count(f"gang: no connection to node0 port {trio.port}: {why}") == 1
    trio.supervisors_end()


def test_a_port_that_stays_taken_ends_the_run_before_the_deadline_of_the_start(trio: Trio) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", trio.port))
        taken.listen()
        trio.start(SLEEP, SLEEP, SLEEP, timeouts={"start": 3600, "stop": 2, "silence": None})
        why = trio.nodes[0].wait_state(trio.run, "failed", seconds=60)["cause"]
        assert (why["reason"], why["host"]) == ("supervisor_lost", "node0")
        assert f"node0 cannot listen on 127.0.0.1 port {trio.port}: [Errno 98]" in why["message"]
        assert "ddpctl exec --host node0 -- ss -ltnp" in why["message"]
    # Now the port is free, and the other nodes hear the verdict.
    assert [status["cause"] for status in trio.ended(60)] == [why] * 3
    trio.supervisors_end()


@pytest.mark.full(covered_by="tests/simulator/test_seeds.py::test_gangs")
def test_a_short_run_is_no_missing_node(trio: Trio) -> None:
    """If the ranks of a node end before the hub listens, the node stays until the hub has its report."""
    shorten(trio.nodes[2], "gang/limits.py", MEET_S=60.0)  # the hub may be slow to start
    limits = {"start": 30, "stop": 2, "silence": None}
    trio.start("", "", "pass", only=(2,), timeouts=limits)
    trio.nodes[2].wait_state(trio.run, "succeeded")
    time.sleep(1.5)
    longer = "import time; time.sleep(33)"
    trio.start(longer, longer, only=(0, 1), timeouts=limits)
    assert [status["state"] for status in trio.ended(60)] == ["succeeded"] * 3


def test_silence_of_all_nodes_ends_the_run_and_output_of_one_keeps_it(trio: Trio) -> None:
    talk = "import time\nfor _ in range(15):\n    print('.', flush=True)\n    time.sleep(1)\ntime.sleep(300)"
    limits = {"start": 30, "stop": 2, "silence": 12, "silence_enforced": True}
    trio.start(SLEEP, talk, SLEEP, timeouts=limits)
    for status in trio.ended():
        assert status["state"] == "failed"
        assert status["cause"]["reason"] == "silence"
    spoken = [line for line in trio.nodes[1].lines(trio.run) if line["text"] == "."]
    assert len(spoken) == 15


def test_a_node_that_cannot_start_stops_the_others(trio: Trio) -> None:
    trio.start(SLEEP, SLEEP, SLEEP, only=(0, 1))
    shorten(trio.nodes[2], "gang/limits.py", ALONE_S=60.0)  # the hub may be slow to answer
    record = trio.record(2)
    status = trio.nodes[2].call(
        "start", **trio.nodes[2].request(SLEEP, record, gang_key=trio.key, argv=["/does/not/exist"])
    )["status"]
    assert status["state"] == "failed"
    for status in trio.ended():
        assert status["cause"]["host"] == "node2"
        assert status["cause"]["reason"] == "spawn_failed"


def test_strangers_get_nothing(trio: Trio) -> None:
    trio.start(SLEEP, SLEEP, SLEEP)
    trio.running()
    trio.joined()
    hello = b'{"run": "%s", "host": "node1", "nonce": "00", "mac": "00"}\n' % trio.run.encode()
    for words in (b"GET / HTTP/1.0\r\n\r\n", hello, b"\0" * 100_000 + b"\n", b"{}\n" * 1000, b"x" * 600_000):
        with socket.create_connection(("127.0.0.1", trio.port), 60) as sock:
            try:
                sock.sendall(words)
                answer = sock.recv(1024)
            except ConnectionError:
                answer = b""
            assert answer == b""
    assert [node.status(trio.run)["state"] for node in trio.nodes] == ["running"] * 3


@pytest.mark.parametrize("still", [in_simulation(0, name="hub"), pytest.param(1, id="member")])
def test_a_supervisor_whose_loop_stands_still_is_named_though_its_gang_talks_on(trio: Trio, still: int) -> None:
    """Its other threads live: the heartbeats come, but they say that no loop watches the ranks there."""
    trio.start(SLEEP, SLEEP, SLEEP)
    trio.running()
    trio.joined()
    gone = trio.nodes[still]
    with thread_stopped(gone.pid(trio.run, "supervisor")):
        for node in trio.nodes:
            if node is not gone:
                status = node.wait_state(trio.run, seconds=60)
                assert (status["state"], status["cause"]["reason"]) == ("failed", "supervisor_lost")
                assert status["cause"]["host"] == gone.host
                assert f"the supervisor on {gone.host} is stuck" in status["cause"]["message"]
    assert gone.wait_state(trio.run)["cause"]["host"] == gone.host
    trio.supervisors_end()


@pytest.mark.parametrize(
    "still",
    [
        pytest.param(
            0,
            id="hub",
            marks=pytest.mark.full(
                covered_by="tests/worker/gang/test_gang.py::test_a_node_whose_gang_thread_stands_still_ends_like_the_others"
            ),
        ),
        pytest.param(1, id="member"),
    ],
)
def test_a_node_whose_gang_thread_stands_still_ends_like_the_others(trio: Trio, still: int) -> None:
    trio.start(SLEEP, SLEEP, SLEEP)
    trio.running()
    trio.joined()
    gone = trio.nodes[still]
    tasks = os.listdir(f"/proc/{gone.pid(trio.run, 'supervisor')}/task")
    # After main thread, drain, log writer and record writer. The kernel lists threads in the order of their start;
    # their numbers start again after the highest number.
    with thread_stopped(int(tasks[4])):
        for node in trio.nodes:
            status = node.wait_state(trio.run, seconds=60)
            assert (status["state"], status["cause"]["host"]) == ("failed", gone.host)
        assert "watches the other nodes is stuck" in gone.status(trio.run)["cause"]["message"]
        eventually(lambda: not processes_of(trio.run), "every supervisor ends", 30)


@pytest.mark.full(covered_by="tests/simulator/test_seeds.py::test_gangs")
def test_a_fault_in_the_hubs_thread_costs_no_run(trio: Trio) -> None:
    """A message from a node makes the hub's loop raise: the loop starts again, and the nodes find each other again."""
    trio.start(SLEEP, SLEEP, SLEEP)
    trio.running()
    trio.joined()
    wire = MemberWire(bytes.fromhex(trio.key), trio.run, "node1", "node0")
    with socket.create_connection(("127.0.0.1", trio.port), 60) as sock:
        sock.sendall(wire.hello())
        while not wire.open:
            wire.feed(sock.recv(1 << 16))
        sock.sendall(wire.pack({"k": "down", "age": "never"}))
        while sock.recv(1 << 16):  # until the hub has hung up
            pass
    log = trio.nodes[0].folder(trio.run) / "supervisor.log"
    eventually(lambda: "gang: ValueError" in log.read_text(), "the fault is noted")
    trio.joined()
    time.sleep(SILENT_S + 4)
    assert [node.status(trio.run)["state"] for node in trio.nodes] == ["running"] * 3
    trio.nodes[2].call("stop", run=trio.run, grace=2, by="alice")
    assert [status["state"] for status in trio.ended()] == ["killed"] * 3


def test_strangers_fill_no_log(trio: Trio) -> None:
    """Any program that reaches the port can connect any number of times."""
    trio.start(SLEEP, SLEEP, SLEEP)
    trio.running()
    trio.joined()
    for number in range(3000):
        with socket.create_connection(("127.0.0.1", trio.port), 60) as sock, contextlib.suppress(ConnectionError):
            sock.sendall(b"garbage %d\n" % number)
            sock.recv(1)
    log = trio.nodes[0].folder(trio.run) / "supervisor.log"
    eventually(lambda: "connections closed" in log.read_text(), "the log tells of them")
    eventually(lambda: trio.nodes[0].status(trio.run)["strangers"], "the status does, too")
    told = trio.nodes[0].status(trio.run)["strangers"]
    assert (told["addresses"], list(told["most"])) == (1, ["127.0.0.1"])
    assert log.stat().st_size < 4096
    assert [node.status(trio.run)["state"] for node in trio.nodes] == ["running"] * 3


def test_little_is_read_of_who_does_not_show_the_key() -> None:
    wire = HubWire(b"key", "run", HOSTS)
    assert wire.feed(b"x" * MAX_HELLO) == []
    with pytest.raises(Stranger):
        wire.feed(b"x")


def watchers(node: Node, run: str) -> list[int]:
    return [node.pid(run, "guardian"), node.pid(run, "supervisor")]


@pytest.mark.full(covered_by="tests/simulator/test_seeds.py::test_gangs")
def test_machines_that_were_suspended_together_go_on(trio: Trio) -> None:
    """The hub did not listen, so no node's silence counts."""
    trio.start(SLEEP, SLEEP, SLEEP)
    trio.running()
    trio.joined()
    pids = [pid for node in trio.nodes for pid in watchers(node, trio.run)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(SILENT_S + 3)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    time.sleep(4)
    assert [node.status(trio.run)["state"] for node in trio.nodes] == ["running"] * 3


@pytest.mark.full(covered_by="tests/simulator/test_seeds.py::test_gangs")
@pytest.mark.parametrize("frozen", [0, 1], ids=["hub", "member"])
def test_who_stood_still_too_long_ends_with_the_others_and_all_name_it(trio: Trio, frozen: int) -> None:
    trio.start(SLEEP, SLEEP, SLEEP)
    trio.running()
    trio.joined()
    gone = trio.nodes[frozen]
    pids = watchers(gone, trio.run)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        for node in trio.nodes:
            if node is not gone:
                assert node.wait_state(trio.run, seconds=60)["cause"]["host"] == gone.host
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    status = gone.wait_state(trio.run, "failed", seconds=20)
    assert status["cause"]["host"] == gone.host
    assert status["cause"]["reason"] == "node_lost"
    trio.supervisors_end()


def test_a_word_that_is_too_long_is_noted_once_and_costs_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr("ddpctl_worker.gang.base.note", notes.append)
    place = {"hub_host": "node0", "hub_addr": "127.0.0.1", "port": 1, "bind_addr": "127.0.0.1"}
    run: Any = {"run": "r", "host": "node1", "hosts": HOSTS, "gang": place}
    gang = MemberGang(run, b"key", lambda: None)
    for _ in range(2):
        gang.broadcast({"what": "glance", "ranks": "x" * MAX_LINE})
        gang.broadcast({"what": "looked"})
        assert gang._said_words() == [{"what": "looked"}]
    assert len(notes) == 1
    longest = {"what": "glance", "ranks": "x" * (MAX_MESSAGE - 40)}
    gang.broadcast(longest)
    assert gang._said_words() == [longest]
    ends = MemberWire(b"key", "r", "node1", "node0"), HubWire(b"key", "r", HOSTS)
    ends[1].feed(ends[0].hello())
    ends[0].feed(ends[1].reply)
    assert ends[1].feed(ends[0].pack({"k": "doctor", "word": longest})) == [{"k": "doctor", "word": longest}]
