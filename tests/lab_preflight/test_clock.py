"""A host with a wrong wall clock."""

from __future__ import annotations

import pytest

from tests.conftest import MakeLab
from tests.lab.clock import HostClock, compiler
from tests.lab_preflight.preflight import preflight, trouble, where


def test_a_host_behind_the_others(make_lab: MakeLab) -> None:
    if compiler() is None:
        pytest.skip("there is no C compiler: a host gets a clock of its own by a library")
    lab = make_lab(3)
    HostClock(lab[1]).set(-1000)
    (found,) = trouble(preflight(lab, only=("host",), jobs={}))
    assert where([found]) == [("host.clock", "warning", "node1", None)]
    assert found.message.startswith("its clock is ")
    assert " s slow: " in found.message
    assert abs(found.evidence["offset_s"] + 1000) <= found.evidence["uncertainty_s"] + 1
