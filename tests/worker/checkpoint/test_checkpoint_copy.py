"""Checkpoints from host to host, over real connections: whole or not at all."""

from __future__ import annotations

import json
import os
import socket
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from ddpctl.environment.spread import new_credentials
from ddpctl_worker.checkpoint import copy, limits, manifest
from ddpctl_worker.checkpoint import restore as verb
from ddpctl_worker.checkpoint.client import CheckpointClient
from ddpctl_worker.checkpoint.copy import Fetching, fetch_entry, put_copy, put_own
from ddpctl_worker.checkpoint.fencing import begin
from ddpctl_worker.checkpoint.folder import list_entries
from ddpctl_worker.checkpoint.restore import list_kept, restore_entries
from ddpctl_worker.checkpoint.serve import CheckpointServer
from ddpctl_worker.rules import entries
from ddpctl_worker.rules.choice import Kept, plan_restore
from ddpctl_worker.rules.complete import SavedFile
from ddpctl_worker.store import relay
from ddpctl_worker.store.limits import LEAST_S
from ddpctl_worker.store.relay import PeerGone, Serving, read_line, send_chunk, send_line
from ddpctl_worker.wire.channel import WorkerError
from tests.worker.checkpoint.test_keeper import zeroed
from tests.worker.checkpoint.test_whole import saved_by_torch
from tests.worker.checkpoints import JOB, NOW, Disk, credentials, tls
from tests.worker.rights import no_override

pytestmark = pytest.mark.slow

BIG = os.urandom(3_000_000)
FOLDER = {"__0_0.bin": BIG, "sub/settings.json": b"{}", "empty": b""}


@pytest.fixture
def a(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path / "a", "a")
    yield made
    made.close()


@pytest.fixture
def b(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path / "b", "b")
    yield made
    made.close()


@pytest.fixture
def server(a: Disk) -> Iterator[CheckpointServer]:
    made = a.serve()
    yield made
    made.close()


def pull(to: Disk, peer: CheckpointClient, writer: str, entry: str) -> None:
    """What a host does that keeps a copy."""
    found = peer.manifest(writer, entry)
    fetching = Fetching(to.folder, writer, {peer.host: peer})
    aside = fetch_entry(
        to.folder,
        writer,
        found["files"],
        lambda path, file: fetching.get(entry, path, file, [(peer.host, writer)]),
    )
    put_copy(to.folder, found, aside)


def left_aside(disk: Disk, writer: str) -> list[str]:
    incoming = Path(disk.folder.of(writer), entries.FOLDER, "incoming")
    return sorted(path.name for path in incoming.iterdir()) if incoming.exists() else []


def test_a_copy_has_the_same_content_times_and_manifest(a: Disk, b: Disk, server: CheckpointServer) -> None:
    for entry, files in (("step_1", FOLDER), ("saved/epoch_3.pt", {"": BIG}), ("snapshot.pt", {"": BIG})):
        told = a.save(entry, files, age=500)
        pull(b, b.client("a", server.port), "a", entry)
        assert b.content(entry, "a") == files
        assert b.folder.manifests("a")[entry] == told
    assert left_aside(b, "a") == []


def test_all_files_of_a_copy_are_on_the_disk_before_its_manifest(
    a: Disk, b: Disk, server: CheckpointServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, missed, write, fsync = set[tuple[int, int]](), list[str](), manifest.write, os.fsync

    def sync(fd: int) -> None:
        fsync(fd)
        synced.add((os.fstat(fd).st_ino, os.fstat(fd).st_mtime_ns))

    def check(folder: str, found: Any) -> None:
        for path in found["files"]:
            about = os.stat(manifest.file_of(folder, found["entry"], path))
            if (about.st_ino, about.st_mtime_ns) not in synced:
                missed.append(path)
        write(folder, found)

    a.save("step_1", {"one": BIG, "two": BIG, "three": b"3"}, age=500)
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(manifest, "write", check)
    pull(b, b.client("a", server.port), "a", "step_1")
    assert b.content("step_1", "a") == {"one": BIG, "two": BIG, "three": b"3"}
    assert missed == []


def test_the_next_version_of_a_name_takes_the_place_of_the_last(a: Disk, b: Disk, server: CheckpointServer) -> None:
    peer = b.client("a", server.port)
    for files in ({"one": BIG, "two": b"2"}, {"one": b"new"}):
        for path in a.own.glob("last/*"):
            path.unlink()
        a.save("last", files)
        pull(b, peer, "a", "last")
        assert b.content("last", "a") == files
    a.save("one.pt", {"": b"1"})
    pull(b, peer, "a", "one.pt")
    a.save("one.pt", {"": b"22"})
    pull(b, peer, "a", "one.pt")
    assert b.content("one.pt", "a") == {"": b"22"}


def test_without_the_runs_certificate_there_is_nothing(a: Disk, b: Disk, server: CheckpointServer) -> None:
    a.save("one.pt", {"": b"1"})
    with pytest.raises(PeerGone):
        b.client("a", server.port, who=new_credentials()).list()


def test_a_host_that_was_reached_by_anothers_name_says_nothing(a: Disk, b: Disk, server: CheckpointServer) -> None:
    a.save("one.pt", {"": b"1"})
    with pytest.raises(PeerGone):
        b.client("c", server.port).list()


@pytest.mark.parametrize("spoilt", ["shorter", "other", "gone", "link"])
def test_what_is_no_longer_as_it_was_hashed_is_not_given_out(
    a: Disk, b: Disk, server: CheckpointServer, tmp_path: Path, spoilt: str
) -> None:
    told = a.save("one.pt", {"": BIG}, age=100)
    path = a.own / "one.pt"
    if spoilt == "shorter":
        os.truncate(path, 10)
    elif spoilt == "other":
        path.write_bytes(BIG[::-1])
    else:
        path.unlink()
    if spoilt == "link":
        (tmp_path / "secret").write_bytes(BIG)
        path.symlink_to(tmp_path / "secret")
    peer = b.client("a", server.port)
    assert peer.list()["entries"] == []
    with pytest.raises(PeerGone):
        peer.manifest("a", "one.pt")
    with pytest.raises(WorkerError, match="cannot be had"):
        Fetching(b.folder, "a", {"a": peer}).get("one.pt", "", told["files"][""], [("a", "a")])


def test_a_file_that_changes_without_a_trace_fails_by_its_hash(a: Disk, b: Disk, server: CheckpointServer) -> None:
    """Same size, same time: only the hash can tell."""
    told = a.save("one.pt", {"": BIG}, age=100)
    about = (a.own / "one.pt").stat()
    (a.own / "one.pt").write_bytes(BIG[::-1])
    os.utime(a.own / "one.pt", ns=(about.st_atime_ns, about.st_mtime_ns))
    with pytest.raises(WorkerError, match="SHA-256"):
        pull(b, b.client("a", server.port), "a", "one.pt")
    assert b.content("one.pt", "a") is None
    assert left_aside(b, "a") == []
    assert told["version"] != a.hashed("one.pt")["version"]
    pull(b, b.client("a", server.port), "a", "one.pt")
    assert b.content("one.pt", "a") == {"": BIG[::-1]}


class Wire:
    """Between two hosts: lets ``allow`` bytes through from the server, then cuts the connection."""

    def __init__(self, port: int, allow: int) -> None:
        self.to, self.allow, self.passed = port, allow, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.to))
            threading.Thread(target=self._pass, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, True), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        left = self.allow if counted else 1 << 60
        try:
            while left > 0:
                data = source.recv(min(left, 1 << 16))
                if not data:
                    break
                sink.sendall(data)
                left -= len(data)
                self.passed += len(data) if counted else 0
        except OSError:
            pass
        for sock in (source, sink):
            sock.close()


def test_a_cut_link_leaves_nothing_torn_and_the_next_try_continues(a: Disk, b: Disk, server: CheckpointServer) -> None:
    told = a.save("step_1", FOLDER, age=100)
    wire = Wire(server.port, 1_500_000)
    with pytest.raises(WorkerError, match="cannot be had"):
        pull(b, b.client("a", wire.port), "a", "step_1")
    assert b.content("step_1", "a") is None
    assert not os.path.lexists(os.path.join(b.folder.of("a"), "step_1"))
    wire.allow = 2_000_000  # less than the whole file
    pull(b, b.client("a", wire.port), "a", "step_1")
    wire.listener.close()
    assert b.content("step_1", "a") == FOLDER
    assert b.folder.manifests("a")["step_1"] == told


class Liar(Serving):
    """Holds the certificate, and answers whatever it likes."""

    def __init__(self, disk: Disk, say: Callable[[dict[str, Any]], Any]) -> None:
        self._say = say
        super().__init__("a", tls(disk.base, server=True), socket.create_server(("127.0.0.1", 0)))

    def _answer(self, sock: Any, request: dict[str, Any]) -> None:
        while True:
            said = self._say(request)
            data = said if isinstance(said, bytes) else json.dumps(said).encode()
            send_line(sock, {"size": len(data)})
            send_chunk(sock, data, 0)
            request = read_line(sock)


def lying(files: dict[str, Any], **changes: Any) -> dict[str, Any]:
    made = {
        "schema": 1,
        "entry": "step_1",
        "host": "a",
        "step": 1,
        "time": "2026-01-01T00:00:00+00:00",
        "size": sum(file["size"] for file in files.values()),
        "files": files,
        "references": None,
        "version": manifest.version_of(files),
        "serial": 1,
        "run": "r",
        "attempt": 1,
        "clock": "a",
    }
    return {**made, **changes}


FINE = {"size": 3, "sha256": "0" * 64, "mtime_ns": 5, "save": 1}


@pytest.mark.parametrize(
    "said",
    [
        lying({"../../../../victim": FINE}),
        lying({"/etc/victim": FINE}),
        lying({"a/./b": FINE}),
        lying({"a//b": FINE}),
        lying({".ddpctl/owner": FINE}),
        lying({"x": FINE}, entry="../b/step_1"),
        lying({"x": FINE}, host="b"),
        lying({"x": {**FINE, "size": -3}}),
        lying({"x": {**FINE, "mtime_ns": 1 << 70}}),
        lying({"x": {**FINE, "mtime_ns": "soon"}}),
        lying({"x": {**FINE, "sha256": "../victim"}}),
        lying({"x": FINE}, version="other"),
        lying({"x": {**FINE, "save": "first"}}),
        lying({"x": FINE}, serial=-1),
        lying({"x": FINE}, run=None),
        lying({"x": FINE}, clock=5),
        lying({}),
        [],
        b"no json",
        b"[" * 100_000,
    ],
    ids=lambda said: str(said)[:60],
)
def test_a_hostile_manifest_is_refused(b: Disk, said: Any) -> None:
    liar = Liar(b, lambda request: said)
    try:
        with pytest.raises(PeerGone):
            b.client("a", liar.port).manifest("a", "step_1")
    finally:
        liar.close()


ORDER = {**lying({"x": FINE}), "sources": {"x": [["a", "a"]]}}


@pytest.mark.parametrize(
    "order",
    [
        {**ORDER, "files": {"../victim": FINE}, "sources": {"../victim": [["a", "a"]]}},
        {**ORDER, "files": {"x": {**FINE, "mtime_ns": 1 << 70}}},
        {**ORDER, "entry": "../victim"},
        {**ORDER, "files": {"x": {**FINE, "sha256": "../victim"}}},
        {**ORDER, "sources": {}},
        {**ORDER, "sources": {"x": [["a", 3]]}},
        {"entry": "step_1"},
        [],
        "x",
    ],
    ids=lambda order: str(order)[-60:],
)
def test_a_hostile_order_is_refused(b: Disk, order: Any) -> None:
    said = [ORDER]
    liar = Liar(b, lambda request: {"orders": said})
    try:
        assert b.client("a", liar.port).orders("b", "ab12") == [ORDER]
        said[0] = order
        with pytest.raises(PeerGone):
            b.client("a", liar.port).orders("b", "ab12")
    finally:
        liar.close()


@pytest.mark.parametrize("said", [b"12", b"1234", b"123"], ids=["less", "more", "other bytes"])
def test_a_peer_that_lies_about_a_file_gets_nowhere(b: Disk, said: bytes) -> None:
    files = {"x": FINE}
    liar = Liar(b, lambda request: lying(files) if request["k"] == "manifest" else said)
    try:
        with pytest.raises(WorkerError, match="cannot be had"):
            pull(b, b.client("a", liar.port), "a", "step_1")
    finally:
        liar.close()
    assert b.content("step_1", "a") is None
    assert left_aside(b, "a") == []


def test_a_name_that_is_a_file_and_a_folder_harms_nothing(a: Disk, b: Disk, server: CheckpointServer) -> None:
    a.save("one.pt", {"": b"1"})
    data = a.folder.manifests("a")["one.pt"]["files"][""]
    files = {"x": data, "x/y": data}
    liar = Liar(b, lambda request: lying(files) if request["k"] == "manifest" else b"1")
    try:
        with pytest.raises(OSError, match="x"):
            pull(b, b.client("a", liar.port), "a", "step_1")
    finally:
        liar.close()
    assert b.content("step_1", "a") is None


def test_a_disk_without_room_is_left_alone(
    a: Disk, b: Disk, server: CheckpointServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    a.save("one.pt", {"": BIG})
    room = os.statvfs(b.base)

    class Full:
        # Room for a single copy, but not for the next save too.
        f_bavail, f_frsize = (20 << 20) // room.f_frsize, room.f_frsize

    monkeypatch.setattr("ddpctl_worker.store.blobs.os.statvfs", lambda path: Full)
    with pytest.raises(WorkerError, match="MB are needed"):
        pull(b, b.client("a", server.port), "a", "one.pt")
    assert left_aside(b, "a") == []


def test_a_symbolic_link_in_the_way_is_not_followed(a: Disk, b: Disk, server: CheckpointServer, tmp_path: Path) -> None:
    a.save("saved/epoch_1.pt", {"": b"1"})
    (tmp_path / "elsewhere").mkdir()
    Path(b.folder.make("a"), "saved").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WorkerError, match="is not a folder"):
        pull(b, b.client("a", server.port), "a", "saved/epoch_1.pt")
    assert list((tmp_path / "elsewhere").iterdir()) == []


# --- before a start --------------------------------------------------------------------------------------------------


def restore(*disks: Disk) -> None:
    """The requests of ddpctl to the hosts."""
    servers = {disk.host: disk.serve() for disk in disks}
    try:
        held = [
            Kept(disk.host, one)
            for disk in disks
            for writer in disk.folder.writers()
            for one in disk.folder.manifests(writer).values()
        ]
        orders = plan_restore(held, [disk.host for disk in disks])
        for disk in disks:
            peers = {host: disk.client(host, servers[host].port) for host in servers if host != disk.host}
            found, trouble = list_kept(disk.folder, peers)
            assert sorted(found, key=str) == sorted(held, key=str) or disk is not disks[0]
            assert not trouble
            restore_entries(
                disk.folder, peers, [json.loads(json.dumps(one.order())) for one in orders if disk.host in one.hosts]
            )
        after = [
            Kept(disk.host, one)
            for disk in disks
            for writer in disk.folder.writers()
            for one in disk.folder.manifests(writer).values()
        ]
        assert plan_restore(after, [disk.host for disk in disks]) == []
    finally:
        for one in servers.values():
            one.close()


def test_every_host_gets_the_file_of_one(a: Disk, b: Disk) -> None:
    a.save("snapshot.pt", {"": BIG}, age=50)
    restore(a, b)
    assert a.content("snapshot.pt") == b.content("snapshot.pt") == {"": BIG}


def test_from_a_copy_when_the_writer_is_gone(a: Disk, b: Disk, server: CheckpointServer, tmp_path: Path) -> None:
    a.save("snapshot.pt", {"": BIG}, age=50)
    pull(b, b.client("a", server.port), "a", "snapshot.pt")
    c = Disk(tmp_path / "c", "c")
    restore(b, c)
    c.close()
    assert b.content("snapshot.pt") == c.content("snapshot.pt") == {"": BIG}


def test_an_older_one_of_the_same_name_is_replaced(a: Disk, b: Disk) -> None:
    """Each attempt would set another copy aside, until the disk is full."""
    for disk, content, age in ((b, b"old", 90), (a, b"new", 50)):
        disk.save("snapshot.pt", {"": content}, age=age)
        disk.save("step_1", {"part": content, "sub/more": content}, age=age)
    restore(a, b)
    assert b.content("snapshot.pt") == {"": b"new"}
    assert b.content("step_1") == {"part": b"new", "sub/more": b"new"}
    assert aside(b) == []
    assert left_aside(b, "b") == []


def test_what_has_the_same_name_and_is_no_older_checkpoint_is_set_aside(a: Disk, b: Disk) -> None:
    a.save("snapshot.pt", {"": b"new"}, age=50)
    (b.own / "snapshot.pt").write_bytes(b"torn")
    a.save("step_1", {"part": b"new"}, age=50)
    b.save("step_1", {"part": b"old"}, age=90)
    (b.own / "step_1" / "torn.tmp").write_bytes(b"?")
    restore(a, b)
    assert b.content("snapshot.pt") == {"": b"new"}
    assert b.content("step_1") == {"part": b"new"}
    others = {path.name.split(".aside-")[0]: path for path in b.own.iterdir() if ".aside-" in path.name}
    assert others[".snapshot.pt"].read_bytes() == b"torn"
    assert (others[".step_1"] / "part").read_bytes() == b"old"
    assert (others[".step_1"] / "torn.tmp").read_bytes() == b"?"


def test_a_save_of_a_live_run_during_the_transfer_stays(a: Disk, b: Disk, server: CheckpointServer) -> None:
    held = [Kept(disk.host, disk.save("snapshot.pt", {"": bytes(size)}, age=size)) for disk, size in ((a, 50), (b, 90))]
    (order,) = plan_restore(held, ["a", "b"])
    fetching = Fetching(b.folder, "b", {"a": b.client("a", server.port)})

    def get(path: str, file: SavedFile) -> str:
        (b.own / "snapshot.pt").write_bytes(b"new save")
        return fetching.get("snapshot.pt", path, file, [("a", "a")])

    put_own(b.folder, order.chosen, get, lambda entry: entry == "snapshot.pt")
    assert (b.own / "snapshot.pt").read_bytes() == b"new save"
    assert (aside(b), [name for name in left_aside(b, "b") if name.startswith("new.")]) == ([], [])


class Controller:
    """Plays ddpctl for the verb: ``said`` are its orders."""

    def __init__(self, *said: dict[str, Any]) -> None:
        self._said = [json.dumps(one).encode() for one in said]

    def send(self, frame: dict[str, Any]) -> None:
        pass

    def read_line(self) -> bytes:
        return self._said.pop(0)


def test_saves_of_a_run_that_begins_during_the_transfer_stay(
    a: Disk, b: Disk, server: CheckpointServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    a.save("snapshot.pt", {"": BIG}, age=50)
    b.save("snapshot.pt", {"": b"older"}, age=90)
    b.save("epoch_1.pt", {"": b"1"}, age=90)
    (order,) = plan_restore([Kept("a", a.folder.manifests("a")["snapshot.pt"])], ["b"])
    live, real = list[str](), CheckpointClient.file

    def file(*args: Any) -> None:
        live.append("run")
        for name in ("snapshot.pt", "epoch_2.pt"):
            (b.own / name).write_bytes(b"new save")
        real(*args)

    monkeypatch.setattr(CheckpointClient, "file", file)
    monkeypatch.setattr(verb, "runs_at_work", lambda *args, **options: list(live))
    who, peer = credentials(), {"host": "a", "addresses": ["127.0.0.1"], "port": server.port}
    request = {"base_dir": str(b.base), "host": "b", "job_id": JOB, "certificate": who.certificate, "key": who.key}
    ddpctl = Controller({"cmd": "go", "peers": [peer], "orders": [order.order()]}, {"cmd": "end"})
    answer = verb.restore({**request, "ports": []}, cast("Any", ddpctl))
    assert (answer["aside"], answer["left"]) == ([], ["epoch_2.pt", "snapshot.pt"])
    assert [(b.own / name).read_bytes() for name in ("snapshot.pt", "epoch_2.pt")] == [b"new save"] * 2


def test_what_is_there_already_stays_and_the_rest_is_added(a: Disk, b: Disk) -> None:
    a.save("step_1", {"model.bin": BIG, "rng_0": b"0"}, age=50)
    b.save("step_1", {"rng_1": b"1"}, age=50)
    before = (b.own / "step_1" / "rng_1").stat()
    restore(a, b)
    assert a.content("step_1") == b.content("step_1") == {"model.bin": BIG, "rng_0": b"0", "rng_1": b"1"}
    assert (b.own / "step_1" / "rng_1").stat() == before
    assert not [path for path in b.own.iterdir() if ".aside-" in path.name]


def aside(disk: Disk) -> list[str]:
    return sorted(path.name.split(".aside-")[0] for path in disk.own.iterdir() if ".aside-" in path.name)


def test_a_newer_torn_one_of_the_series_is_set_aside(a: Disk, b: Disk) -> None:
    """Also on a host that lacks nothing."""
    a.save("epoch_1.pt", {"": b"1"}, age=50)
    for disk in (a, b):
        (disk.own / "epoch_2.pt").write_bytes(b"torn")
        (disk.own / "step_2.pt").write_bytes(b"of another series")
        (disk.own / "best.pt").write_bytes(b"without a number")
    restore(a, b)
    for disk in (a, b):
        assert disk.content("epoch_1.pt") == {"": b"1"}
        assert aside(disk) == [".epoch_2.pt"]
        (other,) = disk.own.glob(".epoch_2.pt.aside-*")
        assert other.read_bytes() == b"torn"
        assert sorted(list_entries(str(disk.own))) == ["best.pt", "epoch_1.pt", "step_2.pt"]


@pytest.mark.parametrize("letter", ["x", "\N{SNOWMAN}"], ids=["ascii", "three bytes"])
def test_entries_with_long_names_are_set_aside(b: Disk, letter: str) -> None:
    """A file system takes names of 255 bytes. These names differ only in the part that is cut."""
    names = [f"{first}{letter * (230 // len(letter.encode()))}_epoch_2.pt" for first in "ab"]
    assert all(240 <= len(name.encode()) <= 250 for name in names)
    for name in names:
        b.save(name.replace("_2", "_1"), {"": b"1"}, age=50)
        (b.own / name).write_bytes(name[:1].encode())
    assert sorted(copy.set_newer_aside(b.folder)) == names
    assert sorted(path.read_bytes() for path in b.own.glob(".*.aside-*")) == [b"a", b"b"]
    found = verb.find_set_aside(str(b.own)).values()
    assert [names[0].endswith(cut) for cut in found] == [True, True]


def test_a_file_with_a_long_name_is_set_aside_before_its_replacement(a: Disk, b: Disk) -> None:
    name = "x" * 238 + ".pt"
    a.save(name, {"": b"new"}, age=50)
    (b.own / name).write_bytes(b"torn")
    restore(a, b)
    assert b.content(name) == {"": b"new"}
    assert [path.read_bytes() for path in b.own.glob(".*.aside-*")] == [b"torn"]


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_newer_one_that_cannot_be_read_is_set_aside(a: Disk, what: str) -> None:
    a.save("epoch_1.pt", {"": b"1"}, age=50)
    (a.own / "epoch_2.pt").write_bytes(b"2") if what == "file" else (a.own / "epoch_2.pt").mkdir()
    (a.own / "epoch_2.pt").chmod(0o000)
    with no_override():
        restore(a)
    assert aside(a) == [".epoch_2.pt"]
    assert sorted(list_entries(str(a.own))) == ["epoch_1.pt"]


def test_what_is_left_of_a_save_without_the_file_of_a_rank_is_set_aside(b: Disk) -> None:
    for rank in range(2):
        b.save(f"step_1_rank_{rank}.pt", {"": b"1"}, age=50)
    b.save("step_2_rank_0.pt", {"": b"2"})
    (b.own / "step_2_rank_1.pt").write_bytes(b"torn")
    assert sorted(copy.set_newer_aside(b.folder)) == ["step_2_rank_0.pt", "step_2_rank_1.pt"]


def test_a_newer_one_that_lost_bytes_in_a_power_cut_is_set_aside(b: Disk) -> None:
    b.save("step_1.pt", {"": b"complete"}, age=50)
    (b.own / "step_2.pt").write_bytes(zeroed(saved_by_torch()))
    (b.own / "step_3.pt").write_bytes(saved_by_torch())
    assert copy.set_newer_aside(b.folder) == ["step_2.pt"]


def test_a_torn_one_from_after_the_clock_was_set_back_is_set_aside(b: Disk) -> None:
    b.save("step_1.pt", {"": b"complete"}, age=-3600, attempt=NOW)
    begin(str(b.own), NOW)
    (b.own / "step_2.pt").write_bytes(b"torn")
    assert copy.set_newer_aside(b.folder) == ["step_2.pt"]
    assert list(list_entries(str(b.own))) == ["step_1.pt"]


def test_shards_of_a_lost_host_leave_a_newer_save_that_nobody_resumes(a: Disk, b: Disk) -> None:
    """The lost host had saved step_200 together with a and b, and its shards had no copy yet."""
    for disk, rank in ((a, 0), (b, 1)):
        disk.save("fsdp/step_100", {f"part_{rank}.bin": b"1"}, age=50)
        disk.save("fsdp/step_200", {f"__{rank}_0.distcp": b"1"}, age=5)
    restore(a, b)
    for disk in (a, b):
        assert list(list_entries(str(disk.own))) == ["fsdp/step_100"]
        assert list(disk.folder.manifests(disk.host)) == ["fsdp/step_100"]


def test_what_is_older_or_whole_by_itself_is_not_set_aside(a: Disk, b: Disk) -> None:
    a.save("epoch_2.pt", {"": b"2"}, age=50)
    (a.own / "epoch_1.pt").write_bytes(b"torn")
    os.utime(a.own / "epoch_1.pt", (0, 0))
    with zipfile.ZipFile(a.own / "epoch_3.pt", "w") as archive:  # as torch.save writes; it is not hashed yet
        archive.writestr("data", "3")
    restore(a, b)
    assert aside(a) == aside(b) == []
    assert sorted(list_entries(str(a.own))) == ["epoch_1.pt", "epoch_2.pt", "epoch_3.pt"]


def test_a_restore_that_fails_leaves_what_was_there(a: Disk, b: Disk) -> None:
    a.save("step_1", {"part": BIG}, age=50)
    b.save("step_1", {"part": b"old"}, age=90)
    (order,) = plan_restore([Kept("a", a.folder.manifests("a")["step_1"])], ["b"])
    with pytest.raises(WorkerError, match="cannot be had"):
        restore_entries(b.folder, {}, [order.order()])
    assert b.content("step_1") == {"part": b"old"}
    assert not [path for path in b.own.iterdir() if ".aside-" in path.name]


def test_own_files_with_one_content_do_not_become_one_file(a: Disk, b: Disk) -> None:
    """Hard links would change together when the job writes into one file."""
    a.save("step_1", {"one": BIG, "two": BIG}, age=50)
    restore(a, b)
    (b.own / "step_1" / "one").write_bytes(b"changed")
    assert (b.own / "step_1" / "two").read_bytes() == BIG


def test_what_nobody_continues_is_cleared_away(b: Disk) -> None:
    incoming = Path(b.folder.make("b", entries.FOLDER, "incoming"))
    for name, age in (("old", limits.INCOMING_S + 60), ("new", 60.0)):
        (incoming / name).write_bytes(b"")
        os.utime(incoming / name, (0, incoming.stat().st_mtime - age))
    copy.remove_abandoned_transfers(b.folder)
    assert [path.name for path in incoming.iterdir()] == ["new"]


def test_put_own_writes_the_manifest_last(a: Disk, b: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    a.save("step_1", {"part": BIG}, age=50)
    (order,) = plan_restore([Kept("a", a.folder.manifests("a")["step_1"])], ["b"])

    def full(folder: str, found: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ddpctl_worker.checkpoint.copy.manifest.write", full)
    with pytest.raises(OSError, match="No space"):
        put_own(b.folder, order.chosen, lambda path, file: str(_put(b, BIG, file)))
    assert b.content("step_1") is None


def _put(disk: Disk, data: bytes, file: SavedFile) -> Path:
    path = Path(disk.folder.make(disk.host, entries.FOLDER, "incoming"), file["sha256"])
    path.write_bytes(data)
    return path


class _Trickle:
    """A socket that gives a byte at a time, a second apart by the clock of the test."""

    def __init__(self, data: bytes, clock: list[float]) -> None:
        self._data, self._clock = memoryview(data), clock

    def recv_into(self, view: memoryview) -> int:
        self._clock[0] += 1.0
        view[:1] = self._data[:1]
        self._data = self._data[1:]
        return 1


def test_a_peer_that_trickles_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("ddpctl_worker.store.relay.time.monotonic", lambda: clock[0])
    data = relay.HEADER.pack(1000, 0) + b"x" * 1000
    reader = relay.ChunkReader(cast("Any", _Trickle(data, clock)), relay.LeastRate())
    with pytest.raises(relay.PeerGone, match=r"it sent only \d+ bytes in \d+ s"):
        reader.read()
    assert clock[0] < 100 + 2 * LEAST_S
