"""`ddpctl push --list`: the names of the files that would be sent; no host is contacted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import InProcess


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    """Two jobs of one folder, each with an env_file, on a host that cannot be reached."""
    path = tmp_path / "inventory.yaml"
    host = {"name": "a", "address": "192.0.2.1"}
    jobs = {name: {"script": "t.py", "code": "code", "env_file": f"code/{name}.secret"} for name in ("one", "two")}
    path.write_text(json.dumps({"cluster": "c", "hosts": [host], "jobs": jobs}))
    (tmp_path / "code").mkdir()
    for name in ("t.py", "one.secret", "two.secret", ".netrc"):
        (tmp_path / "code" / name).write_text("A=1\n")
    return path


def test_no_env_file_of_any_job_and_no_key_is_listed(ddpctl: InProcess, inventory: Path) -> None:
    done = ddpctl("push", "--job", "one", "--list", inventory=inventory).ok()
    assert done.stdout == "t.py\n"
    assert "not sent, because the names are those of keys and passwords: .netrc" in done.stderr
    document = ddpctl("push", "--job", "two", "--list", "--json", inventory=inventory).ok().json()
    assert document["files"] == ["t.py"]


def test_without_code_there_is_nothing_to_list(ddpctl: InProcess, inventory: Path) -> None:
    inventory.write_text(json.dumps({"cluster": "c", "hosts": ["a"]}))
    done = ddpctl("push", "--list", inventory=inventory)
    assert done.rc == 2
    assert "there is no code to send" in done.stderr
