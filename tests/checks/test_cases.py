"""Every check against recorded clusters: a JSON file for each case, in a folder with the check's id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddpctl.checks.base import Check
from ddpctl.checks.catalogue import CATALOGUE
from ddpctl.spec.finding import Finding
from tests.checks.case import CASES, findings_of, load, unasked

FILES = sorted(CASES.glob("*/*.json"))
BY_ID = {check.id: check for check in CATALOGUE}
# Judged on the nodes' view of each other; their tests stand elsewhere.
OTHERS = ("mesh.", "fabric.", "rehearsal.", "deep.")


def check_of(path: Path) -> Check:
    return BY_ID[path.parent.name]


@pytest.mark.parametrize("family", sorted({path.parent.name.partition(".")[0] for path in FILES}))
def test_each_check_says_exactly_what_its_cases_expect(family: str) -> None:
    """All cases of the checks with the same prefix; a failure names each case and what is wrong with it."""
    faults = {}
    outcomes: dict[str, set[bool]] = {}  # check -> whether a case expects findings
    for path in (path for path in FILES if path.parent.name.partition(".")[0] == family):
        case, check = load(path), check_of(path)
        outcomes.setdefault(check.id, set()).add(bool(case["findings"]))
        try:
            assert_says_exactly(check, case)
        except AssertionError as error:
            faults[f"{path.parent.name}/{path.name}"] = str(error)
    assert faults == {}
    own = {check: seen for check, seen in outcomes.items() if not check.startswith(OTHERS)}
    assert {check for check, seen in own.items() if True not in seen} == set(), "no case in which it finds something"
    assert {check for check, seen in own.items() if False not in seen} == set(), "no case that it passes"


def test_every_check_has_cases() -> None:
    checks = {check.id for check in CATALOGUE if not check.id.startswith(OTHERS)}
    without = checks - {path.parent.name for path in FILES}
    assert without == set(), "add a case that passes and a case with the fault: tests/checks/cases/ID/*.json"


def assert_says_exactly(check: Check, case: dict[str, Any]) -> None:
    if not check.id.startswith(OTHERS):
        assert unasked(check, case) == set(), "the case answers what the check never asks"
    found = findings_of(check, case)
    summary = [(f.severity.value, f.host, f.message) for f in found]
    expected = case["findings"]
    assert [(f.severity.value, f.host) for f in found] == [(e["severity"], e.get("host")) for e in expected], summary
    for finding, wanted in zip(found, expected, strict=True):
        assert finding.check == check.id
        assert_readable(finding)
        for words in wanted["says"]:
            assert words in finding.message, finding.message
        for words, said in ((wanted.get("fix"), finding.fix), (wanted.get("command"), finding.command)):
            assert words is None or words in (said or ""), said


def assert_readable(finding: Finding) -> None:
    assert finding.message
    assert "\n" not in finding.message
    assert "{" not in finding.message.replace("{mode", "").replace("{data", ""), "a template that was not filled in"
    if finding.severity.value in ("error", "warning"):
        assert finding.fix or finding.command, "an error or a warning says how to fix it"
