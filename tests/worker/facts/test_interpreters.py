"""The Pythons of a host, found by the files on its disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.facts import ask


def environment(folder: Path, torch: str | None, *, config: str = "", minor: str = "12") -> Path:
    """A folder with an interpreter and, by its files, a torch."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_text("#!/bin/sh\n")
    (folder / "bin" / "python").chmod(0o755)
    site = folder / "lib" / f"python3.{minor}" / "site-packages"
    site.mkdir(parents=True)
    if config:
        (folder / "pyvenv.cfg").write_text(config)
    if torch:
        (site / "torch").mkdir()
        (site / "torch" / "version.py").write_text(f"__version__ = '{torch}'\n")
    return folder


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HOME", str(tmp_path))

    def look() -> dict[str, Any]:
        answer = ask("interpreters", {}, {"deadline": 60.0})
        return {one["path"]: one for one in answer["pythons"]}

    return look


def test_environments_in_the_usual_places(found: Any, tmp_path: Path) -> None:
    environment(tmp_path / "venv", "2.13.0+cpu", config="home = /usr/bin\n")
    environment(tmp_path / "project" / ".venv", None, config="home = /usr/bin\n", minor="9")
    conda = environment(tmp_path / "miniconda3", None)
    (conda / "conda-meta").mkdir()
    (environment(conda / "envs" / "ml", "2.6.0") / "conda-meta").mkdir()
    (environment(tmp_path / "elsewhere" / "far" / "env", "2.5.1") / "conda-meta").mkdir()
    (tmp_path / ".conda").mkdir()
    (tmp_path / ".conda" / "environments.txt").write_text(f"{tmp_path}/elsewhere/far/env\n/nowhere\n")
    (tmp_path / "plain").mkdir()
    (tmp_path / "again").symlink_to(tmp_path / "venv")

    pythons = found()
    expected = {
        "~/venv/bin/python": ("3.12", "2.13.0+cpu"),
        "~/project/.venv/bin/python": ("3.9", None),
        "~/miniconda3/bin/python": ("3.12", None),
        "~/miniconda3/envs/ml/bin/python": ("3.12", "2.6.0"),
        "~/elsewhere/far/env/bin/python": ("3.12", "2.5.1"),
    }
    assert {path: (one["version"], one["torch"]) for path, one in pythons.items() if path[0] == "~"} == expected
    assert [one["path"] for one in pythons.values() if one["default"]] == [sys.executable]
    order = [one["torch"] is None for one in pythons.values()]
    assert order == sorted(order), "those with torch come first"


def test_an_environment_that_sees_what_its_base_has(found: Any, tmp_path: Path) -> None:
    base = environment(tmp_path / "base", "2.7.0")
    config = f"home = {base}/bin\ninclude-system-site-packages = true\n"
    environment(tmp_path / "venv", None, config=config)
    environment(tmp_path / "alone", None, config=config.replace("true", "false"))
    pythons = found()
    assert pythons["~/venv/bin/python"]["torch"] == "2.7.0"
    assert pythons["~/alone/bin/python"]["torch"] is None


@pytest.mark.slow
def test_a_real_environment(found: Any, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    site = next((tmp_path / "env" / "lib").glob("python3.*/site-packages"))
    (site / "torch").mkdir()
    (site / "torch" / "version.py").write_text("__version__ = '2.1.0'\n")
    one = found()["~/env/bin/python"]
    assert (one["version"], one["torch"]) == (f"3.{sys.version_info[1]}", "2.1.0")


def test_what_cannot_run_is_none(found: Any, tmp_path: Path) -> None:
    environment(tmp_path / "venv", "2.0.0")
    os.chmod(tmp_path / "venv" / "bin" / "python", 0o644)
    assert "~/venv/bin/python" not in found()
