"""The oldest Pythons that are supported: for ddpctl itself, and on a node."""

from __future__ import annotations

import os
import re
import subprocess
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


def worker() -> Path | None:
    """By its own path: the name on PATH may be a shim that picks a version. None where there is none that runs."""
    version = ".".join(map(str, MIN_PYTHON))
    ask = [f"python{version}", "-c", "import sys; print(sys.executable)"]
    try:
        done = subprocess.run(ask, env={**os.environ, "PYENV_VERSION": version}, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return Path(done.stdout.strip()) if done.returncode == 0 else None
