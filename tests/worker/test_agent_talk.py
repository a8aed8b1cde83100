"""What one agent asks another, over real sockets."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker import outcome as outcomes
from ddpctl_worker.agent import talk
from ddpctl_worker.agent.caller import Caller
from ddpctl_worker.agent.hostrecord import HostRecord
from ddpctl_worker.agent.quorum import Voter
from ddpctl_worker.agent.talk import AnswerDesk, PeerLine, Unanswered, at_once, reachable
from ddpctl_worker.notes import boottime
from ddpctl_worker.paths import RunPaths

KEY, OTHER_KEY = talk.key_of("ab" * 32), talk.key_of("cd" * 32)
HOSTS = ["a", "b", "c"]


_made: list[AnswerDesk | PeerLine] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while _made:
        _made.pop().close()


def desk(host: str, key: bytes = KEY, run: str = "run", own: PeerLine | None = None) -> AnswerDesk:
    made = AnswerDesk(key, run, host, HOSTS, "127.0.0.1")
    _made.append(made)
    made.start(lambda who, question: {"who": who, "asked": question}, own or PeerLine(key, run, host, {}))
    return made


def line(host: str, peers: dict[str, AnswerDesk], key: bytes = KEY) -> PeerLine:
    made = PeerLine(key, "run", host, {name: ("127.0.0.1", one.port) for name, one in peers.items()})
    _made.append(made)
    return made


def test_a_question_and_its_answer() -> None:
    answer = line("a", {"b": desk("b")}).ask("b", {"k": "here", "n": 3})
    assert answer == {"who": "a", "asked": {"k": "here", "n": 3}, "from": "b"}


def test_a_long_question() -> None:
    text = "x" * 200_000
    assert line("a", {"b": desk("b")}).ask("b", {"k": text})["asked"]["k"] == text


@pytest.mark.parametrize("stranger", [("b", OTHER_KEY), ("b", KEY, "another run"), ("c",)])
def test_who_is_not_that_agent_gives_no_answer(stranger: tuple[Any, ...]) -> None:
    """Another key, another run, another host at that address."""
    with pytest.raises(Unanswered):
        line("a", {"b": desk(*stranger)}).ask("b", {"k": "here"})


def test_a_stranger_gets_no_byte() -> None:
    port = desk("b").port
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(b'{"run": "run", "host": "a", "nonce": "00", "mac": "00"}\n')
        sock.settimeout(5)
        assert sock.recv(100) == b""


def test_who_reaches_whom() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        mine = line("a", {"b": desk("b")})
        mine.peers = {**mine.peers, "c": ("127.0.0.1", closed.getsockname()[1])}
        found: dict[str, Any] = reachable(mine, ["b", "c"])
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
    """What comes later is not lost."""
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


def test_a_host_whose_disk_is_full_does_not_say_that_it_has_a_paper(tmp_path: Path) -> None:
    """The leader would take it for everybody's, and a power cut would take it back."""
    leader, follower = (Voter(host, ["a", "b"], Voter.first("a", {"n": 1}), boottime()) for host in ("a", "b"))
    for voter in (leader, follower):
        voter.begin(boottime())
    made = AnswerDesk(KEY, "run", "a", HOSTS, "127.0.0.1")
    _made.append(made)
    made.start(lambda who, question: leader.answer(question, boottime()), line("a", {}))
    folder = tmp_path / "full"
    paths = RunPaths(str(folder))
    caller = Caller(
        follower, line("b", {"a": made}), threading.RLock(), HostRecord(paths).keep, dict, lambda until: None
    )
    leader.write({"n": 2})
    for _ in range(3):
        with contextlib.suppress(OSError):
            caller._turn()
    assert not leader.agreed
    folder.mkdir()
    caller._turn()
    assert leader.agreed


def test_who_has_moved_is_passed_on() -> None:
    """A tells b, which tells c when that asks; older word changes nothing."""
    lines = {name: line(name, {}) for name in HOSTS}
    desks = {name: desk(name, own=lines[name]) for name in HOSTS}
    for one in lines.values():
        one.peers = {name: ("127.0.0.1", at.port) for name, at in desks.items()}
    again = desk("a", own=lines["a"])
    lines["a"].learn({"a": (2, again.port)})
    lines["a"].ask("b", {"k": "here"})
    lines["c"].ask("b", {"k": "here"})
    assert lines["c"].peers["a"] == ("127.0.0.1", again.port)
    lines["c"].learn({"a": [1, 7], "stranger": [9, 9]})
    assert lines["c"].peers["a"] == ("127.0.0.1", again.port)
    assert "stranger" not in lines["c"].peers
