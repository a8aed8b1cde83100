"""docs/checks.md is what the catalogue says."""

from __future__ import annotations

import re
from pathlib import Path

from ddpctl.checks.catalogue import CATALOGUE
from ddpctl.checks.document import anchor, page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs" / "checks.md"


def test_the_page_is_fresh() -> None:
    assert DOCS.read_text() == page(CATALOGUE), "run: python -m ddpctl.checks.document > docs/checks.md"


def test_ids_are_dotted_lower_case_and_unique() -> None:
    ids = [check.id for check in CATALOGUE]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z]+\.[a-z_]+", one) for one in ids)


def test_every_check_has_a_whole_section_and_a_link_to_it() -> None:
    text = page(CATALOGUE)
    for check in CATALOGUE:
        assert check.cause
        assert check.symptom
        assert check.fix
        assert f"(#{anchor(check)})" in text
        assert f"\n## {check.id}\n" in text


def test_what_never_ran_on_the_real_thing_is_named() -> None:
    text = page(CATALOGUE)
    for check in CATALOGUE:
        if check.id.startswith(("gpu.", "ib.")):
            assert f"{check.title} | recorded output only, never real hardware |" in text


def test_what_was_seen_on_real_hosts_is_not_among_what_never_ran() -> None:
    """The rehearsal is run for real in the lab, over gloo."""
    text = page(CATALOGUE)
    assert "| [deep.rehearsal](#deeprehearsal) | a rehearsal with every rank (--deep) | on test hosts |" in text
    assert "never run on GPUs" in text.partition("## deep.rehearsal")[2].partition("## ")[0]
