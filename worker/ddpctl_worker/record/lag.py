"""How far the checkpoints with all copies are behind the saves of the ranks: the loss, if this host is lost now.

The keeper writes ``saved.json``, and ``status`` reads it. All times are of this host's own clock, so other machines get
ages only:

    {"saved": time of the newest save (s since 1970), "kept": time of the newest save with all copies, or null,
     "name": entry of that save, or of the newest save, "behind": when the oldest save without copies was first seen,
     or null, "copies": number of hosts that should have a copy}
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Mapping, Optional

from ddpctl_worker.machine import fs
from ddpctl_worker.record.limits import LAG_LATE_S
from ddpctl_worker.rules.attempts import AttemptId, attempt_of
from ddpctl_worker.rules.complete import Manifest


class Lag:
    """The lag of one attempt on one host, written to ``path``."""

    def __init__(self, path: str, attempt: AttemptId, copies: int) -> None:
        self._path, self._attempt, self._copies = path, attempt, copies
        self._kept, self._name = 0, ""  # time of the newest version with all of its copies (ns)
        self._pending: Dict[int, float] = {}  # time of a save (ns) -> when it was seen first
        self._written: Optional[Dict[str, Any]] = None

    def look(
        self, written: Mapping[str, int], known: Mapping[str, Manifest], copied: Callable[[str, str], bool]
    ) -> None:
        """Write the lag if it has changed.

        ``written``: entry -> time of its newest file by this attempt (ns). ``known``: entry -> manifest.
        ``copied(entry, version)``: whether that version has all copies.

        Raises:
            OSError: the disk does not take it.
        """
        if not written:
            return
        for entry, manifest in known.items():
            at = max(file["mtime_ns"] for file in manifest["files"].values())
            if attempt_of(manifest) == self._attempt and at > self._kept and copied(entry, manifest["version"]):
                self._kept, self._name = at, entry
        saved, last = max((at, entry) for entry, at in written.items())
        self._pending.setdefault(saved, time.time())
        self._pending = {at: seen for at, seen in self._pending.items() if at > self._kept}
        lag = {
            "saved": saved / 1e9,
            "kept": self._kept / 1e9 if self._kept else None,
            "name": self._name or last,
            "behind": min(self._pending.values(), default=None),
            "copies": self._copies,
        }
        if lag != self._written:
            self._written = lag
            fs.write_json(self._path, lag, durable=False)


def read_lag(path: str) -> Optional[Dict[str, Any]]:
    """Return the lag in ages: {"name", "saved_s", "kept_s", "behind_s", "late", "copies"}; ``None``: no rank saved."""
    lag = fs.read_optional(path)
    try:
        now = time.time()
        kept, behind = lag["kept"], lag["behind"]
        return {
            "name": str(lag["name"]),
            "saved_s": _age(now, lag["saved"]),
            "kept_s": None if kept is None else _age(now, kept),
            "behind_s": None if behind is None else _age(now, behind),
            "late": behind is not None and _age(now, behind) >= LAG_LATE_S,
            "copies": int(lag["copies"]),
        }
    except (KeyError, TypeError, ValueError):
        return None


def _age(now: float, at: float) -> float:
    return round(max(0.0, now - float(at)), 1)
