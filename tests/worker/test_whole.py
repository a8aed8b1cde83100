"""A file that a killed writer left is told from a whole one, where its format says how."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest

from ddpctl_worker.checkpoint.whole import whole


def saved_by_torch() -> bytes:
    """torch.save writes a zip archive of uncompressed files."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", b"pickle" * 20)
        archive.writestr("archive/data/0", bytes(range(256)) * 8)
        archive.writestr("archive/version", b"3\n")
    return content.getvalue()


def safetensors() -> bytes:
    header = {"__metadata__": {"format": "pt"}, "w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"x" * 16


def judged(folder: Path, name: str, content: bytes) -> bool | None:
    (folder / name).write_bytes(content)
    return whole(str(folder / name))


@pytest.mark.parametrize(("name", "content"), [("a.pt", saved_by_torch()), ("a.safetensors", safetensors())])
def test_whole_and_cut_at_every_length(tmp_path: Path, name: str, content: bytes) -> None:
    assert judged(tmp_path, name, content) is True
    ends = range(4, len(content), 97)
    assert {end: judged(tmp_path, name, content[:end]) for end in ends} == dict.fromkeys(ends, False)


def test_an_archive_written_over_a_longer_one_is_not_whole(tmp_path: Path) -> None:
    content = saved_by_torch()
    assert judged(tmp_path, "a.pt", content[:900] + content[900:].replace(b"PK\x01\x02", b"PK\x00\x00")) is False


@pytest.mark.parametrize(
    "header",
    [b"[]", b"{", b'{"w": 1}', b'{"w": {"data_offsets": [0]}}', b'{"w": {"data_offsets": [0, "16"]}}', b"\xff" * 4],
)
def test_a_damaged_header_is_not_whole(tmp_path: Path, header: bytes) -> None:
    assert judged(tmp_path, "a.safetensors", len(header).to_bytes(8, "little") + header + b"x" * 16) is False


@pytest.mark.parametrize("content", [b"", b"\x80\x04K\x01.", b"PK", b"weights"])
def test_of_other_formats_nothing_is_known(tmp_path: Path, content: bytes) -> None:
    assert judged(tmp_path, "a.pkl", content) is None


@pytest.mark.parametrize(
    ("content", "said"), [(b'{"step": 1}', True), (b"[1]", True), (b'{"step": ', None), (b"12", None), (b"", None)]
)
def test_an_object_of_json_is_whole_if_it_parses(tmp_path: Path, content: bytes, said: bool | None) -> None:
    (tmp_path / "state.json").write_bytes(content)
    assert whole(str(tmp_path / "state.json")) is said
