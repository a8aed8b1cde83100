"""ddpctl speaks plain English: words that no engineer uses in speech stay out of the product and its pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "Makefile"]
SOURCES = [
    *PAGES,
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("inventory/*.yaml")),
    *sorted(ROOT.glob("orchestrator/**/*.py")),
    *sorted(ROOT.glob("worker/**/*.py")),
]
WORDS = (
    r"mend(s|ed|ing)?",
    r"shall",
    r"so many",
    r"(told|tells?|telling) of",
    r"none of ours",
    r"there twice",
    r"tak(e|es|ing|en) back",
    r"anew",
    r"(broke|broken) off",  # for interrupted
    r"(stands?|stood) still",  # for is stuck
    r"without a word",
    r"not looked at",  # for not checked
    r"what stands",  # for what is there
    r"goes on",  # for continues
    r"who(m)?ever",
    r"spoil(s|t|ed)?",  # for damaged
)
_FORBIDDEN = re.compile(rf"\b({'|'.join(WORDS)})\b", re.IGNORECASE)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_word_that_nobody_says(path: Path) -> None:
    text = " ".join(line.strip(" #") for line in path.read_text().splitlines())
    found = [text[max(0, match.start() - 40) : match.end() + 20] for match in _FORBIDDEN.finditer(text)]
    assert not found


@pytest.mark.parametrize("words", ["how to mend it", "it has told of it", "so many hosts", "A thing shall be"])
def test_the_list_finds_them(words: str) -> None:
    assert _FORBIDDEN.search(words)
