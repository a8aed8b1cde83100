"""`ddpctl rm`: several runs at once, a host that cannot be reached, and an unknown run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import InProcess
from tests.worker.store.test_remove import put, runs

pytestmark = pytest.mark.slow

FIRST, SECOND = "20260101T000000Z-aaaaaa", "20260102T000000Z-bbbbbb"


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    """A host with two ended runs, and a host that refuses connections."""
    path = tmp_path / "inventory.yaml"
    here = {"name": "here", "connection": "local", "base_dir": str(tmp_path / "base")}
    path.write_text(json.dumps({"hosts": [here, {"name": "dead", "address": "127.0.0.1", "port": 1}]}))
    put(tmp_path / "base", FIRST, host="here", hosts=["here"])
    put(tmp_path / "base", SECOND, host="here", hosts=["here", "dead"])
    return path


def test_what_can_be_removed_is_removed(run_command: InProcess, inventory: Path, tmp_path: Path) -> None:
    done = run_command("rm", SECOND[:8], FIRST, "--json", inventory=inventory)
    assert done.rc == 4
    second, first = done.json()["runs"]
    assert first == {"job": "job", "run": FIRST, "hosts": [{"host": "here", "removed": True, "error": None}]}
    assert [(one["host"], one["removed"]) for one in second["hosts"]] == [("here", True), ("dead", False)]
    assert second["hosts"][1]["error"].startswith("dead: ")
    assert f"error: {SECOND} was not removed from 1 of 2 hosts; `ddpctl rm {SECOND}` tries again" in done.stderr
    assert runs(tmp_path / "base") == []


def test_one_that_is_not_there_keeps_none_of_the_others(
    run_command: InProcess, inventory: Path, tmp_path: Path
) -> None:
    inventory.write_text(inventory.read_text().replace(', {"name": "dead", "address": "127.0.0.1", "port": 1}', ""))
    done = run_command("rm", "nothing", FIRST, inventory=inventory)
    assert done.rc == 7
    assert f"run {FIRST}  removed from here" in done.stdout
    assert runs(tmp_path / "base") == [SECOND]
