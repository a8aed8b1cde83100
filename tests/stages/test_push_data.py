"""A data folder on nodes that are folders of this machine: each content travels once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddpctl.code.datafolder import read_folder
from ddpctl.spec.data import DataOutcome
from ddpctl.spec.event import Progress
from ddpctl.spec.inventory import Inventory
from ddpctl.stages import push_data as stage
from ddpctl.stages.push_data import push_data
from tests.environment.support import Heard, fleet_of, local_inventory

pytestmark = pytest.mark.slow
BIG = os.urandom(9 << 20)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    top = tmp_path / "data"
    (top / "img").mkdir(parents=True)
    for number in range(40):
        (top / "img" / f"{number}.png").write_bytes(b"%d" % number * 100)
    (top / "big").write_bytes(BIG)
    (top / "big-copy").write_bytes(BIG)
    (top / "empty").touch()
    return top


def push(where: Inventory, folder: Path, heard: Heard | None = None) -> DataOutcome:
    data = read_folder(folder, lambda total: None, lambda done: None)
    with fleet_of(where) as fleet:
        return push_data(
            data, "data", "data", where, fleet, Heard() if heard is None else heard, origin="me@here:/data"
        )


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def sent(outcome: DataOutcome) -> int:
    return outcome.traffic.sent_by_controller + outcome.traffic.relayed


def test_each_content_travels_once(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "DATA_BATCH", 1)
    where, heard = local_inventory(tmp_path, 2), Heard()
    first = push(where, folder, heard)
    first.raise_for_errors()
    for node in first.nodes:
        assert node.path is not None
        assert content(Path(node.path)) == content(folder)
    assert sent(first) == pytest.approx(2 * (len(BIG) + 40 * 200), abs=20_000)
    for host in where.names:
        steps = [e for e in heard if isinstance(e, Progress) and e.host == host and e.stage == "data"]
        assert [step.done for step in steps] == sorted(step.done for step in steps)
        assert steps[-1].done <= steps[-1].total  # type: ignore[operator]
    assert sent(push(where, folder)) == 0
    (folder / "img" / "7.png").write_bytes(b"new" * 50)
    changed = push(where, folder)
    changed.raise_for_errors()
    assert sent(changed) == pytest.approx(2 * 150, abs=2 * 10_000)  # with the list of files
    assert (tmp_path / "n1" / "data" / "default" / "data" / "img" / "7.png").read_bytes() == b"new" * 50


def test_a_host_that_was_away_catches_up_and_a_broken_host_leaves_the_other_alone(tmp_path: Path, folder: Path) -> None:
    where = local_inventory(tmp_path, 2)
    (tmp_path / "n1").write_text("no folder")
    first = push(where, folder)
    assert [node.host for node in first.nodes if node.error] == ["n1"]
    assert content(tmp_path / "n0" / "data" / "default" / "data") == content(folder)
    (tmp_path / "n1").unlink()
    again = push(where, folder)
    again.raise_for_errors()
    assert content(tmp_path / "n1" / "data" / "default" / "data") == content(folder)
    document = again.to_json()
    assert document["ok"]
    assert document["bytes"]["reused"] >= 2 * len(BIG)


def test_a_file_that_changes_on_the_way_is_named_and_nothing_becomes_visible(tmp_path: Path, folder: Path) -> None:
    where = local_inventory(tmp_path, 2)
    data = read_folder(folder, lambda total: None, lambda done: None)
    (folder / "big").write_bytes(BIG[:-1] + b"x")
    with fleet_of(where) as fleet:
        outcome = push_data(data, "data", "data", where, fleet, Heard(), origin="me@here:/data")
    for node in outcome.nodes:
        assert "data/big changed while it was read; stop what writes it" in str(node.error)
        assert not (tmp_path / node.host / "data" / "default" / "data").exists()
