"""The Pythons that hosts of a lab have, each with its own torch; tests/setup installs them."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

INSTALLER = Path(__file__).parents[1] / "setup" / "lab-interpreter"
FIND_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"


def cache() -> Path:
    """A stable place outside of the checkout, which every host sees."""
    return Path(os.environ.get("DDPCTL_LAB_CACHE", "/opt/ddpctl-lab"))


def python213() -> Path:
    return cache() / "torch-2.13.0" / "bin" / "python"


def stand_in() -> Path:
    """The stand-in for torch 2.13. The name holds a hash of its files, as in tests/setup/lab-interpreter."""
    folder = Path(__file__).parent / "stand_in"
    names = sorted(path.relative_to(folder).as_posix() for path in (folder / "torch").rglob("*.py"))
    content = b"".join((folder / name).read_bytes() for name in names)
    return cache() / "stand-in" / hashlib.sha256(content).hexdigest()[:12] / "bin" / "python"


def make_stand_in() -> Path:
    """The same, made anew where it is not there, in a fifth of a second."""
    python = stand_in()
    if not (python.parents[1] / ".complete").exists():
        subprocess.run([INSTALLER, "stand-in"], check=False, stdout=subprocess.DEVNULL)
    return python


def make_frameworks() -> Path:
    """An interpreter with the frameworks of docs/recipes.md. Raises CalledProcessError if they cannot be installed."""
    done = subprocess.run([INSTALLER, "frameworks"], check=True, stdout=subprocess.PIPE, text=True)
    return Path(done.stdout.strip())


def python113() -> Path:
    """Debian's own, with python3-torch."""
    return Path("/usr/bin/python3")


def has_torch(python: Path) -> bool:
    """True where there is a torch to import; importing it would take seconds."""
    return python.exists() and subprocess.run([python, "-I", "-c", FIND_TORCH], check=False).returncode == 0
