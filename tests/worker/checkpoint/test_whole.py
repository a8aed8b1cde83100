"""The file of a killed writer differs from a whole file, where its format says how."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.checkpoint.whole import is_complete, is_damaged


def archive(files: dict[str, bytes]) -> bytes:
    """As torch.save writes: a zip archive of uncompressed files.  A fixed date makes two calls give the same bytes."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as written:
        for name, data in files.items():
            written.writestr(zipfile.ZipInfo(f"archive/{name}", (2020, 1, 1, 0, 0, 0)), data)
    return content.getvalue()


def saved_by_torch() -> bytes:
    return archive({"data.pkl": b"pickle" * 20, "data/0": bytes(range(256)) * 8, "version": b"3\n"})


def safetensors() -> bytes:
    header = {"__metadata__": {"format": "pt"}, "w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"x" * 16


def judged(folder: Path, name: str, content: bytes) -> bool | None:
    (folder / name).write_bytes(content)
    return is_complete(str(folder / name))


@pytest.mark.parametrize(("name", "content"), [("a.pt", saved_by_torch()), ("a.safetensors", safetensors())])
def test_whole_and_cut_at_every_length(tmp_path: Path, name: str, content: bytes) -> None:
    assert judged(tmp_path, name, content) is True
    ends = range(4, len(content), 97)
    assert {end: judged(tmp_path, name, content[:end]) for end in ends} == dict.fromkeys(ends, False)


def test_an_archive_written_over_a_longer_one_is_not_whole(tmp_path: Path) -> None:
    content = saved_by_torch()
    assert judged(tmp_path, "a.pt", content[:900] + content[900:].replace(b"PK\x01\x02", b"PK\x00\x00")) is False


def big() -> bytes:
    return archive({"data.pkl": b"pickle" * 20, "data/0": b"weights" * 30_000, "data/1": b""})


@given(at=st.integers(0, len(big()) // 4096 - 2), blocks=st.integers(1, 9))
def test_a_block_that_never_got_to_the_disk_is_found(
    tmp_path_factory: pytest.TempPathFactory, at: int, blocks: int
) -> None:
    content, path = big(), tmp_path_factory.getbasetemp() / "zeroed.pt"
    begin, end = at * 4096, min((at + blocks) * 4096, len(content) - 4096)
    path.write_bytes(content[:begin] + bytes(end - begin) + content[end:])
    assert is_complete(str(path)) is not True or is_damaged(str(path)) == (begin < end)
    path.write_bytes(content)
    read: list[int] = []
    assert not is_damaged(str(path), read.append)
    assert sum(read) == 120 + 210_000


def test_checksums_that_were_not_computed_are_not_compared(tmp_path: Path) -> None:
    """As torch.serialization.set_crc32_options(False) has it."""
    path = tmp_path / "a.pt"
    content = saved_by_torch()
    for data in (b"pickle" * 20, bytes(range(256)) * 8, b"3\n"):
        content = content.replace(zlib.crc32(data).to_bytes(4, "little"), bytes(4))
    path.write_bytes(content)
    assert is_complete(str(path))
    assert not is_damaged(str(path))


TORCH = """
import sys, torch
from torch.serialization import set_crc32_options
state = {"w": torch.randn(300, 300), "empty": torch.empty(0), "step": 7}
torch.save(state, sys.argv[1] + "/a.pt")
with open(sys.argv[1] + "/b.pt", "wb") as file:
    torch.save(state, file)
set_crc32_options(False)
torch.save(state, sys.argv[1] + "/c.pt")
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.heavy
def test_what_torch_has_saved_is_not_damaged_until_it_is(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", TORCH, str(tmp_path)], check=True)
    for name in ("a.pt", "b.pt", "c.pt"):
        assert is_complete(str(tmp_path / name))
        assert not is_damaged(str(tmp_path / name)), name
    for name in ("a.pt", "b.pt"):
        content = bytearray((tmp_path / name).read_bytes())
        content[100_000:104_096] = bytes(4096)
        (tmp_path / name).write_bytes(content)
        assert is_damaged(str(tmp_path / name)), name


@pytest.mark.parametrize("name", ["a.bin", "a.safetensors"])
def test_what_has_no_checksums_is_not_known_to_be_damaged(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(safetensors())
    assert not is_damaged(str(tmp_path / name))


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
    assert is_complete(str(tmp_path / "state.json")) is said
