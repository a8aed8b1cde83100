"""A preflight is remembered for a minute: what it found then must still be true."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.preflight import PreflightReport
from ddpctl.stages.recall import find_remembered, remember


def test_the_holders_of_slots_are_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    lasting = Finding("disk.free", Severity.WARNING, "1.5 GB free", "a")
    in_use = Finding("host.slots", Severity.WARNING, "in use; slot 0: alice, run resnet", "a")
    remember("ab" * 32, PreflightReport("lab", ("a",), (lasting, in_use), 1.0))
    found = find_remembered("ab" * 32)
    assert found is not None
    assert found.findings == (lasting,)
