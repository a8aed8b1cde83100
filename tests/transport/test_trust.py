"""Writing host keys down."""

from __future__ import annotations

import base64
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ddpctl.errors import UsageError
from ddpctl.stages.trust import KeyReport, add, new_lines
from ddpctl.transport.known_hosts import Key


def report(number: int, state: str = "unknown", port: int = 22) -> KeyReport:
    kind = "ssh-ed25519"
    key = Key(kind, struct.pack(">I", len(kind)) + kind.encode() + bytes([number]) * 36)
    name = f"10.0.0.{number}"
    return KeyReport(f"n{number}", name, port, kind, key.sha256, state, None, name, key.blob)


def test_only_unknown_keys_are_written() -> None:
    lines = new_lines([report(1), report(2, "known"), report(3, "changed"), report(4, port=2222), report(1)])
    assert [line.split()[0] for line in lines] == ["10.0.0.1", "[10.0.0.4]:2222"]


def test_a_new_file_is_ours_alone(tmp_path: Path) -> None:
    path = tmp_path / "ssh" / "known_hosts"
    assert len(add([report(1)], path)) == 1
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.read_text().split()[:2] == ["10.0.0.1", "ssh-ed25519"]


def test_what_is_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text("# mine\n10.0.0.9 ssh-ed25519 AAAA")
    path.chmod(0o644)
    add([report(1)], path)
    lines = path.read_text().splitlines()
    assert lines[:2] == ["# mine", "10.0.0.9 ssh-ed25519 AAAA"]
    assert lines[2].startswith("10.0.0.1 ")
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_key_that_changed_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    other = base64.b64encode(report(7).blob).decode()
    path.write_text(f"10.0.0.1 ssh-ed25519 {other}\n")
    assert add([report(1)], path) == []
    assert path.read_text() == f"10.0.0.1 ssh-ed25519 {other}\n"


def test_many_at_once(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: add([report(n), report(100)], path), range(24)))
    names = [line.split()[0] for line in path.read_text().splitlines()]
    assert sorted(names) == sorted([*(f"10.0.0.{n}" for n in range(24)), "10.0.0.100"])


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "known_hosts").mkdir()
    with pytest.raises(UsageError, match="known_hosts"):
        add([report(1)], tmp_path / "known_hosts")
