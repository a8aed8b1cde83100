"""The oldest Pythons that are supported: for ddpctl itself, and on a node."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from ddpctl_worker.wire.contract import MIN_PYTHON
from tests.lab.disk import CHECKOUT

INSTALLER = CHECKOUT / "tests" / "setup" / "controller-interpreter"


def controller() -> tuple[Path | None, str]:
    """An interpreter with ddpctl's dependencies, made if need be; or ``None``, and why it is missing."""
    done = subprocess.run([INSTALLER], capture_output=True, text=True)
    return (Path(done.stdout.strip()) if done.returncode == 0 else None), done.stderr.strip()


def worker() -> Path | None:
    """Return the interpreter's own path: the name on PATH may be a shim that picks a version. ``None``: no such Python
    runs.
    """
    version = ".".join(map(str, MIN_PYTHON))
    ask = [f"python{version}", "-c", "import sys; print(sys.executable)"]
    try:
        done = subprocess.run(ask, env={**os.environ, "PYENV_VERSION": version}, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return Path(done.stdout.strip()) if done.returncode == 0 else None
