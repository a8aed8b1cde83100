"""The oldest Pythons that are supported: for ddpctl itself, and on a node; tests/setup installs both."""

from __future__ import annotations

import re
from pathlib import Path

from ddpctl_worker.contract import MIN_PYTHON
from tests.lab import interpreters
from tests.lab.disk import CHECKOUT


def controller_version() -> str:
    found = re.search(r'requires-python = ">=(.+)"', (CHECKOUT / "pyproject.toml").read_text())
    assert found is not None
    return found[1]


def controller() -> Path:
    """With ddpctl's dependencies, not with ddpctl."""
    return interpreters.cache() / f"controller-{controller_version()}" / "bin" / "python"


def worker() -> Path:
    """With nothing but the standard library."""
    version = ".".join(map(str, MIN_PYTHON))
    return interpreters.cache() / f"worker-{version}" / "bin" / f"python{version}"
