"""What a job's program imports, of the files that are really sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddpctl.code import code_imports, pack
from ddpctl.spec.imports import Imports
from ddpctl.spec.job import JobSpec

FILES = {
    "train.py": "import linked.net\nimport src_only\n",
    "lib/net.py": "import timm\n",
    "lib/__init__.py": "",
    "src/src_only.py": "import einops\n",
    "unrelated.py": "import not_there\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / "code" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "code" / name).write_text(text)
    (tmp_path / "code" / "linked").symlink_to("lib")
    return tmp_path / "code"


def imports(folder: Path, **keys: Any) -> Imports | None:
    job = JobSpec(**{"name": "train", "script": "train.py", "code": str(folder), **keys})
    return code_imports(pack(folder, cache=folder.parent / "cache"), job)


def statements(found: Imports | None) -> list[str]:
    assert found is not None
    assert not found.faults
    return [one.statement for one in found.statements]


def test_links_to_folders_and_a_relative_search_path_are_followed(folder: Path) -> None:
    assert statements(imports(folder)) == ["import timm", "import src_only"]
    assert statements(imports(folder, env={"PYTHONPATH": "/opt/more:src"})) == ["import timm", "import einops"]
    (folder / "start.py").symlink_to("src/main.py")
    (folder / "src" / "main.py").write_text("import src_only\n")
    assert statements(imports(folder, script="start.py")) == ["import einops"]
    assert statements(imports(folder, script="./lib/../train.py")) == ["import timm", "import src_only"]


def test_what_is_not_sent_is_not_there(folder: Path) -> None:
    (folder / ".ddpctlignore").write_text("src/\n/lib/net.py\n")
    found = imports(folder, env={"PYTHONPATH": "src"})
    assert found is not None
    assert [one.statement for one in found.statements] == ["import src_only"]
    assert [(one.where, one.certain) for one in found.faults] == [("train.py:1", False)]
    (folder / ".ddpctlignore").write_text("train.py\n")
    found = imports(folder)
    assert found is not None
    assert "not in the code folder as it is sent" in found.faults[0].message


def test_what_runs_elsewhere_is_not_known(folder: Path) -> None:
    assert imports(folder, workdir="/srv/job") is None
    assert imports(folder, script=None, module="torch.distributed.run") is None
    assert code_imports(None, JobSpec(name="train", script="train.py", code=None)) is None
