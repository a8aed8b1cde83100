"""`ddpctl gc`: a person at a terminal is asked before anything is removed, a script is not."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.cli.conftest import InProcess
from tests.lab.command import AtTerminal, Ddpctl

pytestmark = pytest.mark.slow

OLD = 30 * 86400
RUN = "20260101T000000Z-aaaaaa"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A run on this machine that nothing needs any more."""
    folder = tmp_path / "base" / "runs" / RUN / "here"
    folder.mkdir(parents=True)
    for path in (tmp_path / "base", folder.parent.parent, folder.parent, folder):
        path.chmod(0o700)
    ended = "2026-01-01T00:00:00+00:00"
    record = {"run": RUN, "job": "j", "cluster": "desk", "host": "here", "node_rank": 0, "created": ended}
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "exit.json").write_text(json.dumps({"state": "succeeded", "exit_code": 0, "ended": ended}))
    (folder / "log").write_bytes(bytes(20_000))
    when = time.time() - OLD
    for path in [folder, *folder.iterdir()]:
        os.utime(path, (when, when))
    return folder


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    path = tmp_path / "inventory.yaml"
    host = {"name": "here", "connection": "local", "base_dir": str(tmp_path / "base")}
    path.write_text(json.dumps({"cluster": "desk", "hosts": [host]}))
    return path


@pytest.mark.parametrize("words", [(), ("--json",), ("--days", "1")])
def test_without_a_terminal_it_does_not_ask(
    run_command: InProcess, old: Path, inventory: Path, words: tuple[str, ...]
) -> None:
    run_command("gc", *words, "--dry-run", inventory=inventory).ok()
    assert old.exists()

    run_command("gc", *words, inventory=inventory).ok()
    assert not old.exists()


def test_at_a_terminal_it_asks(ddpctl: Ddpctl, old: Path, inventory: Path) -> None:
    for answer, stays in (("n", True), ("y", False)):
        asked = ddpctl.start("gc", inventory=inventory, terminal=True)
        assert isinstance(asked, AtTerminal)
        asked.wait_for(r"remove these, .* in all\?")
        asked.type(f"{answer}\n")
        assert asked.wait().rc == 0
        assert old.exists() is stays


@pytest.mark.parametrize("word", ["--yes", "--json"])
def test_at_a_terminal_it_can_be_told_not_to(ddpctl: Ddpctl, old: Path, inventory: Path, word: str) -> None:
    assert ddpctl.start("gc", word, inventory=inventory, terminal=True).wait().rc == 0
    assert not old.exists()


def test_where_there_is_nothing_to_remove_it_says_so_and_does_not_ask(ddpctl: Ddpctl, inventory: Path) -> None:
    done = ddpctl.start("gc", inventory=inventory, terminal=True).wait()
    assert done.rc == 0
    assert "nothing to remove on 1 host" in done.stdout
    assert "remove these" not in done.stdout
