"""`ddpctl push --data` on input that no host needs to see."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import InProcess


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    path = tmp_path / "inventory.yaml"
    path.write_text(json.dumps({"cluster": "c", "hosts": [{"name": "a", "address": "192.0.2.1"}]}))
    (tmp_path / "data").mkdir()
    return path


@pytest.mark.parametrize("option", [("--job", "j"), ("--list",), ("--locked",)])
def test_options_of_code_have_no_effect_on_data(ddpctl: InProcess, inventory: Path, option: tuple[str, ...]) -> None:
    done = ddpctl("push", "--data", "data", *option, inventory=inventory)
    assert done.rc == 2
    assert f"{option[0]} has no effect with --data" in done.stderr


def test_a_folder_is_looked_for_beside_the_inventory(ddpctl: InProcess, inventory: Path) -> None:
    done = ddpctl("push", "--data", "dato", inventory=inventory)
    assert done.rc == 2
    assert f"{inventory.parent}/dato is no folder" in done.stderr
    assert "relative to the inventory's folder" in done.stderr
    assert "has no files" in ddpctl("push", "--data", "data", inventory=inventory).stderr


def test_a_link_out_of_the_folder_is_refused_before_a_host_is_asked(ddpctl: InProcess, inventory: Path) -> None:
    (inventory.parent / "data" / "x").write_text("x")
    (inventory.parent / "data" / "out").symlink_to("/etc")
    done = ddpctl("push", "--data", "data", inventory=inventory)
    assert done.rc == 5
    assert "data/out is a link out of the folder, to /etc" in done.stderr
