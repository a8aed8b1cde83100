"""`ddpctl metrics`: each value that cannot be read is a warning beside the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import InProcess

pytestmark = pytest.mark.slow


def test_slots_that_cannot_be_read_are_left_out_with_a_warning(run_command: InProcess, tmp_path: Path) -> None:
    inventory, slots = tmp_path / "inventory.yaml", tmp_path / "slots"
    host = {"name": "here", "connection": "local", "base_dir": str(tmp_path / "base")}
    inventory.write_text(json.dumps({"cluster": "desk", "hosts": [host]}))
    slots.mkdir()
    slots.chmod(0o777)
    done = run_command("metrics", inventory=inventory, env={"DDPCTL_SLOTS_DIR": str(slots)}).ok()
    assert 'ddpctl_host_up{cluster="desk",host="here"} 1\n' in done.stdout
    assert "ddpctl_host_slots_held{" not in done.stdout
    assert f"warning: here: the slots in use are not known: {slots} has no sticky bit" in done.stderr
