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


def find_words(text: str) -> list[str]:
    """Return each forbidden word of a file's text, with its surroundings; a line break is a space."""
    text = " ".join(line.strip(" #") for line in text.splitlines())
    return [text[max(0, match.start() - 40) : match.end() + 20] for match in _FORBIDDEN.finditer(text)]


def test_no_word_that_nobody_says() -> None:
    assert len(SOURCES) > 300
    found = {str(path.relative_to(ROOT)): find_words(path.read_text()) for path in SOURCES}
    assert {path: words for path, words in found.items() if words} == {}


@pytest.mark.parametrize(
    "words",
    [
        "how to mend it",
        "it has told of it",
        "so many hosts",
        "A thing shall be",
        "# they are so\n# many",
        "stood\nstill",
    ],
)
def test_the_list_finds_them(words: str) -> None:
    assert find_words(words)
