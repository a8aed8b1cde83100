"""A data folder of this machine: its entries, the entries that are refused, and bundles of its files."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Any

import pytest

from ddpctl.code.datafolder import DataFolder, read_folder
from ddpctl.code.limits import SETTLED_NS
from ddpctl.errors import ProvisionError, UsageError
from ddpctl.spec.data import plan_bundles


def read(folder: Path) -> DataFolder:
    return read_folder(folder, lambda total: None, lambda done: None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    top = tmp_path / "data"
    (top / "img").mkdir(parents=True)
    for name in "abc":
        (top / "img" / name).write_bytes(name.encode() * 1000)
    (top / "run.sh").write_bytes(b"#!")
    (top / "run.sh").chmod(0o755)
    (top / "empty").touch()
    (top / "void").mkdir()
    (top / "link").symlink_to("img/a")
    return top


def test_the_listing_has_every_entry_and_the_same_content_is_the_same_version(folder: Path, tmp_path: Path) -> None:
    data = read(folder)
    assert [(f.path, f.size, f.executable) for f in data.listing.files] == [
        ("empty", 0, False),
        ("img/a", 1000, False),
        ("img/b", 1000, False),
        ("img/c", 1000, False),
        ("run.sh", 2, True),
    ]
    assert data.listing.files[1].sha256 == hashlib.sha256(b"a" * 1000).hexdigest()
    assert (data.listing.folders, data.listing.links) == (["void"], [("link", "img/a")])
    os.utime(folder / "img" / "a", (1, 1))
    assert read(folder).version == data.version
    (folder / "img" / "a").write_bytes(b"x")
    assert read(folder).version != data.version


def read_again(folder: Path, known: dict[str, Any]) -> DataFolder:
    return read_folder(folder, lambda total: None, lambda done: None, known)


@pytest.fixture
def settled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The hashes of a reading some seconds after the last change."""
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now + 10 * SETTLED_NS)
    known = read(folder).known
    assert sorted(known) == ["empty", "img/a", "img/b", "img/c", "run.sh"]
    return known


def test_unchanged_files_are_not_read_again(folder: Path, settled: dict[str, Any]) -> None:
    first = read(folder)
    again = read_again(folder, settled)
    assert (first.unread, again.unread) == (0, first.size)
    assert (again.version, again.known) == (first.version, first.known)
    (bundle,) = plan_bundles([file.size for file in again.found], range(5))
    assert again.bundle(bundle).sha256 == first.bundle(bundle).sha256


def test_a_changed_file_is_read_even_if_its_size_and_time_are_the_same(folder: Path, settled: dict[str, Any]) -> None:
    path = folder / "img" / "a"
    before = path.stat()
    path.write_bytes(b"x" * 1000)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    again = read_again(folder, settled)
    assert again.version == read(folder).version
    assert again.listing.files[1].sha256 == hashlib.sha256(b"x" * 1000).hexdigest()


@pytest.mark.parametrize("record", [None, [], ["x"], {}, 7])
def test_a_damaged_record_of_hashes_is_not_used(folder: Path, settled: dict[str, Any], record: object) -> None:
    damaged = {**settled, "img/a": record, "img/b": [*settled["img/b"][:-1], "no hash"]}
    assert read_again(folder, damaged).version == read(folder).version


def test_a_file_that_has_just_changed_is_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = (folder / "img" / "a").stat().st_mtime_ns
    monkeypatch.setattr(time, "time_ns", lambda: now)
    assert read(folder).known == {}


@pytest.mark.parametrize("start", [0, 1, 999, 1000, 2500, 3001, 3002])
def test_a_bundle_is_the_bytes_of_its_files_from_any_offset(folder: Path, start: int) -> None:
    data = read(folder)
    whole = b"a" * 1000 + b"b" * 1000 + b"c" * 1000 + b"#!"
    (bundle,) = plan_bundles([file.size for file in data.found], range(5))
    source = data.bundle(bundle)
    assert (source.size, source.sha256) == (3002, hashlib.sha256(whole).hexdigest())
    assert b"".join(source.chunks(start)) == whole[start:]
    assert data.bundle((2, 3)).sha256 == hashlib.sha256(whole[1000:3000]).hexdigest()  # not planned


def test_a_file_that_changes_before_it_is_sent_is_named(folder: Path) -> None:
    data = read(folder)
    (folder / "img" / "b").write_bytes(b"other")
    with pytest.raises(ProvisionError, match=r"img/b changed while it was read; stop what writes it"):
        list(data.bundle((1, 2)).chunks())


def test_entries_that_cannot_be_sent_are_refused_by_name(folder: Path) -> None:
    (folder / "img" / "out").symlink_to("../../elsewhere")
    with pytest.raises(ProvisionError, match=r"img/out is a link out of the folder, to \.\./\.\./elsewhere"):
        read(folder)
    (folder / "img" / "out").unlink()
    os.mkfifo(folder / "img" / "pipe")
    with pytest.raises(ProvisionError, match="img/pipe is a socket, a pipe or a device; move it out"):
        read(folder)


def test_a_file_that_is_gone_before_it_is_sent_is_named(folder: Path) -> None:
    data = read(folder)
    (folder / "img" / "b").unlink()
    with pytest.raises(ProvisionError, match="img/b cannot be read: No such file or directory; make it readable"):
        list(data.bundle((1, 2)).chunks())


def test_no_folder_and_an_empty_folder_are_bad_usage(folder: Path) -> None:
    with pytest.raises(UsageError, match="is no folder"):
        read(folder / "run.sh")
    with pytest.raises(UsageError, match="has no files"):
        read(folder / "void")
