"""Manifests: their content, when they fit, and which files are no manifests."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.checkpoint import manifest
from ddpctl_worker.checkpoint.folder import list_entries
from ddpctl_worker.rules.complete import Manifest
from ddpctl_worker.rules.entries import Stamp
from tests.worker import checkpoints
from tests.worker.checkpoint.test_metadata import index


def made(folder: Path, entry: str, host: str = "node0") -> Manifest:
    one = checkpoints.made(folder, entry, host)
    manifest.write(str(folder), one)
    return one


def sharded(folder: Path, entry: str = "step_120") -> Path:
    where = folder / entry
    where.mkdir(parents=True)
    (where / "__0_0.distcp").write_bytes(b"a" * 10)
    (where / ".metadata").write_bytes(index(("__0_0.distcp", 0, 10), ("__1_0.distcp", 4, 6)))
    return where


def test_a_file_is_told_with_its_hash(tmp_path: Path) -> None:
    file = tmp_path / "ckpt-7.pt"
    file.write_bytes(b"weights")
    os.utime(file, ns=(0, 1_700_000_000_123_000_000))
    one = made(tmp_path, "ckpt-7.pt")
    digest = hashlib.sha256(b"weights").hexdigest()
    assert one == {
        "schema": 1,
        "entry": "ckpt-7.pt",
        "host": "node0",
        "step": 7,
        "time": "2023-11-14T22:13:20.123+00:00",
        "size": 7,
        "files": {"": {"size": 7, "sha256": digest, "mtime_ns": 1_700_000_000_123_000_000, "save": 1}},
        "references": None,
        "version": manifest.version_of({"": {"size": 7, "sha256": digest}}),
        "serial": 100_000,
        "run": "r",
        "attempt": 1,
        "clock": "node0",
    }
    assert manifest.read(str(tmp_path), "ckpt-7.pt") == one


def test_an_index_tells_what_it_refers_to(tmp_path: Path) -> None:
    sharded(tmp_path)
    one = made(tmp_path, "step_120")
    assert one["references"] == {"__0_0.distcp": 10, "__1_0.distcp": 10}
    assert sorted(one["files"]) == [".metadata", "__0_0.distcp"]


def test_an_index_deeper_in_an_entry_refers_to_what_is_beside_it(tmp_path: Path) -> None:
    (tmp_path / "step_1" / "weights").mkdir(parents=True)
    (tmp_path / "step_1" / "weights" / ".metadata").write_bytes(index(("__0_0.distcp", 0, 10)))
    assert made(tmp_path, "step_1")["references"] == {"weights/__0_0.distcp": 10}


def test_a_damaged_index_makes_no_manifest(tmp_path: Path) -> None:
    where = sharded(tmp_path)
    (where / ".metadata").write_bytes((where / ".metadata").read_bytes()[:-3])
    with pytest.raises(manifest.Unsettled, match=r"step_120/\.metadata"):
        made(tmp_path, "step_120")


@pytest.mark.parametrize("entry", ["a.pt", "saved/a.pt", "100%/a%2Fb.pt", "saved%2Fa.pt", "step_1"])
def test_every_name_has_a_manifest_of_its_own(tmp_path: Path, entry: str) -> None:
    for name in ("saved/a.pt", "saved%2Fa.pt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
        manifest.write(str(tmp_path), checkpoints.made(tmp_path, name, "node0", files={"": stamp(tmp_path / name)}))
    (tmp_path / entry).parent.mkdir(exist_ok=True)
    (tmp_path / entry).write_bytes(b"mine")
    manifest.write(str(tmp_path), checkpoints.made(tmp_path, entry, "node0", files={"": stamp(tmp_path / entry)}))
    told = {one["entry"]: one for one in manifest.read_all(str(tmp_path))}
    assert set(told) == {"saved/a.pt", "saved%2Fa.pt", entry}
    assert manifest.find_damaged_files(str(tmp_path), told[entry]) == []
    manifest.discard(str(tmp_path), entry)
    assert entry not in {one["entry"] for one in manifest.read_all(str(tmp_path))}


def stamp(path: Path) -> Any:
    about = path.stat()
    return Stamp(about.st_size, about.st_mtime_ns, about.st_ino)


@pytest.mark.parametrize("change", ["truncated", "grown", "touched", "replaced", "more", "less"])
def test_a_changed_file_makes_the_manifest_stale(tmp_path: Path, change: str) -> None:
    where = sharded(tmp_path)
    shard = where / "__0_0.distcp"
    os.utime(shard, ns=(0, 10**18))
    one = made(tmp_path, "step_120")
    assert manifest.fits(one, list_entries(str(tmp_path))["step_120"])
    if change == "truncated":
        os.truncate(shard, 9)
        os.utime(shard, ns=(0, 10**18))
    elif change == "grown":
        shard.write_bytes(b"a" * 11)
        os.utime(shard, ns=(0, 10**18))
    elif change == "touched":
        shard.touch()
    elif change == "replaced":
        (where / "new").write_bytes(b"b" * 10)
        (where / "new").replace(shard)
    elif change == "more":
        (where / "__2_0.distcp").write_bytes(b"c")
    else:
        shard.unlink()
    assert not manifest.fits(one, list_entries(str(tmp_path))["step_120"])


def test_what_changes_while_it_is_read_gets_no_manifest(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(b"one")
    files = list_entries(str(tmp_path))["a.pt"]
    (tmp_path / "a.pt").write_bytes(b"other")
    with pytest.raises(manifest.Unsettled, match="has changed"):
        checkpoints.made(tmp_path, "a.pt", "node0", files=files)
    (tmp_path / "a.pt").unlink()
    with pytest.raises(manifest.Unsettled, match="has vanished"):
        checkpoints.made(tmp_path, "a.pt", "node0", files=files)


@pytest.mark.parametrize("damage", ["bit", "truncated", "gone", "link"])
def test_a_wrong_byte_is_found(tmp_path: Path, damage: str) -> None:
    where = sharded(tmp_path)
    one = made(tmp_path, "step_120")
    shard = where / "__0_0.distcp"
    if damage == "bit":
        about = shard.stat()
        shard.write_bytes(b"a" * 9 + b"b")
        os.utime(shard, ns=(about.st_atime_ns, about.st_mtime_ns))
    elif damage == "truncated":
        os.truncate(shard, 5)
    else:
        shard.rename(tmp_path / "other")
        if damage == "link":
            shard.symlink_to(tmp_path / "other")
    assert manifest.find_damaged_files(str(tmp_path), one) == ["__0_0.distcp"]


DAMAGES: list[dict[str, Any]] = [
    {"schema": 2},
    {"entry": "other"},
    {"entry": "../step_120"},
    {"host": None},
    {"time": "yesterday"},
    {"time": None},
    {"step": "120"},
    {"size": 1},
    {"files": {}},
    {"files": {"../x": {"size": 1, "sha256": "0" * 64, "mtime_ns": 1}}},
    {"references": {"/etc/passwd": 1}},
    {"references": {"__0_0.distcp": -1}},
    {"references": {"__0_0.distcp": None}},
    {"version": "0" * 32},
]


@pytest.mark.parametrize("damage", DAMAGES, ids=str)
def test_a_damaged_manifest_is_none(tmp_path: Path, damage: dict[str, Any]) -> None:
    sharded(tmp_path)
    one = made(tmp_path, "step_120")
    path = Path(manifest.path_of(str(tmp_path), "step_120"))
    path.write_text(json.dumps({**one, **damage}))
    assert manifest.read(str(tmp_path), "step_120") is None
    assert manifest.read_all(str(tmp_path)) == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1}'])
def test_a_torn_manifest_is_none(tmp_path: Path, text: str) -> None:
    sharded(tmp_path)
    made(tmp_path, "step_120")
    Path(manifest.path_of(str(tmp_path), "step_120")).write_text(text)
    assert manifest.read_all(str(tmp_path)) == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(
    st.sampled_from(
        ["schema", "entry", "host", "step", "time", "size", "files", "references", "serial", "run", "attempt", "clock"]
    ),
    json_values,
)
def test_whatever_a_key_holds_it_is_a_manifest_or_none(key: str, value: Any) -> None:
    files = {"": {"size": 1, "sha256": "0" * 64, "mtime_ns": 1, "save": 1}}
    good = {"schema": 1, "entry": "a", "host": "h", "step": None, "time": "2026-01-01T00:00:00+00:00", "size": 1}
    good.update(files=files, references=None, version=manifest.version_of(files))
    good.update(serial=1, run="r", attempt=1, clock="h")
    assert manifest.is_well_formed(good)
    assert manifest.is_well_formed({**good, key: value}) in (True, False)
