"""The questions between agents, over real sockets."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.agent import raft, talk
from ddpctl_worker.agent.agent import HostAgent
from ddpctl_worker.agent.hostrecord import HostRecord
from ddpctl_worker.agent.state import PeerAnswered
from ddpctl_worker.agent.talk import AnswerServer, PeerLine, Unanswered, at_once, reachable
from ddpctl_worker.machine.notes import boottime
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.record.document import Ballot, Document
from ddpctl_worker.record.paths import RunPaths

KEY, OTHER_KEY = talk.key_of("ab" * 32), talk.key_of("cd" * 32)
HOSTS = ["a", "b", "c"]


_made: list[AnswerServer | PeerLine] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while _made:
        _made.pop().close()


def desk(host: str, key: bytes = KEY, run: str = "run") -> AnswerServer:
    made = AnswerServer(key, run, host, HOSTS, "127.0.0.1")
    _made.append(made)
    made.start(lambda who, question: {"who": who, "asked": question})
    return made


def line(host: str, peers: dict[str, AnswerServer], key: bytes = KEY) -> PeerLine:
    made = PeerLine(key, "run", host, {name: ("127.0.0.1", one.port) for name, one in peers.items()})
    _made.append(made)
    return made


def test_a_question_and_its_answer() -> None:
    answer = line("a", {"b": desk("b")}).ask("b", {"k": "here", "n": 3}, 60.0)
    assert answer == {"who": "a", "asked": {"k": "here", "n": 3}, "from": "b"}


def test_a_long_question() -> None:
    text = "x" * 200_000
    assert line("a", {"b": desk("b")}).ask("b", {"k": text}, 60.0)["asked"]["k"] == text


@pytest.mark.parametrize("stranger", [("b", OTHER_KEY), ("b", KEY, "another run"), ("c",)])
def test_who_is_not_that_agent_gives_no_answer(stranger: tuple[Any, ...]) -> None:
    """Another key, another run, another host at that address."""
    with pytest.raises(Unanswered):
        line("a", {"b": desk(*stranger)}).ask("b", {"k": "here"})


def test_a_stranger_gets_no_byte() -> None:
    port = desk("b").port
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(b'{"run": "run", "host": "a", "nonce": "00", "mac": "00"}\n')
        sock.settimeout(60)
        assert sock.recv(100) == b""


def test_who_reaches_whom() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        mine = line("a", {"b": desk("b")})
        mine.peers = {**mine.peers, "c": ("127.0.0.1", closed.getsockname()[1])}
        found: dict[str, Any] = reachable(mine, ["b", "c"], 60.0)
    assert found["b"] is None
    assert "refused" in found["c"]


def test_a_state_that_a_full_disk_did_not_take_is_written_later(tmp_path: Path) -> None:
    paths = RunPaths(str(tmp_path / "full" / "node0"))
    record = HostRecord(paths)
    with pytest.raises(OSError, match="No such file"):
        record.save("running")
    Path(paths.node).mkdir(parents=True)
    record.save("running")
    assert json.loads(Path(paths.state).read_text())["state"] == "running"


def test_a_continued_run_that_does_not_begin_ends_in_its_own_first_attempt(tmp_path: Path) -> None:
    paths = RunPaths(str(tmp_path / "node0"))
    Path(paths.node).mkdir(parents=True)
    Path(paths.run).write_text(json.dumps({"attempt": 3}))
    HostRecord(paths).end(outcomes.failed(outcomes.cause("node0", "spawn_failed", "interrupted")), None)
    assert json.loads(Path(paths.exit).read_text())["attempt"] == 3


def test_who_is_off_is_not_waited_for_once_there_are_enough_answers() -> None:
    """A later message is not lost."""
    enough, off, late = threading.Event(), threading.Event(), threading.Event()
    heard = []

    def ask(host: str) -> None:
        if host == "b":
            assert off.wait(60)
        heard.append(host)
        (enough if host == "c" else late).set()

    at_once(ask, ["b", "c"], 60.0, enough)
    assert heard == ["c"]
    off.set()
    assert late.wait(60)
    assert heard == ["c", "b"]


def test_all_are_asked_where_one_question_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = []

    def ask(host: str) -> None:
        heard.append(host)
        raise ValueError(host)

    at_once(ask, HOSTS, 60.0)
    assert sorted(heard) == HOSTS

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    at_once(ask, HOSTS, 60.0)
    assert sorted(heard) == sorted(HOSTS * 2)


def test_a_host_whose_disk_is_full_does_not_say_that_it_has_a_proposal(tmp_path: Path) -> None:
    """The leader would take it for committed, and a power cut would take it back."""
    folder = tmp_path / "full"
    first = {"attempt": 1, "hosts": ["a"], "master_port": 1, "gang_port": 2, "started": "2026-01-02T03:04:05+00:00"}
    members = [{"host": host, "address": "127.0.0.1"} for host in ("a", "b")]
    place = {"hosts": members, "nodes": 1, "least": 1, "restarts": 1, "first": first}
    of_job = {"cluster": "lab", "project": "exp", "job": "train", "timeouts": {"stop": 30.0}}
    run = {"run": "run", "serial": 1, **of_job, "host": "b", "restart": place}
    request = {"run": run, "gang_key": "ab" * 32, "notify": None}
    ballot = Ballot.first("a", Document.first(first))
    own = HostRecord(RunPaths(str(folder / "b")))
    agent = HostAgent({"request": request, "base": "/", "umask": 0o077}, own, desk("b"), {}, ballot)
    proposal = ballot.proposal._replace(version=2).to_json()
    answer = {"term": 1, "leader": "a", "stamp": 1.0, "remaining": 7.0, "mark": (1, 2), "committed": (1, 1)}
    heard = PeerAnswered("a", {"k": "poll"}, {**answer, "proposal": proposal}, boottime())
    with pytest.raises(OSError, match="No such file"):
        agent._happen(heard)
    assert raft.poll(agent._state)["have"] == (1, 1)
    (folder / "b").mkdir(parents=True)
    agent._happen(heard)
    assert raft.poll(agent._state)["have"] == (1, 2)
