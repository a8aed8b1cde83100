"""Reads torch's flight record: the last collectives of a rank, from its debug server or from a dump. Pure.

The formats are defined by torch's FlightRecorder: ``dump_json`` and ``dump`` in
torch/csrc/distributed/c10d/FlightRecorderDetail.hpp. Before torch 2.4 an entry has no ``collective_seq_id``.

- gloo: ``state`` is always ``scheduled``, and ``retired`` means done.
- NCCL: ``state`` is correct, and an entry that is retired but not completed has timed out.
- Sends and receives have no entry with gloo and are left out with NCCL. ``op_id`` counts them as well, so only
  ``collective_seq_id`` can be compared between ranks.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ddpctl_worker.rules import pickled
from ddpctl_worker.rules.limits import LARGEST_NUMBER, MOST_COLLECTIVES, MOST_RANKS

# In a correct program these have the same number of elements on every rank. Shapes may differ: only elements are sent.
SAME_SIZES = frozenset(
    {"all_reduce", "broadcast", "reduce", "all_gather", "barrier", "_all_gather_base", "_reduce_scatter_base"}
)
NCCL = "nccl:"  # prefix of NCCL's group names: gloo numbers the collectives of the same group separately


class Entry(NamedTuple):
    """A collective of a rank."""

    group: str
    seq: int
    op: str
    elements: int  # of all input tensors together
    done: bool
    at: float  # Unix time in seconds at which the rank arrived there; with NCCL, at which it was enqueued
    what: str  # the group's description
    started: bool = False  # with NCCL: the GPU has begun it
    members: Tuple[int, ...] = ()  # the ranks of the group, if known
    since: float = 0.0  # if a destroyed group had the same name: Unix time of this group's first collective

    @property
    def signature(self) -> str:
        """Return the text that is the same on all ranks of the group in a correct program."""
        return "%s %d" % (self.op, self.elements) if self.op in SAME_SIZES else self.op


def entries(text: bytes) -> Optional[List[Entry]]:
    """Return the collectives of a record, the oldest first; ``None`` if the text is no record (the rank is exiting)."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    found = (record.get("entries") or []) if isinstance(record, dict) else None
    return _read(record, found) if isinstance(found, list) else None


def parse_dump(data: bytes) -> List[Entry]:
    """Return the collectives of the file that torch writes when a collective of NCCL times out, the oldest first.

    Raises: ValueError: the file is damaged, or its entries are older than torch 2.4.
    """
    record = pickled.load(data)
    found = record.get("entries") if isinstance(record, dict) else None
    if not isinstance(found, list):
        raise ValueError("it is no flight record")
    if found and not any(isinstance(entry, dict) and "collective_seq_id" in entry for entry in found):
        raise ValueError("its entries have no collective_seq_id")
    return _read(record, found)


def _read(record: Dict[str, Any], rows: List[Any]) -> List[Entry]:
    members = _members(record.get("pg_config"))
    read = ((row, _entry(row, members)) for row in rows[-MOST_COLLECTIVES:])
    return _joined(_present([(row.get("pg_id"), entry) for row, entry in read if entry is not None]))


def parse_nccl_dump(found: Sequence[Entry]) -> List[Entry]:
    """Return the entries with NCCL's group names, to stand beside gloo's entries."""
    return [entry._replace(group=NCCL + entry.group) for entry in found]


def _entry(row: Any, members: Dict[str, Tuple[int, ...]]) -> Optional[Entry]:
    try:
        if row["is_p2p"]:
            return None
        name, what = (str(each)[:40] for each in [*row["process_group"], ""][:2])
        backend, _, op = str(row["profiling_name"]).partition(":")
        retired = bool(row["retired"]) and backend != "nccl"
        seq, at = int(row["collective_seq_id"]), int(row["time_created_ns"])
        if not (0 <= seq < LARGEST_NUMBER and 0 <= at < LARGEST_NUMBER):
            return None
        return Entry(
            name,
            seq,
            (op or backend)[:40],
            _elements(row["input_sizes"]),
            retired or row["state"] == "completed",
            at / 1e9,
            what,
            row["state"] != "scheduled",
            members.get(name, ()),
        )
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return None


def _present(numbered: Sequence[Tuple[Any, Entry]]) -> List[Entry]:
    """Return the collectives without the entries of destroyed groups whose names are in use again.

    ``numbered``: torch's number of each process group, and the collective. torch names most groups by a count, and
    starts the count at 0 again once all groups are destroyed. A new group numbers its collectives from 1 again.
    """
    kept: List[Entry] = []
    ids: Dict[str, Any] = {}
    since: Dict[str, float] = {}
    for number, entry in numbered:
        if ids.setdefault(entry.group, number) != number:
            kept = [each for each in kept if _kind(each.group) != _kind(entry.group)]
            ids = {name: old for name, old in ids.items() if _kind(name) != _kind(entry.group)}
            ids[entry.group], since[_kind(entry.group)] = number, entry.at
        kept.append(entry._replace(since=since[_kind(entry.group)]) if _kind(entry.group) in since else entry)
    return kept


def _kind(group: str) -> str:
    """Return the same text for all groups with a number as name."""
    return "" if group.isdigit() else group


def _elements(sizes: Any) -> int:
    """Return the elements of all tensors together. ``sizes``: the dimensions of each tensor; a scalar has no
    dimension.
    """
    total = 0
    for tensor in sizes:
        product = 1
        for dimension in tensor:
            product *= int(dimension)
        total += product
    return max(-LARGEST_NUMBER, min(total, LARGEST_NUMBER))


def _members(config: Any) -> Dict[str, Tuple[int, ...]]:
    """Return group -> its ranks, from ``pg_config``: {"0": {"ranks": "[0, 1]"}}.

    With gloo ``pg_config`` has a single group without a name, which says nothing.
    """
    found = {}
    for name, group in config.items() if isinstance(config, dict) else ():
        try:
            ranks = json.loads(group["ranks"])
            if name and all(type(rank) is int and 0 <= rank < MOST_RANKS for rank in ranks):
                found[str(name)[:40]] = tuple(ranks)
        except (KeyError, TypeError, ValueError, RecursionError):
            continue
    return found


def _joined(found: Sequence[Entry]) -> List[Entry]:
    """Join the entries of each coalesced collective: NCCL records its parts and then the whole under the same number.

    Only the entry of the whole has the correct state.
    """
    joined: List[Entry] = []
    for entry in found:
        before = joined[-1] if joined else None
        if before is not None and (before.group, before.seq) == (entry.group, entry.seq):
            joined[-1] = entry._replace(elements=max(before.elements, entry.elements), at=before.at)
        else:
            joined.append(entry)
    return joined


def to_json(found: Sequence[Entry], most: int = MOST_COLLECTIVES) -> Dict[str, Any]:
    """Return the entries by group, the oldest first.

    ``{group: {"what": str, "ranks": [int], "since": float, "entries": [[seq, op, elements, done, at, started]]}}``;
    ``ranks`` is present if known, ``since`` if it is not 0.
    """
    groups: Dict[str, Any] = {}
    for entry in found[-most:]:
        group = groups.setdefault(entry.group, {"what": entry.what, "entries": []})
        if entry.members:
            group["ranks"] = list(entry.members)
        if entry.since:
            group["since"] = round(entry.since, 6)
        group["entries"].append([entry.seq, entry.op, entry.elements, entry.done, round(entry.at, 6), entry.started])
    return groups


def from_json(groups: Dict[str, Any]) -> List[Entry]:
    """Return the entries that ``to_json`` has written, in order of time."""
    found = []
    for name, group in groups.items():
        what, members = str(group.get("what") or ""), tuple(int(rank) for rank in group.get("ranks") or ())
        rest = members, float(group.get("since") or 0.0)
        for seq, op, elements, done, at, started in group["entries"]:
            entry = Entry(
                str(name), int(seq), str(op), int(elements), bool(done), float(at), what, bool(started), *rest
            )
            found.append(entry)
    return sorted(found, key=lambda entry: entry.at)
