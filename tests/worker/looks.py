"""Looks at ranks, as the tests of the doctor need them: small builders. A look is described in doctor/look.py."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddpctl_worker.rules import flight, frames
from ddpctl_worker.rules.verdict import Diagnosis, diagnose

RECORDS = Path(__file__).parent / "records" / "hangs"
NOW = 1_800_000_000.0
TRAIN, DATA = "/job/code/train.py", "/job/code/data.py"
C10D = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
LOADER = "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
AUTOGRAD = "/venv/lib/python3.11/site-packages/torch/autograd/graph.py"
STEP = [TRAIN, 88, "step"]
READ = [DATA, 41, "blocked_read"]
MAIN = [TRAIN, 120, "<module>"]
Look = dict[str, Any]
Call = tuple[str, int]  # operation, elements

REDUCE, GATHER, BROADCAST = ("all_reduce", 4), ("all_gather", 4), ("broadcast", 2)
LOOP = [REDUCE, BROADCAST] * 3


def host_of(rank: int) -> str:
    """Two ranks a host."""
    return f"node{rank // 2}"


def look(rank: int, **changes: Any) -> Look:
    """Of a rank that sleeps in its own code, without a record."""
    made = {
        "host": host_of(rank),
        "rank": rank,
        "local_rank": rank % 2,
        "pid": 1000 + rank,
        "state": "sleeping",
        "now": NOW,
        "cpu": 0.0,
        "below": 0.0,
        "bytes": 0,
        "still": True,
        "stack": [READ, MAIN],
        "missing": [],
    }
    return {**made, **changes}


def group(
    calls: Sequence[Call],
    *,
    waits: float | None = None,
    first: int = 1,
    ranks: Sequence[int] | None = None,
    started: bool = False,
) -> Look:
    """Return a group of a record.

    ``waits``: the seconds for which the last entry has been pending; without it the last entry is done.
    """
    entries: list[list[Any]] = []
    for nth, (op, elements) in enumerate(calls):
        last = nth == len(calls) - 1
        pending = last and waits is not None
        at = NOW - (waits or 0.0) if pending else NOW - 1000.0 + nth
        entries.append([first + nth, op, elements, not pending, at, started and pending])
    return {"what": "", "entries": entries, **({} if ranks is None else {"ranks": list(ranks)})}


def waits_in(rank: int, calls: Sequence[Call] = LOOP, seconds: float = 40.0, **changes: Any) -> Look:
    """Return a look at a rank that waits in the last of ``calls`` of the default group."""
    made = look(rank, groups={"0": group(calls, waits=seconds)}, stack=[[C10D, 3252, calls[-1][0]], STEP, MAIN])
    return {**made, **changes}


def behind(rank: int, calls: Sequence[Call] = LOOP, **changes: Any) -> Look:
    """Return a look at a rank that has not begun the last of ``calls``."""
    return {**look(rank, groups={"0": group(calls[:-1])}), **changes}


def by_stack(rank: int, op: str = "all_reduce", own: Sequence[Any] = STEP, **changes: Any) -> Look:
    """In an operation, without a record: torch 1.13."""
    return look(rank, stack=[[C10D, 1305, op], list(own), MAIN], **changes)


def receives(rank: int, source: int | None, calls: Sequence[Call] = LOOP, op: str = "recv") -> Look:
    """Return a look at a rank in a receive, or a send, that has no entry in the flight record.

    Without a ``source`` the other end is not known.
    """
    end = "src" if op == "recv" else "dst"
    peers = {} if source is None else {end: source}
    made = {"groups": {"0": group(calls)}, "stack": [[C10D, 2799, op], [TRAIN, 50, "exchange"], MAIN], "peers": peers}
    return look(rank, **made)


def recorded(name: str) -> list[Look]:
    """Looks at a real job (record_hangs.py), each rank on a host of its own."""
    made = []
    for one in json.loads((RECORDS / f"{name}.json").read_text())["ranks"]:
        entries = flight.entries(json.dumps(one["fr_trace_json"]).encode())
        threads = frames.from_py_spy(json.dumps(one["py_spy"]), one["pid"])
        assert entries is not None
        assert threads is not None
        seen: Mapping[str, Any] = one["look"]
        main = {"stack": threads[0].frames, "peers": threads[0].peers}
        made.append({**seen, **main, "groups": flight.to_json(entries), "host": f"node{seen['rank']}"})
    return made


HERE = "data.py:41 in blocked_read"
ODD = f"rank 2 on node1 is at {HERE}"
WAIT = "3 of 4 ranks wait in broadcast #6 (train.py:88 in step) for 40 s; "


def three_wait(odd: Look, seconds: float = 40.0) -> list[Look]:
    """Ranks 0, 1 and 3 wait for rank 2."""
    return [odd, *(waits_in(rank, seconds=seconds) for rank in (0, 1, 3))]


def suspects(found: Diagnosis) -> list[int]:
    return [one["rank"] for one in found.suspects]


def named(looks: Sequence[Look], text: str, *ranks: int) -> None:
    """This is said, and these are the suspects: with any, the run is stuck."""
    found = diagnose(looks)
    assert found.verdict == text
    assert suspects(found) == list(ranks)
    assert found.stuck == bool(ranks)
