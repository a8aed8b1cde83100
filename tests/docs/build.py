"""Builds the site as `make docs` does: every warning is an error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build_site(folder: Path) -> Path:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-E", "-b", "html"]
    done = subprocess.run([*command, str(ROOT / "docs"), str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder
