"""The last clean preflight of each set of hosts, for the minute in which it still counts."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddpctl.files import records

KEEP_S = 3600.0  # older files are removed by the next one that is saved
_KEY = re.compile(r"[0-9a-f]{64}")


def save_preflight(key: str, report: Mapping[str, Any]) -> None:
    """Remember a report (JSON-able) under its key, a SHA-256 in hex.

    Raises:
        OSError: the folder cannot be written.
    """
    path = _file(key)
    records.write(path, {"saved": time.time(), "report": dict(report)})
    for old in path.parent.glob("*.json"):
        with contextlib.suppress(FileNotFoundError):  # another ddpctl was quicker
            if time.time() - old.stat().st_mtime > KEEP_S:
                old.unlink()


def recent_preflight(key: str, seconds: float) -> dict[str, Any] | None:
    """What was saved under ``key`` less than ``seconds`` ago; a file from the future (a clock set back) is not it."""
    found = records.read(_file(key))
    if found is None or not isinstance(found.get("saved"), float) or not isinstance(found.get("report"), dict):
        return None
    age = time.time() - found["saved"]
    report: dict[str, Any] = found["report"]
    return report if 0 <= age < seconds else None


def _file(key: str) -> Path:
    if not _KEY.fullmatch(key):
        raise ValueError(f"not the key of a preflight: {key!r}")
    return records.state_dir() / "preflights" / f"{key}.json"
