"""Every test here has a home, a cache and package sources of its own: nothing of this machine's gets in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "UV_CACHE_DIR"):
        folder = tmp_path / "own" / name.lower()
        folder.mkdir(parents=True)
        monkeypatch.setenv(name, str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder for wheels: the only place that packages come from."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    return folder
