"""How far the checkpoints that would outlive the loss of this host are behind the saves of its ranks.

The keeper writes it into the part's folder (``saved.json``), and ``status`` reads it. All times are of this host's own
clock, so what leaves the host are ages:

    {"saved": when the ranks last saved (s since 1970), "kept": when the newest version with all of its copies was
     saved, or null, "name": its entry, or that of the last save, "behind": since when there is a save that has no such
     version, or null, "copies": how many hosts are to have one}
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Mapping, Optional

from ddpctl_worker.machine import fs
from ddpctl_worker.rules.attempts import AttemptId, attempt_of
from ddpctl_worker.rules.complete import Manifest

LATE_S = 120.0  # a save of many GB takes a while to hash and to copy


class Lag:
    """That of one attempt on one host. ``path``: where it is written."""

    def __init__(self, path: str, attempt: AttemptId, copies: int) -> None:
        self._path, self._attempt, self._copies = path, attempt, copies
        self._kept, self._name = 0, ""  # time of the newest version with all of its copies (ns)
        self._pending: Dict[int, float] = {}  # time of a save (ns) -> when it was seen first
        self._told: Optional[Dict[str, Any]] = None

    def look(
        self, written: Mapping[str, int], known: Mapping[str, Manifest], copied: Callable[[str, str], bool]
    ) -> None:
        """``written``: when this attempt has written each entry last (ns); ``known``: the manifests; ``copied``:
        whether a version of an entry has all of its copies. Raises OSError."""
        if not written:
            return
        for entry, one in known.items():
            at = max(file["mtime_ns"] for file in one["files"].values())
            if attempt_of(one) == self._attempt and at > self._kept and copied(entry, one["version"]):
                self._kept, self._name = at, entry
        saved, last = max((at, entry) for entry, at in written.items())
        self._pending.setdefault(saved, time.time())
        self._pending = {at: seen for at, seen in self._pending.items() if at > self._kept}
        told = {
            "saved": saved / 1e9,
            "kept": self._kept / 1e9 if self._kept else None,
            "name": self._name or last,
            "behind": min(self._pending.values(), default=None),
            "copies": self._copies,
        }
        if told != self._told:
            self._told = told
            fs.write_json(self._path, told, durable=False)


def read_lag(path: str) -> Optional[Dict[str, Any]]:
    """The same in ages: {"name", "saved_s", "kept_s", "behind_s", "late", "copies"}; None: no rank saved."""
    told = fs.read_optional(path)
    try:
        now = time.time()
        kept, behind = told["kept"], told["behind"]
        return {
            "name": str(told["name"]),
            "saved_s": _age(now, told["saved"]),
            "kept_s": None if kept is None else _age(now, kept),
            "behind_s": None if behind is None else _age(now, behind),
            "late": behind is not None and _age(now, behind) >= LATE_S,
            "copies": int(told["copies"]),
        }
    except (KeyError, TypeError, ValueError):
        return None


def _age(now: float, at: float) -> float:
    return round(max(0.0, now - float(at)), 1)
