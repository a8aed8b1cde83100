"""Data folders on a node: what is missing, files out of bundles, and the change from one version to the next."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.rules.datafolder import DataFile, DataListing, encode_listing
from ddpctl_worker.store import blobs, data
from ddpctl_worker.store.data import VERSION_LETTERS, data_missing, data_place, pinned_place
from ddpctl_worker.store.limits import DATA_TIME_S
from ddpctl_worker.verbs.gc import gc
from ddpctl_worker.wire.channel import Channel, WorkerError

CHANNEL = Channel()


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Pushing:
    """A controller that pushes files, given as a dictionary from path to content, to one node."""

    def __init__(self, base: Path, files: dict[str, bytes], name: str = "cifar", **more: Any) -> None:
        self.base, self.files = base, dict(sorted(files.items()))
        rows = [DataFile(path, len(data), sha(data), path.endswith(".sh")) for path, data in self.files.items()]
        self.text = encode_listing(DataListing(rows, more.get("folders", []), more.get("links", [])))
        self.request = {"base_dir": str(base), "project": "p", "name": name, "version": sha(self.text)}
        (base / "store").mkdir(mode=0o700, exist_ok=True)

    def store(self, data: bytes) -> str:
        (self.base / "store" / sha(data)).write_bytes(data)
        return sha(data)

    def ask(self) -> dict[str, Any]:
        return data_missing({**self.request, "single": 8 << 20, "batch": 1 << 30}, CHANNEL)

    def missing(self) -> list[str]:
        """The paths that the node lacks, once it has the listing."""
        self.store(self.text)
        paths = list(self.files)
        return [path for first, count in self.ask()["missing"] for path in paths[first : first + count]]

    def unpack(self, paths: Sequence[str], *, last: bool = False, damage: bytes = b"") -> dict[str, Any]:
        """Send these files as one bundle."""
        order = list(self.files)
        bundle = self.store(b"".join(self.files[path] for path in paths))
        if damage:
            (self.base / "store" / bundle).write_bytes(damage)
        ranges = [[order.index(path), 1] for path in sorted(paths)]
        request = {**self.request, "bundles": [[bundle, ranges]], "last": last, "origin": "me@here:/data"}
        return data_place(request, CHANNEL)

    def finish(self, origin: str = "me@here:/data") -> dict[str, Any]:
        return data_place({**self.request, "bundles": [], "last": True, "origin": origin}, CHANNEL)

    def push(self) -> Path:
        if paths := self.missing():
            self.unpack(paths)
        return Path(self.finish()["path"])


FILES = {"a.txt": b"a" * 10, "b/c.txt": b"c" * 20, "b/run.sh": b"#!", "empty": b""}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def store(base: Path) -> list[str]:
    return sorted(path.name for path in (base / "store").iterdir())


def test_a_version_becomes_visible_whole_and_read_only_and_leaves_the_store_empty(base: Path) -> None:
    push = Pushing(base, FILES, folders=["void"], links=[("b/link", "../a.txt")])
    assert push.ask() == {"there": False, "listed": False, "missing": []}
    assert push.missing() == ["a.txt", "b/c.txt", "b/run.sh"]
    push.unpack(["a.txt", "b/c.txt"])
    place = base / "data" / "p" / "cifar"
    assert not place.exists()
    push.unpack(["b/run.sh"])
    assert push.finish() == {"path": str(place), "replaced": None}
    assert {str(p.relative_to(place)): p.read_bytes() for p in place.rglob("*") if p.is_file()} == {
        **FILES,
        "b/link": FILES["a.txt"],
    }
    assert (place / "void").is_dir()
    assert [(place / name).stat().st_mode & 0o777 for name in ("a.txt", "empty", "b/run.sh")] == [0o444, 0o444, 0o555]
    assert store(base) == []
    assert push.ask()["there"]


def test_a_new_version_sends_the_changed_file_and_leaves_the_old_version_as_it_was(base: Path) -> None:
    place = Pushing(base, FILES).push()
    used = Path(pinned_place(str(base), str(place)))
    other = Pushing(base, {**FILES, "a.txt": b"new", "copy": b"c" * 20})
    assert other.missing() == ["a.txt"]
    other.push()
    assert (place / "a.txt").read_bytes() == b"new"
    assert (place / "copy").read_bytes() == b"c" * 20
    assert (used / "a.txt").read_bytes() == FILES["a.txt"]
    assert not (used / "copy").exists()
    assert (place / "b/c.txt").samefile(used / "b/c.txt")  # on the disk once
    back = Pushing(base, FILES)
    assert back.ask()["there"]
    back.finish()
    assert place.resolve() == used


def test_files_of_another_name_are_used_again_and_a_changed_file_is_not(base: Path) -> None:
    place = Pushing(base, FILES).push()
    assert Pushing(base, FILES, "again").missing() == []
    (place / "a.txt").chmod(0o644)
    (place / "a.txt").write_bytes(b"A" * 10)
    (place / "b/c.txt").unlink()
    assert Pushing(base, {**FILES, "d": b"d"}, "again").missing() == ["a.txt", "b/c.txt", "d"]


def test_an_interrupted_push_lacks_only_the_rest(base: Path) -> None:
    Pushing(base, FILES).missing()
    Pushing(base, FILES).unpack(["b/c.txt"])
    push = Pushing(base, FILES)
    assert push.missing() == ["a.txt", "b/run.sh"]
    push.unpack(["b/c.txt"])  # another controller has sent it too
    assert push.push().is_dir()


def test_nothing_is_visible_until_every_file_has_arrived(base: Path) -> None:
    push = Pushing(base, FILES)
    push.missing()
    push.unpack(["a.txt"])
    with pytest.raises(WorkerError, match=r"b/c.txt has not arrived"):
        push.finish()
    assert not os.path.lexists(base / "data" / "p" / "cifar")


def test_a_damaged_bundle_makes_no_file_that_counts(base: Path) -> None:
    push = Pushing(base, FILES)
    push.missing()
    with pytest.raises(WorkerError, match=r"b/c.txt arrived damaged"):
        push.unpack(["a.txt", "b/c.txt"], damage=b"a" * 10 + b"X" * 20)
    assert push.missing() == ["a.txt", "b/c.txt", "b/run.sh"]
    assert push.push().is_dir()


def test_too_little_room_is_an_error_before_a_byte_comes(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    push = Pushing(base, FILES)
    monkeypatch.setattr(blobs, "RESERVE_BYTES", 1 << 60)
    with pytest.raises(WorkerError, match="MB are free") as caught:
        push.missing()
    assert caught.value.hint is not None
    assert "ddpctl gc" in caught.value.hint


def test_files_in_bundles_need_their_room_twice(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle lies beside its files while it is unpacked; a large file is moved to its place."""
    asked: list[int] = []
    push = Pushing(base, {"a": b"a" * 100, "b": b"b" * 300})
    push.store(push.text)
    monkeypatch.setattr(data, "require_space", lambda folder, size: asked.append(size))
    for single, batch in ((200, 1000), (1000, 1000), (1000, 150)):
        data_missing({**push.request, "single": single, "batch": batch}, CHANNEL)
    assert asked == [400 + 100, 400 + 400, 400 + 150]


def test_data_from_elsewhere_is_named_and_a_folder_of_another_program_is_kept(base: Path) -> None:
    place = Pushing(base, FILES).push()
    other = Pushing(base, {"x": b"x"})
    other.unpack(other.missing())
    assert other.finish("you@there:/other")["replaced"] == "me@here:/data"
    assert Pushing(base, {"x": b"x"}).finish()["replaced"] is None  # the same content: nothing is replaced
    mine = base / "data" / "p" / "mine"
    mine.mkdir()
    with pytest.raises(WorkerError, match="is not a link of ddpctl"):
        Pushing(base, {"x": b"x"}, "mine").push()
    assert place.is_dir()


def test_a_link_below_another_link_is_refused(base: Path) -> None:
    push = Pushing(base, {"d/f": b"x"}, links=[("a", "d"), ("a/b", "f")])
    with pytest.raises(WorkerError, match="part/a is a symbolic link"):
        push.push()
    assert sorted(os.listdir(base / "data" / "p")) == [".cifar"]


@pytest.mark.parametrize("moment", ["bundle", "end", "empty folder"])
def test_a_folder_that_turned_into_a_link_is_refused(base: Path, tmp_path: Path, moment: str) -> None:
    """A job of the same login may change the part of a version. Nothing is written through the link."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    push = Pushing(base, {"d/f": b"x", "d/none": b""}, folders=["d/void"])
    assert push.missing() == ["d/f"]
    staging = base / "data" / "p" / ".cifar" / f"{push.request['version'][:VERSION_LETTERS]}.part"
    if moment != "bundle":
        push.unpack(["d/f"])
        (staging / "d").rename(elsewhere / "d")
    else:
        staging.mkdir(mode=0o700)
        (elsewhere / "d").mkdir()
    if moment == "empty folder":
        (elsewhere / "d" / "none").touch()
        os.utime(elsewhere / "d" / "none", (DATA_TIME_S, DATA_TIME_S))
    (staging / "d").symlink_to(elsewhere / "d")
    before = sorted(os.listdir(elsewhere / "d"))
    with pytest.raises(WorkerError, match=r"part/d is a symbolic link") as caught:
        push.push()
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("remove it")
    assert sorted(os.listdir(elsewhere / "d")) == before
    (staging / "d").unlink()
    assert push.push().is_dir()


def test_any_other_place_is_used_as_it_is(base: Path, tmp_path: Path) -> None:
    with contextlib.suppress(FileExistsError):
        (tmp_path / "own").mkdir()
    assert pinned_place(str(base), str(tmp_path / "own")) == str(tmp_path / "own")
    assert pinned_place(str(base), "/data/cifar10") == "/data/cifar10"


def old(path: Path) -> None:
    os.utime(path, (1e9, 1e9))


def test_gc_removes_a_version_that_nobody_used_and_keeps_the_version_of_a_live_run(base: Path) -> None:
    place = Pushing(base, FILES).push()
    used = Path(pinned_place(str(base), str(place)))
    Pushing(base, {**FILES, "a.txt": b"new"}).push()
    newest = place.resolve()
    for record in used.parent.glob("*.json"):
        old(record)
    run = base / "runs" / "r" / "n"
    run.mkdir(parents=True, mode=0o700)
    created = datetime.datetime.now(datetime.timezone.utc).isoformat()
    (run / "run.json").write_text(json.dumps({"run": "r", "host": "n", "job": "j", "created": created}))
    request = {"base_dir": str(base), "host": "n", "days": 7, "delete": True}
    assert pinned_place(str(base), str(used)) == str(used)  # a start
    items = gc(request, CHANNEL)["items"]
    assert {item["name"] for item in items if item["kind"] == "data"} == {"cifar"}
    assert (used / "a.txt").read_bytes() == FILES["a.txt"]
    assert not newest.exists()
    assert not os.path.lexists(place)
    assert [path.name for path in used.parent.glob("[0-9a-f]*")] == [used.name, f"{used.name}.json"]
    assert Pushing(base, {**FILES, "a.txt": b"new"}).missing() == ["a.txt"]
