"""Another account may put anything into the folder of the slots: up, ps and top still show the honest runs."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from ddpctl.spec.slots import Claim, HostSlots
from ddpctl.transport import answers
from ddpctl_worker.slots.claims import Hold, leave, take
from ddpctl_worker.slots.listing import read_other_claims, slots
from ddpctl_worker.wire.channel import Channel

NOBODY = 65534
NAME = "run.strange.node0"
CLAIMS = TypeAdapter(list[Claim])
DEEP = 3000  # lists in lists: more than json and repr follow on some Pythons


def write(text: str | bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(text.encode() if isinstance(text, str) else text)


def write_sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


FILES: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "directory": Path.mkdir,
    "link": lambda path: path.symlink_to("/etc/passwd"),
    "link to nothing": lambda path: path.symlink_to("/nonexistent"),
    "a terabyte": write_sparse,
    "a mebibyte of spaces": write(" " * (1 << 20)),
    "no JSON": write("{"),
    "no UTF-8": write(b"\xff\xfe\x00\xd8"),
    "deep": write("[" * DEEP + "]" * DEEP),
    "deep text": write('{"run": ' + "[" * DEEP + "]" * DEEP + "}"),
    **{
        f"boottime {value[:20]}": write(f'{{"want": 1, "pool": ["0"], "boottime": {value}}}')
        for value in ("1" + "0" * 400, "1e308", "-1e308", "NaN", "Infinity", "-Infinity", "true", '"x"')
    },
    "want": write('{"want": 1' + "0" * 400 + ', "pool": ["0", 1, null], "boottime": 1}'),
    "slots": write('{"slots": {"0": -1, "": 99999999999, "x": true, "y": 1e3, "z": null}}'),
    "types": write('{"run": 1, "job": [], "hosts": {"a": 1}, "origin": "x", "slots": [1], "pool": {}, "ready": "no"}'),
    "controls": write(json.dumps({"run": "a\x1b[2J", "origin": {"account": "\udcff\x1b]52;", "folder": 1}})),
    "hosts": write(json.dumps({"hosts": ["h"] * 3000})),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host without a GPU, with a folder of its own."""
    monkeypatch.setenv("DDPCTL_SLOTS_DIR", str(tmp_path / "slots"))
    monkeypatch.setattr("ddpctl_worker.machine.tool.run_if_installed", lambda *_: None)
    return tmp_path / "slots"


@pytest.fixture
def honest(folder: Path) -> Iterator[Hold]:
    held = take(run_of("honest"), {})
    assert held is not None
    yield held
    leave(held.to_json(), over=True)


def run_of(name: str) -> dict[str, Any]:
    return {"run": name, "host": "node0", "job": "train", "nproc": 1, "slots": {"count": 4, "nodes": 1}}


@pytest.mark.parametrize("kind", FILES)
def test_strange_files_of_another_account_harm_no_command(kind: str, folder: Path, honest: Hold) -> None:
    path = folder / NAME
    FILES[kind](path)
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if path.exists() else None
    try:
        if fd is not None:
            fcntl.flock(fd, fcntl.LOCK_EX)  # a claim without a lock does not count
        found: HostSlots = answers.check_result("slots", slots({"host": "node0"}, Channel()), "node0", {})
        assert "honest" in [claim.run for claim in found.claims]
        others = CLAIMS.validate_python(read_other_claims("node0"))
        assert "honest" not in [claim.run for claim in others]
        assert all(claim.age_s >= 0 for claim in (*found.claims, *others))
        second = take(run_of("second"), {})
        assert second is not None
        assert second.path is not None
        leave(second.to_json(), over=True)
    finally:
        if fd is not None:
            os.close(fd)
