"""Programs that came along for a node: made once from their blob, checked first, used from then on."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddpctl_worker.run import guardian
from ddpctl_worker.run.start import start
from ddpctl_worker.store.tools import program
from ddpctl_worker.wire.channel import WorkerError
from tests.worker.node import Node

SCRIPT = b"#!/bin/sh\necho 'py-spy 9.9'\n"
NAMES = ("uv", "py-spy")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    for one in (folder, folder / "store"):
        one.mkdir(mode=0o700)
    return folder


def put(base: Path, data: bytes) -> str:
    """A blob in the store; its name."""
    name = hashlib.sha256(data).hexdigest()
    (base / "store" / name).write_bytes(data)
    return name


def wheel(folder: Path, name: str, member: str) -> bytes:
    path = folder / f"{name}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x-1.dist-info/METADATA", "Name: x\n")
        archive.writestr(member, SCRIPT)
    return path.read_bytes()


def said(path: str) -> str:
    return subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_binary_is_made_once(base: Path, name: str) -> None:
    tool = {"hash": put(base, SCRIPT), "kind": "binary"}
    path = program(str(base), name, tool)
    assert Path(path) == base / "tools" / f"{name}-{tool['hash']}"
    assert said(path) == "py-spy 9.9\n"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
    inode = os.stat(path).st_ino
    os.utime(path, (1, 1))
    os.utime(base / "store" / tool["hash"], (1, 1))
    assert program(str(base), name, tool) == path
    assert os.stat(path).st_ino == inode
    assert min(os.stat(one).st_mtime for one in (path, base / "store" / tool["hash"])) > 1  # gc goes by that
    assert os.listdir(base / "tools") == [os.path.basename(path)]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_one_in_a_wheel(base: Path, tmp_path: Path, name: str) -> None:
    data = wheel(tmp_path, name, f"x-1.data/scripts/{name}")
    assert said(program(str(base), name, {"hash": put(base, data), "kind": "wheel"})) == "py-spy 9.9\n"


def test_what_cannot_be_made_is_named_and_leaves_nothing(base: Path, tmp_path: Path) -> None:
    other = put(base, wheel(tmp_path, "other", "x-1.data/scripts/other"))
    changed = put(base, SCRIPT)
    (base / "store" / changed).write_bytes(SCRIPT + b"#")
    for tool, words in (
        ({"hash": other, "kind": "wheel"}, "the wheel of uv has no uv in it"),
        ({"hash": put(base, b"no zip"), "kind": "wheel"}, "the wheel of uv cannot be read"),
        ({"hash": changed, "kind": "binary"}, "uv had changed on this disk and was removed"),
        ({"hash": changed, "kind": "binary"}, "uv has not arrived"),
        ({"hash": "../x", "kind": "binary"}, "not a SHA-256"),
    ):
        with pytest.raises(WorkerError, match=words):
            program(str(base), "uv", tool)
    assert os.listdir(base / "tools") == []


@pytest.mark.slow
def test_a_link_in_the_place_of_a_program_is_replaced(base: Path, tmp_path: Path) -> None:
    tool = {"hash": put(base, SCRIPT), "kind": "binary"}
    (base / "tools").mkdir(mode=0o700)
    (tmp_path / "bad").write_text("#!/bin/sh\necho bad\n")
    (base / "tools" / f"uv-{tool['hash']}").symlink_to(tmp_path / "bad")
    assert said(program(str(base), "uv", tool)) == "py-spy 9.9\n"
    assert (tmp_path / "bad").read_text() == "#!/bin/sh\necho bad\n"


# --- in a start -------------------------------------------------------------------------------------------------------
def ordered(base: Path, monkeypatch: pytest.MonkeyPatch, **request: Any) -> dict[str, Any]:
    """The order that a start gives to the guardian."""
    orders: list[dict[str, Any]] = []

    def launch(order: dict[str, Any]) -> dict[str, Any]:
        orders.append(order)
        return {"refused": None}

    monkeypatch.setattr(guardian, "launch", launch)
    monkeypatch.setattr("ddpctl_worker.run.start.PY_SPY_S", 60.0)
    run = Node(base, base, "n").record("r1", nproc=1, ranks=[0])
    channel: Any = SimpleNamespace(login_umask=0o022)
    start(
        {"host": "n", "base_dir": str(base), "run": run, "argv": ["/bin/true"], "cwd": "/", "env": {}, **request},
        channel,
    )
    return orders[0]


@pytest.mark.slow
def test_a_start_has_the_path_of_py_spy(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = {"hash": put(base, SCRIPT), "kind": "binary"}
    order = ordered(base, monkeypatch, py_spy=tool)
    assert order["py_spy"] == str(base / "tools" / f"py-spy-{tool['hash']}")
    assert order["refused"] is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"#!/bin/sh\necho wrong machine >&2\nexit 3\n", "wrong machine"),
        (b"\x7fELF of another machine", "Exec format error"),
        (None, "has not arrived"),
    ],
)
def test_a_start_does_without_a_py_spy_that_cannot_run(
    base: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], content: bytes | None, words: str
) -> None:
    name = put(base, content) if content is not None else "0" * 64
    order = ordered(base, monkeypatch, py_spy={"hash": name, "kind": "binary"})
    assert (order["py_spy"], order["refused"]) == (None, None)
    assert words in capfd.readouterr().err


@pytest.mark.parametrize("request_of_a_job_without", [{}, {"py_spy": None}])
def test_a_start_without_py_spy(
    base: Path, monkeypatch: pytest.MonkeyPatch, request_of_a_job_without: dict[str, Any]
) -> None:
    assert ordered(base, monkeypatch, **request_of_a_job_without)["py_spy"] is None
    assert not (base / "tools").exists()
