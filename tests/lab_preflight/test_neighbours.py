"""The kernel's neighbour table, which all hosts of a lab share with this machine: too small for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeLab
from tests.lab import Lab
from tests.lab_preflight.conftest import shape
from tests.lab_preflight.preflight import preflight, trouble

LIMIT = Path("/proc/sys/net/ipv4/neigh/default/gc_thresh3")
SEEN = Path("/proc/net/stat/arp_cache")


@pytest.fixture
def limit() -> Iterator[Callable[[int], None]]:
    """Sets the size of the table."""
    before = LIMIT.read_text()

    def set_size(size: int) -> None:
        LIMIT.write_text(str(size))

    try:
        yield set_size
    finally:
        LIMIT.write_text(before)


def entries() -> int:
    """The neighbours in the table now."""
    return int(SEEN.read_text().splitlines()[1].split()[0], 16)


def overflows(lab: Lab, size: int) -> None:
    report = preflight(shape(lab), jobs={})
    found = trouble(report)
    assert {finding.check for finding in found} == {"fabric.neighbours"}
    assert {finding.severity.value for finding in found} == {"error"}
    assert all(f"holds {size} (neighbour table overflow)" in finding.message for finding in found)
    assert all("gc_thresh3=8192" in str(finding.command) for finding in found)
    assert report.exit_code == 3


@pytest.mark.alone  # the table of this machine is full meanwhile
def test_a_table_that_is_too_small_for_the_links_among_eight_hosts(
    limit: Callable[[int], None], make_lab: MakeLab
) -> None:
    """The controller and the hosts are 16 neighbours; the hosts among themselves are 56."""
    lab = make_lab(8)
    size = entries() + 26
    limit(size)
    overflows(lab, size)


@pytest.mark.alone
@pytest.mark.full(
    covered_by="tests/lab_preflight/test_neighbours.py::test_a_table_that_is_too_small_for_the_links_among_eight_hosts"
)
def test_64_hosts_and_a_table_of_1024_neighbours(limit: Callable[[int], None], make_lab: MakeLab) -> None:
    """The size that a Linux has by itself."""
    limit(1024)
    overflows(make_lab(64), 1024)
