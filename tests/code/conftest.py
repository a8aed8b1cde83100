"""A folder of code and a cache, separate for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpctl.code import pack
from tests.code.support import Pack


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "code"
    path.mkdir()
    return path


@pytest.fixture
def packed(cache: Path, folder: Path) -> Pack:
    return lambda **options: pack(folder, **{"cache": cache, **options})
