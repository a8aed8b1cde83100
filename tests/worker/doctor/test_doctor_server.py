"""The questions over Unix sockets: to torch's server in a rank, and to the supervisor."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.doctor import server, service
from ddpctl_worker.doctor.limits import ANSWER_BYTES
from ddpctl_worker.doctor.look import record_of_nccl
from ddpctl_worker.machine import answer_socket as desks
from ddpctl_worker.machine.answer_socket import AnswerSocket
from tests.worker.looks import Look, group, look
from tests.worker.node import Node, eventually
from tests.worker.programs import SLEEP, here

GUARD_S = 120.0
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@contextlib.contextmanager
def answering(path: Path, pieces: Iterable[bytes], pause: float = 0.0, *, closes: bool = True) -> Iterator[list[bytes]]:
    """A server that sends this text to its client, and the text that it received. Fails when the client waits for ever,
    where the server does not close.
    """
    heard: list[bytes] = []
    over, outlasted = threading.Event(), threading.Event()
    with short(path) as name, socket.socket(socket.AF_UNIX) as sock:
        sock.bind(name)
        sock.listen(4)

        def serve() -> None:
            line, _ = sock.accept()
            with line, contextlib.suppress(OSError):
                heard.append(line.recv(4096) if closes else b"")
                until = time.monotonic() + GUARD_S
                for piece in pieces:
                    line.sendall(piece)
                    if over.wait(pause):
                        return
                    if time.monotonic() > until:
                        break
                if not closes and not over.wait(max(0.0, until - time.monotonic())):
                    outlasted.set()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield heard
        finally:
            over.set()
            thread.join(60)
        assert not outlasted.is_set()


@contextlib.contextmanager
def short(path: Path) -> Iterator[str]:
    place = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{place}/{path.name}"
    finally:
        os.close(place)


def ask(folder: Path, pieces: Iterable[bytes], pause: float = 0.0, **how: bool) -> bytes | None:
    with answering(folder / "7.sock", pieces, pause, **how):
        return server.ask(str(folder), 7, "fr_trace_json", 0.3)


def test_an_answer(tmp_path: Path) -> None:
    with answering(tmp_path / "7.sock", [OK[:9], OK[9:30], OK[30:]], 0.01) as heard:
        assert server.ask(str(tmp_path), 7, "fr_trace_json", GUARD_S) == b"{}"
    assert heard[0].startswith(b"POST /handler/fr_trace_json HTTP/1.1\r\nHost: rank\r\nContent-Length: 0\r\n")


def test_nccls_record_is_asked_for_with_parameters_that_torch_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses all other programs: ``jsonDumpHandler`` in torch/csrc/distributed/c10d/FlightRecorderCuda.cpp."""
    monkeypatch.setattr(server, "ask", functools.partial(server.ask, seconds=GUARD_S))
    with answering(tmp_path / "7.sock", [OK]) as heard:
        assert record_of_nccl(str(tmp_path), 7) == []
    name, _, query = heard[0].split()[1].decode().partition("?")
    assert name == "/handler/dump_nccl_trace_json"
    assert {one.partition("=")[0] for one in query.split("&")} <= {"includecollectives", "onlyactive"}


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [b""],
        [b"junk"],
        [b"\r\n\r\n{}"],
        [b"HTTP/1.1\r\n\r\n{}"],
        [b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}"],
        [b"HTTP/1.1 500 Oops\r\n\r\n{}"],
        [OK[:-1]],
        [OK + b"x"],
        [OK.replace(b"2\r\n\r\n", b"two\r\n\r\n")],
        [OK.replace(b"2\r\n\r\n", b"\r\n\r\n")],
        [OK.replace(b"2\r\n\r\n", b"9" * 5000 + b"\r\n\r\n")],
    ],
)
def test_what_is_no_answer(tmp_path: Path, pieces: list[bytes]) -> None:
    assert ask(tmp_path, pieces) is None


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_junk_is_no_answer_or_its_body(head: bytes, body: bytes) -> None:
    for text in (head + body, OK[:17] + head + b"\r\n\r\n" + body):
        found = server._body(text)
        assert found is None or text.endswith(found)


@pytest.mark.parametrize("pieces", [[], [OK[:20]], itertools.repeat(b"x")], ids=["nothing", "a part", "a little"])
def test_a_server_that_is_slow_is_left_alone_in_time(tmp_path: Path, pieces: Iterable[bytes]) -> None:
    """Also a client that keeps sending a little."""
    assert ask(tmp_path, pieces, 0.003, closes=False) is None


def test_a_huge_answer_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desks, "ANSWER_BYTES", 1 << 20)
    assert ask(tmp_path, [b"HTTP/1.1 200 OK\r\n\r\n", *[b"x" * (1 << 16)] * 40]) is None


def test_nobody_is_there(tmp_path: Path) -> None:
    assert server.ask(str(tmp_path / "none"), 7, "ping") is None
    assert server.ask(str(tmp_path), 7, "ping") is None
    (tmp_path / "7.sock").write_text("no socket")
    assert server.ask(str(tmp_path), 7, "ping") is None
    with short(tmp_path / "8.sock") as name, socket.socket(socket.AF_UNIX) as sock:
        sock.bind(name)  # and does not listen: its process has ended
    assert server.ask(str(tmp_path), 8, "ping") is None


def long_folder(place: Path) -> Path:
    folder = place / ("x" * 120)
    folder.mkdir()
    return folder


def test_a_path_over_107_bytes(tmp_path: Path) -> None:
    folder = long_folder(tmp_path)
    with answering(folder / "7.sock", [OK]):
        assert server.ask(str(folder), 7, "fr_trace_json", GUARD_S) == b"{}"


# --- the supervisor's answer socket ---------------------------------------------------------------------------


@contextlib.contextmanager
def desk(path: Path, tell: Callable[[], dict[str, object]]) -> Iterator[None]:
    made = AnswerSocket(str(path), tell)
    made.open()
    try:
        yield
    finally:
        made.close()


def test_the_desk_answers_each_who_asks(tmp_path: Path) -> None:
    path = long_folder(tmp_path) / "answers.sock"
    with desk(path, lambda: {"looks": [{"rank": 1, "state": "\udcff"}]}):
        for _ in range(3):
            assert desks.ask(str(path), GUARD_S) == {"looks": [{"rank": 1, "state": "\udcff"}]}


def big(rank: int, entries: int = 300, frames: int = 200) -> Look:
    stack = [[f"/job/code/{'deep/' * 20}train.py", line, "step"] for line in range(frames)]
    groups = {"0": group([("all_reduce", 4)] * entries)}
    return look(rank, groups=groups, stack=stack, threads=[{"name": "t", "stack": stack[:12]}] * 8, children=[])


def size(looks: list[Look]) -> int:
    return len(json.dumps(looks))


def test_an_answer_that_is_too_long_is_shortened_and_says_so(tmp_path: Path) -> None:
    looks = [big(rank) for rank in range(100)]
    assert size(looks) > ANSWER_BYTES
    with desk(tmp_path / "answers.sock", lambda: {"looks": service.shorten_looks(looks), "slow": []}):
        told = desks.ask(str(tmp_path / "answers.sock"), GUARD_S)
    assert told is not None
    assert size(told["looks"]) <= ANSWER_BYTES
    for one in told["looks"]:
        assert one["missing"] == [service.SHORTENED]
        assert (one["stack"], one["groups"]["0"]["entries"][-1]) == (
            looks[0]["stack"][: len(one["stack"])],
            looks[0]["groups"]["0"]["entries"][-1],
        )


@given(st.integers(1, 12), st.integers(0, 60), st.integers(0, 200), st.integers(2_500, 300_000))
def test_every_rank_is_in_an_answer_of_whatever_length(ranks: int, entries: int, frames: int, most: int) -> None:
    looks = [big(rank, entries, frames) for rank in range(ranks)]
    found = service.shorten_looks(looks, most)
    assert [one["rank"] for one in found] == list(range(ranks))
    assert size(found) <= max(most, 600 * ranks)
    assert (found == looks) == (size(looks) <= most)


def test_some_ask_at_once_and_none_waits_for_another(tmp_path: Path) -> None:
    path, together = tmp_path / "answers.sock", threading.Barrier(8)

    def slow() -> dict[str, object]:
        together.wait(GUARD_S)  # until all have asked
        return {"looks": []}

    found: list[object] = []
    with desk(path, slow):
        threads = [threading.Thread(target=lambda: found.append(desks.ask(str(path), GUARD_S))) for _ in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert found == [{"looks": []}] * 8


def test_a_desk_that_cannot_tell_says_nothing(tmp_path: Path) -> None:
    def broken() -> dict[str, object]:
        raise RuntimeError("no look")

    with desk(tmp_path / "answers.sock", broken):
        assert desks.ask(str(tmp_path / "answers.sock")) is None


def test_a_desk_where_no_socket_can_be(tmp_path: Path) -> None:
    (tmp_path / "answers.sock").write_text("taken")
    with desk(tmp_path / "answers.sock", dict):
        assert desks.ask(str(tmp_path / "answers.sock")) is None
    AnswerSocket(str(tmp_path / "none" / "answers.sock"), dict).open()
    assert desks.ask(str(tmp_path / "none" / "answers.sock")) is None


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"7", b"\xff", b"[" * 200_000, b'{"a": ' * 100_000])
def test_junk_from_a_desk_is_no_answer(tmp_path: Path, text: bytes) -> None:
    with answering(tmp_path / "answers.sock", [text], closes=False):
        assert desks.ask(str(tmp_path / "answers.sock"), 0.2) is None


def test_an_answer_that_comes_in_pieces_and_one_that_never_ends(tmp_path: Path) -> None:
    text = json.dumps({"looks": []}).encode()
    path = tmp_path / "answers.sock"
    with answering(path, [text, b" " * 10], 0.005, closes=False):
        assert desks.ask(str(path), 0.3) is None


OFF = "no stack: the doctor is off for this job; "


def test_of_a_job_without_a_doctor_that_is_said(node: Node) -> None:
    run = node.start(SLEEP, node.record(doctor=None))
    here(node, run)

    def told() -> bool:
        looks = node.call("doctor", run=run)["looks"]
        asleep = [one["state"] for one in looks] == ["sleeping", "sleeping"]
        return asleep and all(one["missing"][-1].startswith(OFF) for one in looks)

    eventually(told, "both ranks are asleep, and have no stack", 60.0)


def test_without_its_supervisor_a_rank_writes_its_stack(node: Node) -> None:
    run = node.start(SLEEP, node.record(doctor={"stall": 30.0}))
    here(node, run)
    desk = node.folder(run) / "doctor" / "answers.sock"
    eventually(desk.exists, "the doctor is there")
    desk.unlink()

    def written() -> bool:
        """On a busy machine a rank may need longer than a look lasts."""
        looks = node.call("doctor", run=run)["looks"]
        return [one["stack"][-1][2] for one in looks if one.get("stack")] == ["<module>", "<module>"]

    eventually(written, "both ranks write their stacks", 60.0)


ASK = """
import sys
sys.path.insert(0, sys.argv[1])
from ddpctl_worker.machine import answer_socket
print(answer_socket.ask(sys.argv[2], 60.0))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv")
def test_another_user_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the folder's mode was opened, the socket still checks the user of each client."""
    worker = Path(service.__file__).parents[2]
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as folder,
        desk(path := Path(folder) / "answers.sock", lambda: {"looks": []}),
    ):
        Path(folder).chmod(0o755)
        path.chmod(0o777)
        argv = [sys.executable, "-c", ASK, str(worker), str(path)]
        assert subprocess.check_output(argv, text=True).strip() == "{'looks': []}"
        other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *argv]
        assert subprocess.check_output(other, text=True).strip() == "None"
        monkeypatch.setattr(desks, "_same_user", lambda line: True)  # it is this that refuses
        assert subprocess.check_output(other, text=True).strip() == "{'looks': []}"
