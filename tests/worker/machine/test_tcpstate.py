"""The kernel's tables of TCP connections: rows with data that is sent again, and for how long."""

from __future__ import annotations

import itertools
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.machine.tcpstate import COUNTERS, Row, Table, Tracker, count_retransmissions

pytestmark = pytest.mark.skipif(sys.byteorder != "little", reason="the recorded rows are of a little-endian machine")

# Rows of Linux 6.18 on node1 of three, for the connection between its rank and the rank of node2 in a steady
# all-reduce. They were recorded on a little-endian machine.
HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"
LISTENS = (
    "   1: 0C014D0A:87CB 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1611700 1 0 100 0 0"
)
STEADY = "   4: 0C014D0A:87CB 0D014D0A:8C30 01 00000000:00000000 00:00000000 00000000     0        0 1611715 2 0 20 4 1"
CUT_3_S = "   4: 0C014D0A:87CB 0D014D0A:8C30 01 00000060:00000000 01:0000013E 00000004     0        0 1611715 2 0 326 4"
CUT_10_S = (
    "   4: 0C014D0A:87CB 0D014D0A:8C30 01 00000060:00000000 01:000000E4 00000005     0        0 1611715 2 0 652 4"
)
CUT_END = (
    "   4: 0C014D0A:87CB 0D014D0A:8C30 01 00000030:00000000 01:00000014 00000000     0        0 1611715 3 0 20 4 1"
)
# Of a connection that a rank on node1 opens to node2, 3.5 s after the first packet.
OPENING = (
    "   5: 0C014D0A:0051 0D014D0A:8C30 02 00000001:00000000 01:00000150 00000002     0        0 1611720 2 0 400 0 0"
)
STOPPED = "   4: 0C014D0A:87CB 0D014D0A:8C30 01 00000000:00000060 00:00000000 00000000     0        0 1611715 1 0 20 4"
FULL = "   4: 0C014D0A:87CB 0D014D0A:8C30 01 00055678:00000000 04:00000C11 00000003     0        0 1611715 1 0 20 4"
MAPPED = (
    "   0: 0000000000000000FFFF00000C014D0A:87CB 0000000000000000FFFF00000D014D0A:8C30 01 00000060:00000000 01:0000013E"
    " 00000004  1000        0 1611716 2 0 326 4"
)
TABLE = Table({"10.77.1.13": "node2", "10.77.1.11": "node0", "fd00::1": "node0"})


def rows(*lines: str) -> list[Row]:
    return list(TABLE.rows("\n".join([HEAD, *lines, ""]).encode()))


def test_a_row_of_the_kernels_table() -> None:
    (found,) = rows(LISTENS, CUT_3_S)
    assert (found.host, found.local, found.remote) == ("node2", "10.77.1.12", "10.77.1.13")
    assert (found.port, found.far, found.queue, found.again, found.inode, found.uid) == (
        0x87CB,
        0x8C30,
        0x60,
        4,
        1611715,
        0,
    )
    (mapped,) = rows(MAPPED)
    assert (mapped.host, mapped.local, mapped.remote, mapped.uid) == ("node2", "10.77.1.12", "10.77.1.13", 1000)


@pytest.mark.parametrize(
    ("line", "waits"),
    [
        (STEADY, False),
        (CUT_3_S, True),
        (CUT_10_S, True),
        (CUT_END, False),
        (STOPPED, False),
        (FULL, False),
        (OPENING, True),
    ],
    ids=["steady", "cut", "cut for long", "cut no more", "stopped receiver", "full receiver", "opening"],
)
def test_only_data_that_is_sent_again_waits(line: str, waits: bool) -> None:
    assert len(rows(line)) == waits


@pytest.mark.parametrize(
    "line", ["", HEAD, LISTENS, CUT_3_S.replace("0D014D0A", "0D014D0B"), CUT_3_S[:60], CUT_3_S.replace(" 01 ", " 06 ")]
)
def test_other_rows_are_passed_over(line: str) -> None:
    assert rows(line) == []
    assert list(Table({}).rows(CUT_3_S.encode())) == []


@given(st.binary(max_size=300))
def test_any_bytes_are_read(junk: bytes) -> None:
    assert list(TABLE.rows(junk + b"\n" + CUT_3_S.encode() + b"\n"))


SNMP = b"""Ip: Forwarding DefaultTTL
Ip: 1 64
Tcp: RtoAlgorithm RtoMin ActiveOpens RetransSegs InErrs
Tcp: 1 200 88 717 0
Udp: InDatagrams
Udp: 5
"""


def test_a_connection_that_is_not_answered_is_told_from_one_that_was() -> None:
    assert [row.opening for row in rows(OPENING, CUT_3_S)] == [True, False]
    assert (rows(OPENING)[0].again, rows(OPENING)[0].queue) == (2, 1)


def test_how_many_segments_were_sent_again() -> None:
    assert count_retransmissions(SNMP) == 717
    for nothing in (
        b"",
        b"Tcp: RetransSegs\n",
        b"Tcp: RetransSegs\nTcp:\n",
        b"Tcp: RetransSegs\nTcp: x\n",
        b"Tcp:\nTcp: 1\n",
    ):
        assert count_retransmissions(nothing) is None
    with open(COUNTERS, "rb") as file:
        assert count_retransmissions(file.read()) is not None


def tracked(*looks: tuple[float, list[Row]]) -> float:
    """For how long the connection has waited at the last look."""
    tracker, found = Tracker(), []
    for now, seen in looks:
        found = tracker.look(iter(seen), now)
    return max((one.seconds for one in found), default=0.0)


def test_what_waits_is_timed_from_the_first_look_that_saw_it() -> None:
    assert tracked((100, rows(STEADY)), (103, rows(CUT_3_S)), (113, rows(CUT_10_S))) == 10
    assert tracked((103, rows(CUT_3_S)), (106, rows(CUT_END)), (113, rows(CUT_10_S))) == 0
    assert tracked((103, rows(CUT_3_S)), (106, rows()), (113, rows(CUT_10_S))) == 0


STATES = st.one_of(st.none(), st.tuples(st.integers(1, 1 << 20), st.integers(1, 9)))


@given(st.lists(STATES, min_size=1, max_size=12))
def test_progress_between_two_looks_begins_the_time_anew(states: list[tuple[int, int] | None]) -> None:
    (row,) = rows(CUT_3_S)
    looks = [[] if one is None else [row._replace(queue=one[0], again=one[1])] for one in states]
    still = 0
    for before, now in itertools.pairwise(states):
        same = before is not None and now is not None and before[0] <= now[0] and before[1] <= now[1]
        still = still + 1 if same else 0
    assert tracked(*((3.0 * number, seen) for number, seen in enumerate(looks))) == 3.0 * still


def test_without_addresses_every_connection_is_read() -> None:
    far = CUT_3_S.replace("0D014D0A", "0D014D0B")
    (found,) = Table().rows(f"{far}\n".encode())
    assert (found.host, found.remote, found.again) == ("", "11.77.1.13", 4)
