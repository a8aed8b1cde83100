"""A few of the campaign's cases in each run of the tests; `make garble` plays thousands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.garble.campaign import Campaign
from tests.garble.recording import record
from tests.garble.scenes import SCENES

ROUNDS = 6  # of each scene


def test_a_node_that_garbles_what_it_says_harms_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    campaign = Campaign(record(tmp_path / "hosts"), tmp_path / "played")
    found = {(scene, seed): bad for scene, seed, bad in campaign.run(1, ROUNDS * len(SCENES)) if bad}
    assert not found
    assert campaign.refused > ROUNDS
