"""A few of the campaign's cases in each run of the tests; `make garble` plays thousands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.garble.campaign import Campaign
from tests.garble.recording import record
from tests.garble.scenes import SCENES

THOROUGH = pytest.mark.full(
    covered_by="tests/garble/test_garble.py::test_a_node_that_garbles_what_it_says_harms_nobody_else"
)


@pytest.mark.parametrize("rounds", [1, pytest.param(6, marks=THOROUGH)])  # of each scene
def test_a_node_that_garbles_what_it_says_harms_nobody_else(
    rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    campaign = Campaign(record(tmp_path / "hosts"), tmp_path / "played")
    found = {(scene, seed): bad for scene, seed, bad in campaign.run(1, rounds * len(SCENES)) if bad}
    assert not found
    assert campaign.refused > rounds
