"""torch's flight record as its debug server gives it: the last collectives of one rank. Pure.

The format is that of torch's FlightRecorder (``torch/csrc/distributed/c10d/FlightRecorder.hpp``), as JSON. With gloo
``state`` is always ``scheduled`` and ``retired`` means done; with NCCL ``state`` counts too. Sends and receives have no
entry with gloo. ``op_id`` counts those as well, so that only ``collective_seq_id`` can be compared between ranks.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, NamedTuple, Optional

MOST = 300  # entries that are kept of one rank
SAME_SIZES = frozenset({"all_reduce", "broadcast", "reduce", "all_gather", "barrier"})  # in a correct program


class Entry(NamedTuple):
    """One collective of one rank. ``at``: Unix time in seconds at which the rank arrived there."""

    group: str
    seq: int
    op: str
    sizes: str
    done: bool
    at: float
    what: str  # the group's description

    @property
    def signature(self) -> str:
        """What must be the same on all ranks of the group."""
        return "%s %s" % (self.op, self.sizes) if self.op in SAME_SIZES else self.op


def entries(text: bytes) -> Optional[List[Entry]]:
    """The collectives of a record, the oldest first; None when it is no such record (a rank that is in its exit)."""
    try:
        made = json.loads(text)
        found = made.get("entries") or [] if isinstance(made, dict) else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list):
        return None
    return [one for one in map(_entry, found[-MOST:]) if one is not None]


def _entry(one: Any) -> Optional[Entry]:
    try:
        if one["is_p2p"]:
            return None
        name, what = [*one["process_group"], ""][:2]
        backend, _, op = str(one["profiling_name"]).partition(":")
        done = bool(one["retired"]) or one["state"] == "completed"
        at = int(one["time_created_ns"]) / 1e9
        sizes = str(one["input_sizes"]).replace(" ", "")[:80]
        return Entry(
            str(name)[:40], int(one["collective_seq_id"]), (op or backend)[:40], sizes, done, at, str(what)[:40]
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def to_json(found: List[Entry], most: int = MOST) -> Dict[str, Any]:
    """``{group: {"what": str, "entries": [[seq, op, sizes, done, at], ...]}}``, the oldest first."""
    groups: Dict[str, Any] = {}
    for one in found[-most:]:
        group = groups.setdefault(one.group, {"what": one.what, "entries": []})
        group["entries"].append([one.seq, one.op, one.sizes, one.done, round(one.at, 6)])
    return groups


def from_json(groups: Dict[str, Any]) -> List[Entry]:
    """The inverse of ``to_json``, in order of time."""
    found = [
        Entry(str(name), int(seq), str(op), str(sizes), bool(done), float(at), str(group.get("what") or ""))
        for name, group in groups.items()
        for seq, op, sizes, done, at in group["entries"]
    ]
    return sorted(found, key=lambda one: one.at)
