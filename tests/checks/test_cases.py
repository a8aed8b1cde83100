"""Every check against recorded clusters: one JSON file a case, in a folder with the check's id."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpctl.checks.base import Check
from ddpctl.checks.catalogue import CATALOGUE
from ddpctl.spec.finding import Finding
from tests.checks.case import CASES, findings_of, load, unasked

FILES = sorted(CASES.glob("*/*.json"))
BY_ID = {check.id: check for check in CATALOGUE}
# Judged on what nodes saw of each other; their tests stand elsewhere.
OTHERS = ("mesh.", "fabric.", "rehearsal.", "deep.")


def check_of(path: Path) -> Check:
    return BY_ID[path.parent.name]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_check_says_exactly_this(path: Path) -> None:
    case, check = load(path), check_of(path)
    assert check.id.startswith(OTHERS) or not unasked(check, case), "the case answers what the check never asks"
    found = findings_of(check, case)
    summary = [(f.severity.value, f.host, f.message) for f in found]
    expected = case["findings"]
    assert [(f.severity.value, f.host) for f in found] == [(e["severity"], e.get("host")) for e in expected], summary
    for finding, wanted in zip(found, expected, strict=True):
        for words in wanted["says"]:
            assert words in finding.message, finding.message
        for words, said in ((wanted.get("fix"), finding.fix), (wanted.get("command"), finding.command)):
            assert words is None or words in (said or ""), said


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_finding_can_be_read_and_acted_on(path: Path) -> None:
    for finding in findings_of(check_of(path), load(path)):
        assert finding.check == path.parent.name
        assert_readable(finding)


def assert_readable(finding: Finding) -> None:
    assert finding.message
    assert "\n" not in finding.message
    assert "{" not in finding.message.replace("{mode", "").replace("{data", ""), "a template that was not filled in"
    if finding.severity.value in ("error", "warning"):
        assert finding.fix or finding.command, "an error or a warning says how to fix it"


@pytest.mark.parametrize(
    "check", [check for check in CATALOGUE if not check.id.startswith(OTHERS)], ids=lambda check: check.id
)
def test_every_check_has_a_case_that_it_finds_and_one_that_it_passes(check: Check) -> None:
    cases = [load(path) for path in FILES if path.parent.name == check.id]
    assert any(case["findings"] for case in cases), "no case in which it finds something"
    assert any(not case["findings"] for case in cases), "no case that it passes"
