"""The clients of a node that passes files on: the nodes of its own run, and no other program."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ddpctl.environment.spread import Credentials, new_credentials
from ddpctl_worker.store import relay as wire
from ddpctl_worker.store.blobs import Part
from ddpctl_worker.store.incoming import Incoming
from ddpctl_worker.store.relay import Relay

pytestmark = pytest.mark.slow

DATA = os.urandom(700_000)
HASH = hashlib.sha256(DATA).hexdigest()
OURS, OTHER = new_credentials(), new_credentials()


def client(credentials: Credentials, folder: Path) -> ssl.SSLContext:
    return wire.context(credentials.certificate, credentials.key, str(folder), False)


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Incoming]:
    part = Part(str(tmp_path), HASH, len(DATA))
    part.write(DATA)
    part.commit()
    made = Incoming(str(tmp_path), [{"hash": HASH, "size": len(DATA), "name": "data"}])
    yield made
    made.close()


@pytest.fixture
def relay(shelf: Incoming, tmp_path: Path) -> Iterator[Relay]:
    made = Relay(shelf, wire.context(OURS.certificate, OURS.key, str(tmp_path), True), "me", [0])
    yield made
    made.close()


def fetch(port: int, tls: ssl.SSLContext, request: Mapping[str, object]) -> bytes:
    """Everything that a request brings."""
    sock = wire.connect(("127.0.0.1", port), tls)
    got = b""
    try:
        wire.send_line(sock, dict(request))
        reader = wire.ChunkReader(sock)
        while True:
            data, _ = reader.read()
            if data is None:
                break
            got += data
    except wire.PeerGone:
        pass
    finally:
        sock.close()
    return got


def test_a_node_of_the_run_gets_the_file_from_any_offset(relay: Relay, tmp_path: Path) -> None:
    request = {"to": "me", "files": [[HASH, 123_456]]}
    assert fetch(relay.port, client(OURS, tmp_path), request) == DATA[123_456:]


def test_another_runs_certificate_gets_nothing(relay: Relay, tmp_path: Path) -> None:
    with pytest.raises((OSError, AssertionError)):
        assert fetch(relay.port, client(OTHER, tmp_path), {"to": "me", "files": [[HASH, 0]]})
    assert relay.sent == 0


def test_one_who_trusts_us_but_shows_another_certificate_gets_nothing(relay: Relay, tmp_path: Path) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname = False
    tls.verify_mode = ssl.CERT_NONE
    pair = tmp_path / "pair.pem"
    pair.write_text(OTHER.certificate + OTHER.key)
    for show in (False, True):
        if show:
            tls.load_cert_chain(pair)
        try:
            got = fetch(relay.port, tls, {"to": "me", "files": [[HASH, 0]]})
        except OSError:
            got = b""
        assert got == b""
    assert relay.sent == 0


@pytest.mark.parametrize(
    "junk",
    [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 5000, os.urandom(5000), b"SSH-2.0-x\r\n", b""],
    ids=["http", "zeros", "random", "ssh", "nothing"],
)
def test_junk_gets_nothing_and_harms_nobody(relay: Relay, tmp_path: Path, junk: bytes) -> None:
    with socket.create_connection(("127.0.0.1", relay.port), timeout=60) as sock:
        sock.settimeout(60)
        got = b""
        try:  # the relay may hang up at any moment: that is what is wanted
            sock.sendall(junk)
            sock.shutdown(socket.SHUT_WR)
            while piece := sock.recv(4096):
                got += piece
        except ConnectionError:
            pass
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                raise
    assert len(got) < 100  # a TLS alert at most
    assert DATA[:64] not in got
    assert fetch(relay.port, client(OURS, tmp_path), {"to": "me", "files": [[HASH, 0]]}) == DATA
    assert relay.sent == len(DATA)


def test_strangers_who_only_connect_do_not_keep_the_nodes_out(relay: Relay, tmp_path: Path) -> None:
    idle = [socket.create_connection(("127.0.0.1", relay.port)) for _ in range(30)]
    try:
        assert fetch(relay.port, client(OURS, tmp_path), {"to": "me", "files": [[HASH, 0]]}) == DATA
    finally:
        for sock in idle:
            sock.close()


def test_a_client_does_not_take_files_from_a_stranger(tmp_path: Path, shelf: Incoming) -> None:
    false = Relay(shelf, wire.context(OTHER.certificate, OTHER.key, str(tmp_path), True), "me", [0])
    try:
        with pytest.raises(ssl.SSLError):
            wire.connect(("127.0.0.1", false.port), client(OURS, tmp_path))
    finally:
        false.close()


@pytest.mark.parametrize(
    "request_",
    [
        {"to": "somebody else", "files": [[HASH, 0]]},
        {"to": "me", "files": [["../../etc/passwd", 0]]},
        {"to": "me", "files": [["0" * 64, 0]]},
        {"to": "me", "files": "x"},
        {"to": "me"},
        {"to": "me", "files": [[HASH, -5]]},
        {"to": "me", "files": [[HASH, len(DATA) + 5]]},
    ],
)
def test_a_request_for_anything_else_brings_nothing(relay: Relay, tmp_path: Path, request_: dict[str, object]) -> None:
    assert fetch(relay.port, client(OURS, tmp_path), request_) == b""


def test_the_key_is_written_to_no_disk(tmp_path: Path, shelf: Incoming) -> None:
    before = set(tmp_path.rglob("*"))
    wire.context(OURS.certificate, OURS.key, str(tmp_path), True)
    assert set(tmp_path.rglob("*")) == before


def test_a_growing_file_is_served_while_it_grows(tmp_path: Path) -> None:
    base = tmp_path / "growing"
    shelf = Incoming(str(base), [{"hash": HASH, "size": len(DATA), "name": "data"}])
    relay = Relay(shelf, wire.context(OURS.certificate, OURS.key, str(tmp_path), True), "me", [0])
    item = shelf.items[HASH]
    try:
        sock = wire.connect(("127.0.0.1", relay.port), client(OURS, tmp_path))
        wire.send_line(sock, {"to": "me", "files": [[HASH, 0]]})
        reader = wire.ChunkReader(sock)
        got = b""
        for start in range(0, len(DATA), 100_000):
            shelf.append(item, DATA[start : start + 100_000])
            while len(got) < min(start + 100_000, len(DATA)):
                data, watermark = reader.read()
                assert data is not None
                got += data
                assert watermark >= len(got)
        shelf.finish(item)
        assert got == DATA
        sock.close()
    finally:
        relay.close()
        shelf.close()


def test_a_reader_hears_of_a_file_that_will_not_go_on(tmp_path: Path) -> None:
    shelf = Incoming(str(tmp_path / "b"), [{"hash": HASH, "size": len(DATA), "name": "data"}])
    relay = Relay(shelf, wire.context(OURS.certificate, OURS.key, str(tmp_path), True), "me", [0])
    try:
        sock = wire.connect(("127.0.0.1", relay.port), client(OURS, tmp_path))
        wire.send_line(sock, {"to": "me", "files": [[HASH, 0]]})
        shelf.append(shelf.items[HASH], DATA[:1000])
        reader = wire.ChunkReader(sock)
        assert reader.read()[0] == DATA[:1000]
        shelf.fail()
        assert reader.read()[0] is None
        sock.close()
    finally:
        relay.close()
        shelf.close()


def test_a_file_that_came_changed_starts_from_scratch_for_its_readers_too(tmp_path: Path) -> None:
    shelf = Incoming(str(tmp_path / "b"), [{"hash": HASH, "size": len(DATA), "name": "data"}])
    item = shelf.items[HASH]
    shelf.append(item, b"\0" * len(DATA))
    fd, generation = shelf.open(item)
    assert fd is not None
    os.close(fd)
    with pytest.raises(Exception, match="SHA-256"):
        shelf.finish(item)
    assert (item.done, item.complete) == (0, False)
    assert shelf.wait(item, 0, generation, 0.1) is None
    shelf.append(item, DATA)
    shelf.finish(item)
    assert item.complete
    shelf.close()


def test_silence_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that accepts and never says a word: not even a sign of life."""
    monkeypatch.setattr(wire, "SILENT_S", 0.5)
    tls = wire.context(OURS.certificate, OURS.key, str(tmp_path), True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        held: list[ssl.SSLSocket] = []
        accept = threading.Thread(target=lambda: held.append(tls.wrap_socket(listener.accept()[0], server_side=True)))
        accept.start()
        sock = wire.connect(listener.getsockname(), client(OURS, tmp_path))
        accept.join()
        with pytest.raises(wire.PeerGone, match="silent"):
            wire.ChunkReader(sock).read()
        sock.close()
        held[0].close()
