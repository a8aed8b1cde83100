"""The node's store, driven as the orchestrator drives it: a worker process, its stdin and its stdout."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.store import blobs
from ddpctl_worker.wire.channel import WorkerError

WORKER = Path(__file__).parents[3] / "worker"


def call(base: Path, verb: str, body: bytes = b"", **args: Any) -> dict[str, Any]:
    """Call a verb of a real worker process; return the last frame."""
    request = json.dumps({"verb": verb, "host": "n", "base_dir": str(base), **args}).encode() + b"\n"
    done = subprocess.run(
        [sys.executable, "-m", "ddpctl_worker"],
        input=request + body,
        capture_output=True,
        cwd="/",
        env={"PYTHONPATH": str(WORKER), "PATH": os.environ["PATH"]},
        check=True,
        timeout=60,
    )
    frames = [json.loads(line) for line in done.stdout.splitlines()]
    answer: dict[str, Any] = frames[-1]
    return answer


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


DATA = os.urandom(3 << 20)
HASH = sha(DATA)


def parts(base: Path) -> list[Path]:
    return sorted((base / "store").glob("*.part"))


@pytest.mark.slow
def test_a_blob_is_stored_once_under_its_hash_and_for_us_alone(tmp_path: Path) -> None:
    assert call(tmp_path, "store_has", hashes=[HASH])["result"]["have"] == []
    put = call(tmp_path, "store_put", DATA, hash=HASH, size=len(DATA))
    assert put == {"ok": True, "result": {"stored": True, "bytes": len(DATA)}}
    path = tmp_path / "store" / HASH
    assert path.read_bytes() == DATA
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert call(tmp_path, "store_has", hashes=[HASH, sha(b"x")])["result"]["have"] == [HASH]
    assert call(tmp_path, "store_put", b"", hash=HASH, size=len(DATA))["result"] == {"stored": False, "bytes": 0}
    assert parts(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [DATA[:-1] + bytes([DATA[-1] ^ 1]), bytes([DATA[0] ^ 1]) + DATA[1:], DATA[1:] + DATA[:1]],
    ids=["last", "first", "rotated"],
)
def test_a_changed_body_is_refused_and_leaves_nothing(tmp_path: Path, body: bytes) -> None:
    answer = call(tmp_path, "store_put", body, hash=HASH, size=len(DATA))
    assert answer["error"]["kind"] == "corrupt"
    assert HASH in answer["error"]["message"]
    assert list((tmp_path / "store").iterdir()) == []


@pytest.mark.slow
def test_a_transfer_that_broke_off_goes_on_where_it_ended(tmp_path: Path) -> None:
    answer = call(tmp_path, "store_put", DATA[:1000_000], hash=HASH, size=len(DATA))
    assert answer["error"]["kind"] == "corrupt"
    assert not (tmp_path / "store" / HASH).exists()
    has = call(tmp_path, "store_has", hashes=[HASH])["result"]
    assert has["have"] == []
    assert has["partial"] == {HASH: 1000_000}
    put = call(tmp_path, "store_put", DATA[900_000:], hash=HASH, size=len(DATA), offset=900_000)
    assert put["result"] == {"stored": True, "bytes": len(DATA) - 900_000}
    assert (tmp_path / "store" / HASH).read_bytes() == DATA
    assert parts(tmp_path) == []


@pytest.mark.slow
def test_a_rotten_beginning_is_found_and_the_next_try_starts_afresh(tmp_path: Path) -> None:
    call(tmp_path, "store_put", DATA[:1000_000], hash=HASH, size=len(DATA))
    part = parts(tmp_path)[0]
    with part.open("r+b") as file:
        file.write(b"rotten")
    answer = call(tmp_path, "store_put", DATA[1000_000:], hash=HASH, size=len(DATA), offset=1000_000)
    assert answer["error"]["kind"] == "corrupt"
    assert parts(tmp_path) == []
    assert call(tmp_path, "store_put", DATA, hash=HASH, size=len(DATA))["result"]["stored"]


@pytest.mark.slow
def test_verify_removes_a_blob_that_rotted_on_the_disk(tmp_path: Path) -> None:
    call(tmp_path, "store_put", DATA, hash=HASH, size=len(DATA))
    with (tmp_path / "store" / HASH).open("r+b") as file:
        file.write(b"rotten")
    assert call(tmp_path, "store_has", hashes=[HASH], verify=True)["result"]["have"] == []
    assert not (tmp_path / "store" / HASH).exists()


def test_a_part_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    first = blobs.Part(str(tmp_path), HASH, len(DATA))
    first.write(DATA[:1000])
    second = blobs.Part(str(tmp_path), HASH, len(DATA))
    assert second.done == 0
    assert second.path != first.path
    second.write(DATA)
    second.commit()
    first.write(DATA[1000:])
    first.commit()
    assert (tmp_path / "store" / HASH).read_bytes() == DATA


@pytest.mark.slow
@pytest.mark.parametrize("where", ["store", HASH], ids=["store", "blob"])
def test_a_symlink_in_the_way_is_refused(tmp_path: Path, where: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "victim").write_bytes(b"precious")
    base = tmp_path / "base"
    base.mkdir()
    if where == "store":
        (base / "store").symlink_to(elsewhere)
    else:
        (base / "store").mkdir(mode=0o700)
        (base / "store" / HASH).symlink_to(elsewhere / "victim")
    answer = call(base, "store_put", DATA, hash=HASH, size=len(DATA))
    assert answer["error"]["kind"] == "unsafe_path"
    assert "symbolic link" in answer["error"]["message"]
    assert [path.name for path in elsewhere.iterdir()] == ["victim"]
    assert (elsewhere / "victim").read_bytes() == b"precious"


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder away needs root")
def test_another_users_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir(mode=0o700)
    os.chown(tmp_path / "store", 1234, 1234)
    answer = call(tmp_path, "store_put", DATA, hash=HASH, size=len(DATA))
    assert answer["error"]["kind"] == "unsafe_path"
    assert "1234" in answer["error"]["message"]


@pytest.mark.slow
def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store").chmod(0o777)
    assert call(tmp_path, "store_has", hashes=[HASH])["error"]["kind"] == "unsafe_path"


@pytest.mark.slow
def test_room_is_asked_for_before_a_byte_is_written(tmp_path: Path) -> None:
    answer = call(tmp_path, "store_put", b"", hash=HASH, size=1 << 60)
    assert answer["error"]["kind"] == "no_space"
    assert "MB are free" in answer["error"]["message"]


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "A" * 64, "0" * 63, "0" * 64 + "\n", 7])
def test_only_a_hash_is_a_name(tmp_path: Path, name: Any) -> None:
    with pytest.raises(WorkerError) as caught:
        blobs.blob_path(str(tmp_path), name)
    assert caught.value.kind == "bad_request"


@pytest.mark.slow
def test_a_blob_is_given_back_in_chunks(tmp_path: Path) -> None:
    """Larger than a message."""
    call(tmp_path, "store_put", DATA, hash=HASH, size=len(DATA))
    request = {"verb": "store_get", "host": "n", "base_dir": str(tmp_path), "hash": HASH}
    done = subprocess.run(
        [sys.executable, "-m", "ddpctl_worker"],
        input=json.dumps(request).encode() + b"\n",
        capture_output=True,
        cwd="/",
        env={"PYTHONPATH": str(WORKER), "PATH": os.environ["PATH"]},
        check=True,
        timeout=60,
    )
    left, came = done.stdout, b""
    while left:
        line, _, left = left.partition(b"\n")
        frame = json.loads(line)
        came += left[: frame.get("raw", 0)]
        left = left[frame.get("raw", 0) :]
    assert came == DATA
    assert frame == {"ok": True, "result": {}}
    assert call(tmp_path, "store_get", hash=sha(b"x"))["error"]["kind"] == "corrupt"
