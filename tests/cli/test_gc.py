"""`ddpctl gc` removes nothing before somebody has agreed: a person at the terminal, or `--yes`."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

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
def test_without_a_terminal_it_needs_yes(ddpctl: Ddpctl, old: Path, inventory: Path, words: tuple[str, ...]) -> None:
    refused = ddpctl("gc", *words, inventory=inventory)
    assert (refused.rc, refused.stdout) == (2, "")
    assert "there is no terminal" in refused.stderr
    assert "ddpctl gc --yes" in refused.stderr
    assert old.exists()

    assert ddpctl("gc", *words, "--dry-run", inventory=inventory).rc == 0
    assert old.exists()

    assert ddpctl("gc", *words, "--yes", inventory=inventory).rc == 0
    assert not old.exists()


def test_at_a_terminal_json_asks_too(ddpctl: Ddpctl, old: Path, inventory: Path) -> None:
    for answer, stays in (("n", True), ("y", False)):
        asked = ddpctl.start("gc", "--json", inventory=inventory, terminal=True)
        assert isinstance(asked, AtTerminal)
        asked.wait_for(r"remove these, .* in all\?")
        asked.type(f"{answer}\n")
        done = asked.wait()
        assert done.rc == 0, done.stdout
        assert f'"dry_run": {"true" if stays else "false"}' in done.stdout
        assert old.exists() is stays
