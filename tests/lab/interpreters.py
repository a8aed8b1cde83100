"""The Pythons that hosts of a lab have, each with its own torch; tests/setup installs them."""

from __future__ import annotations

import os
from pathlib import Path


def cache() -> Path:
    """A stable place outside of the checkout, which every host sees."""
    return Path(os.environ.get("DDPCTL_LAB_CACHE", "/opt/ddpctl-lab"))


def python213() -> Path:
    return cache() / "torch-2.13.0" / "bin" / "python"


def python113() -> Path:
    """Debian's own, with python3-torch."""
    return Path("/usr/bin/python3")
