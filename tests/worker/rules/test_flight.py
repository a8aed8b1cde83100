"""torch's flight record: how it is read; gloo's records are from a machine, NCCL's are made from torch's source."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.rules import flight
from ddpctl_worker.rules.flight import Entry, entries, from_json, to_json
from ddpctl_worker.rules.limits import MOST_COLLECTIVES
from tests.worker.dumped import ENTRY, dump, pickled, record
from tests.worker.looks import RECORDS

# Not from a machine: written by torch 2.13's FlightRecorderDetail.hpp (dump_json) and ProcessGroupNCCL.cpp.
NCCL: dict[str, Any] = {
    **{name: value for name, value in ENTRY.items() if name != "frames"},
    "process_group": ["0", "default_pg"],
    "state": "started",
    "time_discovered_started_ns": 1_800_000_000_600_000_000,
    "time_discovered_completed_ns": 0,
}
CONFIG = {
    "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"},
    "7": {"name": "7", "desc": "undefined", "ranks": "[1, 3]"},
}


def nccl(*changes: dict[str, Any], config: Any = CONFIG) -> list[Entry]:
    record = {
        "version": "2.10",
        "comm_lib_version": "2.27.5",
        "pg_config": config,
        "pg_status": {"0": {"last_enqueued_collective": "8", "last_started_collective": "8"}},
        "nccl_comm_state": {},
        "entries": [{**NCCL, **one} for one in changes],
    }
    found = entries(json.dumps(record).encode())
    assert found is not None
    return found


def test_a_collective_of_nccl() -> None:
    at = 1_800_000_000.5
    assert nccl({}) == [Entry("0", 8, "all_reduce", 6, False, at, "default_pg", True, (0, 1, 2, 3))]
    assert nccl({})[0].signature == "all_reduce 6"


@pytest.mark.parametrize(
    ("changes", "done", "started"),
    [
        ({"state": "scheduled"}, False, False),
        ({"state": "started"}, False, True),
        ({"state": "completed"}, True, True),
        ({"state": "completed", "retired": True}, True, True),
        ({"state": "started", "retired": True}, False, True),  # it has timed out
        ({"state": "scheduled", "retired": True}, False, False),
        ({"state": "scheduled", "retired": True, "profiling_name": "gloo:all_reduce"}, True, False),
        ({"state": "scheduled", "retired": False, "profiling_name": "gloo:all_reduce"}, False, False),
    ],
)
def test_what_is_done(changes: dict[str, Any], done: bool, started: bool) -> None:
    (found,) = nccl(changes)
    assert (found.done, found.started) == (done, started)


def test_the_members_of_a_group() -> None:
    found = nccl({}, {"process_group": ["7", "undefined"]}, {"process_group": ["9", "undefined"]})
    assert [one.members for one in found] == [(0, 1, 2, 3), (1, 3), ()]
    assert [one.members for one in from_json(to_json(found))] == [(0, 1, 2, 3), (1, 3), ()]
    of_gloo: Any = {"": {"name": "", "desc": "", "ranks": "[]"}}
    junk: list[Any] = [of_gloo, None, [], {"0": 1}, *({"0": {"ranks": ranks}} for ranks in ("[true]", "x", 5))]
    assert [nccl({}, config=config)[0].members for config in junk] == [()] * len(junk)


def test_a_coalesced_collective_is_one() -> None:
    """The slow path of an uneven all_gather: its parts have no events, so that only the whole has a state."""
    part = {"state": "scheduled", "profiling_name": "nccl:_broadcast_oop", "input_sizes": [[5]]}
    whole = {"state": "completed", "profiling_name": "nccl:ALLGATHER_coalesced", "input_sizes": [[3]]}
    found = nccl({**part, "op_id": 8}, {**part, "op_id": 9}, {**whole, "op_id": 10}, {"collective_seq_id": 9})
    assert [(one.seq, one.op, one.done) for one in found] == [
        (8, "ALLGATHER_coalesced", True),
        (9, "all_reduce", False),
    ]


def ids(*groups: tuple[str, int, int]) -> list[Entry]:
    """Return collectives a second apart: (name of the group, torch's number of the group, number of the collective)."""
    begin, second = NCCL["time_created_ns"], 10**9
    return nccl(
        *(
            {"process_group": [name, ""], "pg_id": pg, "collective_seq_id": seq, "time_created_ns": begin + at * second}
            for at, (name, pg, seq) in enumerate(groups)
        )
    )


def test_a_group_that_was_destroyed_and_made_again_begins_anew() -> None:
    """torch 2.13 with gloo writes such entries after a second init_process_group."""
    found = ids(("0", 0, 1), ("1", 1, 1), ("0", 0, 2), ("0", 2, 1), ("0", 2, 2), ("1", 3, 1))
    assert [(one.group, one.seq) for one in found] == [("0", 1), ("0", 2), ("1", 1)]
    assert {one.since for one in found} == {found[0].at}
    assert from_json(to_json(found)) == found
    assert [one.since for one in from_json(to_json(found, 1))] == [found[0].at]


def test_the_same_number_as_before_is_another_collective() -> None:
    (found,) = ids(("0", 0, 1), ("0", 1, 1))
    assert (found.seq, found.at) == (1, NCCL["time_created_ns"] / 1e9 + 1)


def test_a_group_with_a_name_of_its_own_leaves_the_others_alone() -> None:
    found = ids(("0", 0, 1), ("a3f", 1, 7), ("a3f", 2, 1), ("0", 0, 2))
    assert [(one.group, one.seq, bool(one.since)) for one in found] == [
        ("0", 1, False),
        ("a3f", 1, True),
        ("0", 2, False),
    ]


@given(st.lists(st.tuples(st.sampled_from(["0", "1", "a3f"]), st.integers(0, 3)), max_size=20))
def test_what_is_left_of_a_name_is_of_one_group(calls: list[tuple[str, int]]) -> None:
    """The numbers of the collectives rise within a group."""
    numbers: dict[tuple[str, int], int] = {}
    made = []
    for name, pg in calls:
        numbers[name, pg] = numbers.get((name, pg), 0) + 1
        made.append((name, pg, numbers[name, pg]))
    found = ids(*made)
    for name in {name for name, _ in calls}:
        left = [one.seq for one in found if one.group == name]
        assert left == sorted(set(left))
    assert not found or made[-1][::2] == found[-1][:2]
    assert [one.at for one in found] == sorted(one.at for one in found)
    assert from_json(to_json(found)) == found


def test_sends_and_receives_are_left_out() -> None:
    assert nccl({"is_p2p": True, "profiling_name": "nccl:recv 0<-1"}) == []


@pytest.mark.parametrize(
    ("sizes", "elements"),
    [
        ([], 0),
        ([[]], 1),
        ([[4]], 4),
        ([[2, 2]], 4),
        ([[2, 3], [4]], 10),
        ([[0, 5]], 0),
        ([[1 << 40, 1 << 40]], 1 << 62),
    ],
)
def test_elements_are_compared_and_shapes_are_not(sizes: Any, elements: int) -> None:
    assert nccl({"input_sizes": sizes})[0].elements == elements


@pytest.mark.parametrize("name", ["asleep", "skipped", "loader", "receive_cycle", "subgroup"])
def test_records_of_gloo(name: str) -> None:
    for rank in json.loads((RECORDS / f"{name}.json").read_text())["ranks"]:
        record = rank["fr_trace_json"]
        found = entries(json.dumps(record).encode())
        assert found is not None
        assert len(found) == len(record["entries"])
        assert [one.done for one in found] == [one["retired"] for one in record["entries"]]
        assert found[0][:4] in (("0", 1, "all_reduce", 4), ("1", 1, "all_reduce", 1))
        assert not any(one.members or one.started for one in found)
        assert [one._replace(at=round(one.at, 6)) for one in found] == from_json(to_json(found))


def test_a_rank_without_a_collective() -> None:
    assert entries(b'{"version": "2.10", "pg_config": {}}') == []


def test_the_newest_are_kept() -> None:
    many = [{"collective_seq_id": seq, "time_created_ns": seq} for seq in range(1, 401)]
    found = nccl(*many)
    assert [found[0].seq, found[-1].seq, len(found)] == [101, 400, MOST_COLLECTIVES]
    assert [one.seq for one in from_json(to_json(found, 2))] == [399, 400]


JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.binary(max_size=200))
def test_junk_is_no_record(text: bytes) -> None:
    assert entries(text) is None or isinstance(entries(text), list)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"7", b'{"entries": 7}', b"{" * 100_000, b"[" * 100_000, b"\xff\xfe", b'"x"']
)
def test_what_is_no_record(text: bytes) -> None:
    assert entries(text) is None


@given(st.dictionaries(st.sampled_from(sorted(NCCL)), JUNK, max_size=4), JUNK)
def test_an_entry_that_makes_no_sense_is_left_out(changes: dict[str, Any], config: Any) -> None:
    """Whatever is kept can be sent, and read again."""
    found = entries(json.dumps({"pg_config": config, "entries": [{**NCCL, **changes}, NCCL]}).encode())
    assert found
    for one in from_json(json.loads(json.dumps(to_json(found)))):
        assert 0 <= one.seq < 1 << 62
        assert abs(one.elements) <= 1 << 62
        assert 0 <= one.at < 1 << 62


def test_a_dump_says_the_same_as_the_server() -> None:
    changes: list[dict[str, Any]] = [
        {"state": "completed", "retired": True},
        {"collective_seq_id": 9},
        {"is_p2p": True},
    ]
    assert flight.parse_dump(dump(*changes)) == entries(json.dumps(record(*changes)).encode())
    assert [(one.seq, one.done, one.members) for one in flight.parse_dump(dump(*changes))] == [
        (8, True, (0, 1)),
        (9, False, (0, 1)),
    ]


def test_an_entry_of_a_dump_that_makes_no_sense_is_left_out() -> None:
    nested = b"X\x01\x00\x00\x00a" * 2 + b"\x86" + b"N\x86" * 100_000
    broken = dump({"process_group": "HERE"}, {}).replace(b"X\x04\x00\x00\x00HEREq", nested + b"q", 1)
    assert [one.seq for one in flight.parse_dump(broken)] == [8]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (pickled([1, 2]), "no flight record"),
        (pickled({"entries": "some"}), "no flight record"),
        (pickled({"entries": [{"seq_id": 8, "pg_id": 0}]}), "no collective_seq_id"),  # torch 2.2 and 2.3
        (dump({})[:-20], "cut or damaged"),
        (b"{}", "no pickle"),
    ],
)
def test_what_is_no_dump(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        flight.parse_dump(data)
