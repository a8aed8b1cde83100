"""torch's flight record as its debug server or its dump gives it: the last collectives of one rank. Pure.

The formats are those of torch's FlightRecorder: ``dump_json`` and ``dump`` in
torch/csrc/distributed/c10d/FlightRecorderDetail.hpp. Before torch 2.4 an entry has no ``collective_seq_id``.
With gloo ``state`` is always ``scheduled`` and ``retired`` means done. With NCCL ``state`` tells, and an entry that is
retired but not completed has timed out. Sends and receives have no entry with gloo and are left out with NCCL.
``op_id`` counts those as well, so that only ``collective_seq_id`` can be compared between ranks.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ddpctl_worker.rules import pickled
from ddpctl_worker.rules.limits import LARGEST_NUMBER, MOST_COLLECTIVES, MOST_RANKS

# In a correct program these have as many elements on every rank. Shapes may differ: only elements are sent.
SAME_SIZES = frozenset(
    {"all_reduce", "broadcast", "reduce", "all_gather", "barrier", "_all_gather_base", "_reduce_scatter_base"}
)
NCCL = "nccl:"  # before the names of its groups: gloo counts the collectives of the same group by itself


class Entry(NamedTuple):
    """One collective of one rank."""

    group: str
    seq: int
    op: str
    elements: int  # of all its input tensors together
    done: bool
    at: float  # Unix time in seconds at which the rank arrived there; with NCCL, at which it was enqueued
    what: str  # the group's description
    started: bool = False  # with NCCL: by the GPU
    members: Tuple[int, ...] = ()  # the ranks of the group, where that is known
    since: float = 0.0  # where its name was a destroyed group's before: Unix time of the first collective after that

    @property
    def signature(self) -> str:
        """What must be the same on all ranks of the group."""
        return "%s %d" % (self.op, self.elements) if self.op in SAME_SIZES else self.op


def entries(text: bytes) -> Optional[List[Entry]]:
    """The collectives of a record, the oldest first; None when it is no such record (a rank that is in its exit)."""
    try:
        made = json.loads(text)
    except (ValueError, RecursionError):
        return None
    found = (made.get("entries") or []) if isinstance(made, dict) else None
    return _read(made, found) if isinstance(found, list) else None


def dumped(data: bytes) -> List[Entry]:
    """The same of the file that torch writes when a collective of NCCL times out. Raises ValueError: it cannot be
    read, or its entries are not those of torch 2.4 and newer."""
    made = pickled.load(data)
    found = made.get("entries") if isinstance(made, dict) else None
    if not isinstance(found, list):
        raise ValueError("it is no flight record")
    if found and not any(isinstance(one, dict) and "collective_seq_id" in one for one in found):
        raise ValueError("its entries have no collective_seq_id")
    return _read(made, found)


def _read(made: Dict[str, Any], found: List[Any]) -> List[Entry]:
    members = _members(made.get("pg_config"))
    read = ((each, _entry(each, members)) for each in found[-MOST_COLLECTIVES:])
    return _joined(_present([(each.get("pg_id"), one) for each, one in read if one is not None]))


def of_nccl(found: Sequence[Entry]) -> List[Entry]:
    """The same beside gloo's."""
    return [one._replace(group=NCCL + one.group) for one in found]


def _entry(one: Any, members: Dict[str, Tuple[int, ...]]) -> Optional[Entry]:
    try:
        if one["is_p2p"]:
            return None
        name, what = (str(each)[:40] for each in [*one["process_group"], ""][:2])
        backend, _, op = str(one["profiling_name"]).partition(":")
        retired = bool(one["retired"]) and backend != "nccl"
        seq, at = int(one["collective_seq_id"]), int(one["time_created_ns"])
        if not (0 <= seq < LARGEST_NUMBER and 0 <= at < LARGEST_NUMBER):
            return None
        return Entry(
            name,
            seq,
            (op or backend)[:40],
            _elements(one["input_sizes"]),
            retired or one["state"] == "completed",
            at / 1e9,
            what,
            one["state"] != "scheduled",
            members.get(name, ()),
        )
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return None


def _present(found: Sequence[Tuple[Any, Entry]]) -> List[Entry]:
    """``found``: torch's number of each process group, and the collective. Without the collectives of groups that were
    destroyed and whose names others have now: those count from 1 again.

    torch names most groups by a count. It counts from 0 again once all of them are destroyed.
    """
    kept: List[Entry] = []
    ids: Dict[str, Any] = {}
    since: Dict[str, float] = {}
    for number, one in found:
        if ids.setdefault(one.group, number) != number:
            kept = [each for each in kept if _kind(each.group) != _kind(one.group)]
            ids = {name: known for name, known in ids.items() if _kind(name) != _kind(one.group)}
            ids[one.group], since[_kind(one.group)] = number, one.at
        kept.append(one._replace(since=since[_kind(one.group)]) if _kind(one.group) in since else one)
    return kept


def _kind(group: str) -> str:
    """The same for all groups whose names are numbers."""
    return "" if group.isdigit() else group


def _elements(sizes: Any) -> int:
    """Of all tensors together; ``sizes`` has a list of dimensions for each, a scalar has none."""
    total = 0
    for tensor in sizes:
        product = 1
        for dimension in tensor:
            product *= int(dimension)
        total += product
    return max(-LARGEST_NUMBER, min(total, LARGEST_NUMBER))


def _members(config: Any) -> Dict[str, Tuple[int, ...]]:
    """group -> its ranks, from ``pg_config``: {"0": {"ranks": "[0, 1]"}}. gloo has one nameless group there: no use."""
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
    """NCCL records each part of a coalesced collective under one number, and then the whole: that one has the state."""
    made: List[Entry] = []
    for one in found:
        before = made[-1] if made else None
        if before is not None and (before.group, before.seq) == (one.group, one.seq):
            made[-1] = one._replace(elements=max(before.elements, one.elements), at=before.at)
        else:
            made.append(one)
    return made


def to_json(found: Sequence[Entry], most: int = MOST_COLLECTIVES) -> Dict[str, Any]:
    """``{group: {"what": str, "ranks": [int], "since": float, "entries": [[seq, op, elements, done, at, started]]}}``.

    ``ranks`` only where they are known, ``since`` only where it is not 0. The oldest entry first.
    """
    groups: Dict[str, Any] = {}
    for one in found[-most:]:
        group = groups.setdefault(one.group, {"what": one.what, "entries": []})
        if one.members:
            group["ranks"] = list(one.members)
        if one.since:
            group["since"] = round(one.since, 6)
        group["entries"].append([one.seq, one.op, one.elements, one.done, round(one.at, 6), one.started])
    return groups


def from_json(groups: Dict[str, Any]) -> List[Entry]:
    """The inverse of ``to_json``, in order of time."""
    found = []
    for name, group in groups.items():
        what, members = str(group.get("what") or ""), tuple(int(rank) for rank in group.get("ranks") or ())
        rest = members, float(group.get("since") or 0.0)
        for seq, op, elements, done, at, started in group["entries"]:
            one = Entry(str(name), int(seq), str(op), int(elements), bool(done), float(at), what, bool(started), *rest)
            found.append(one)
    return sorted(found, key=lambda one: one.at)
