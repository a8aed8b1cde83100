"""The kernel's neighbour table, which all hosts of a lab share with this machine: too small for 64 of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeLab
from tests.lab_preflight.preflight import preflight, trouble

LIMIT = Path("/proc/sys/net/ipv4/neigh/default/gc_thresh3")


@pytest.fixture
def usual_limit() -> Iterator[None]:
    """What a Linux has by itself."""
    before = LIMIT.read_text()
    LIMIT.write_text("1024")
    try:
        yield
    finally:
        LIMIT.write_text(before)


@pytest.mark.alone
def test_64_hosts_and_a_table_of_1024_neighbours(usual_limit: None, make_lab: MakeLab) -> None:
    report = preflight(make_lab(64), jobs={})
    found = trouble(report)
    assert {finding.check for finding in found} == {"fabric.neighbours"}
    assert {finding.severity.value for finding in found} == {"error"}
    assert all("holds 1024 (neighbour table overflow)" in finding.message for finding in found)
    assert all("gc_thresh3=8192" in str(finding.command) for finding in found)
    assert report.exit_code == 3
