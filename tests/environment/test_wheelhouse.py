"""Downloads against a real HTTP server on the loopback that misbehaves on demand."""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from filelock import FileLock

from ddpctl.environment.lock import Wheel
from ddpctl.environment.origins import Origins
from ddpctl.environment.wheelhouse import Wheelhouse
from ddpctl.errors import FileDamaged, ProvisionError

DATA = os.urandom(600_000)
HASH = hashlib.sha256(DATA).hexdigest()


class Index(ThreadingHTTPServer):
    """Serves DATA; ``cut`` breaks this many answers off half-way, ``fail`` answers this many with 503.

    With ``pieces`` it presses Ctrl-C at the first request. Then it sends so many pieces, slowly, and falls silent.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.cut = self.fail = 0
        self.login: str | None = None
        self.body = DATA
        self.ranges: list[str | None] = []
        self.sent = 0
        self.pieces: int | None = None
        self.over, self.hung_up = threading.Event(), threading.Event()

    def wheel(self, login: str = "") -> Wheel:
        address = f"http://{login}127.0.0.1:{self.server_address[1]}/a-1-py3-none-any.whl"
        return Wheel("a", "1", "a-1-py3-none-any.whl", HASH, address)


class Handler(BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        index = self.server
        if index.login and self.headers.get("Authorization") != f"Basic {index.login}":
            self.send_error(401)
            return
        if index.fail:
            index.fail -= 1
            self.send_error(503)
            return
        asked = self.headers.get("Range")
        index.ranges.append(asked)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        body = index.body[start:]
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if index.pieces is not None:
            self._trickle(index.pieces)
            return
        if index.cut:
            index.cut -= 1
            body = body[: len(body) // 2]
        index.sent += len(body)  # before the client can have the whole body and look at the count
        self.wfile.write(body)
        self.close_connection = True

    def _trickle(self, pieces: int) -> None:
        self.wfile.write(b"x")
        if len(self.server.ranges) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        try:
            for _ in range(pieces):
                self.server.over.wait(0.01)
                self.wfile.write(b"x")
        except OSError:
            self.server.hung_up.set()
        self.server.over.wait(120)

    def log_message(self, *_: object) -> None:
        """Not on the test's output."""


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    server = Index()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.over.set()
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_wheel_is_downloaded_once(index: Index, tmp_path: Path) -> None:
    house = Wheelhouse(tmp_path / "w", Origins())
    counted: list[int] = []
    source = house.fetch([index.wheel()], counted.append)[HASH]
    assert source.path.read_bytes() == DATA
    assert sum(counted) == len(DATA)
    assert source.path.stat().st_mode & 0o077 == 0
    house.fetch([index.wheel()])
    assert index.sent == len(DATA)


def test_a_download_that_breaks_off_goes_on_where_it_ended(index: Index, tmp_path: Path) -> None:
    index.cut = 2
    source = Wheelhouse(tmp_path / "w", Origins()).fetch([index.wheel()])[HASH]
    assert source.path.read_bytes() == DATA
    assert index.ranges == [None, "bytes=300000-", "bytes=450000-"]
    assert index.sent == len(DATA)


def test_an_index_that_is_busy_is_asked_again(index: Index, tmp_path: Path) -> None:
    index.fail = 2
    assert Wheelhouse(tmp_path / "w", Origins()).fetch([index.wheel()])[HASH].size == len(DATA)


def test_it_gives_up_with_the_name_of_the_wheel(index: Index, tmp_path: Path) -> None:
    index.fail = 99
    with pytest.raises(ProvisionError, match=r"a-1-py3-none-any\.whl.*503"):
        Wheelhouse(tmp_path / "w", Origins()).fetch([index.wheel()])


def test_what_an_earlier_run_left_is_used(index: Index, tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / f"{HASH}.part").write_bytes(DATA[:500_000])
    Wheelhouse(tmp_path / "w", Origins()).fetch([index.wheel()])
    assert index.sent == 100_000


def test_a_rotten_part_is_thrown_away_and_all_of_it_downloaded(index: Index, tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / f"{HASH}.part").write_bytes(b"\0" * 500_000)
    source = Wheelhouse(tmp_path / "w", Origins()).fetch([index.wheel()])[HASH]
    assert source.path.read_bytes() == DATA


def test_a_wheel_with_another_hash_is_refused_and_not_kept(index: Index, tmp_path: Path) -> None:
    index.body = DATA[:-1] + b"?"
    if index.body == DATA:
        index.body = DATA[:-1] + b"!"
    with pytest.raises(FileDamaged, match="SHA-256"):
        Wheelhouse(tmp_path / "w", Origins()).fetch([index.wheel()])
    assert [path.name for path in (tmp_path / "w").iterdir() if not path.name.endswith(".lock")] == []


def test_a_login_is_used_and_never_shown(index: Index, tmp_path: Path) -> None:
    index.login = base64.b64encode(b"bob:s3cret").decode()
    simple = index.wheel("bob:s3cret@").address
    assert Wheelhouse(tmp_path / "w", Origins(simple)).fetch([index.wheel()])[HASH].size == len(DATA)
    with pytest.raises(ProvisionError, match="401") as caught:
        Wheelhouse(tmp_path / "x", Origins(simple.replace("s3cret", "wr0ng"))).fetch([index.wheel()])
    assert "wr0ng" not in str(caught.value)


def test_a_file_of_this_machine_is_used_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a-1-py3-none-any.whl"
    path.write_bytes(DATA)
    wheel = Wheel("a", "1", path.name, HASH, f"file://{path}")
    house = Wheelhouse(tmp_path / "w", Origins())
    assert house.fetch([wheel])[HASH].path == path
    assert house.verify([wheel]) == []
    path.write_bytes(DATA[1:])
    assert house.verify([wheel]) == [path.name]
    path.unlink()
    with pytest.raises(ProvisionError, match="no longer at"):
        house.fetch([wheel])


@pytest.mark.parametrize("pieces", [0, 12000])
def test_ctrl_c_ends_a_download_that_does_not_end(pieces: int, index: Index, tmp_path: Path) -> None:
    """From an index that falls silent, and from an index that sends a little all the time."""
    index.pieces = pieces
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        Wheelhouse(tmp_path / "w", Origins()).fetch([index.wheel()])
    assert time.monotonic() - begun < 100  # the index would go on for two minutes
    assert not pieces or index.hung_up.wait(60)
    assert len(index.ranges) == 1


def test_ctrl_c_ends_the_wait_for_another_download(index: Index, tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    house = Wheelhouse(tmp_path / "w", Origins())
    before = set(threading.enumerate())

    def fetch() -> None:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        house.fetch([index.wheel()])

    with FileLock(tmp_path / "w" / f"{HASH}.lock"), pytest.raises(KeyboardInterrupt):
        fetch()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()
    assert index.ranges == []


def test_a_full_disk_is_reported_as_that(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Wheelhouse, "_continue", full)
    with pytest.raises(OSError, match="No space left") as raised:
        Wheelhouse(tmp_path / "w", Origins()).fetch([index.wheel()])
    assert raised.value.errno == errno.ENOSPC
