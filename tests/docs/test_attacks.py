"""The page of attacks names tests that exist."""

from __future__ import annotations

import re

from tests.docs.test_sources import DOCS

ROOT = DOCS.parent
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows() -> list[str]:
    """The rows of both tables, without their heads."""
    lines = (DOCS / "attacks.md").read_text().splitlines()
    return [line for line in lines if line.startswith("| ") and not line.startswith(("| attack", "| | attack"))]


def test_every_test_that_the_page_names_exists() -> None:
    named = {found for row in rows() for found in NAMED.findall(row)}
    assert len(named) > 40
    assert [
        f"{path}::{name}"
        for path, name in sorted(named)
        if not re.search(rf"^def {name}\(", (ROOT / path).read_text() if (ROOT / path).exists() else "", re.MULTILINE)
    ] == []


def test_every_attack_has_a_test() -> None:
    assert [row for row in rows() if not NAMED.search(row)] == []
    assert {row.count(" | ") for row in rows()} == {3, 4}
