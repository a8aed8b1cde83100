"""ddpctl speaks plain English: few pronouns that stand for a noun, and no private word where the field has a term.

`python -m tests.test_prose PATH...` lists the sentences to rewrite.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = [path for top in ("orchestrator/ddpctl", "worker/ddpctl_worker") for path in ROOT.glob(f"{top}/**/*.py")]
PACKAGES = sorted({path.parent for path in SOURCES})
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("docs/decisions/*.md")),
]
PER_WORDS = 1000
MOST_PRONOUNS = 6.0  # per 1,000 words: httpx, submitit, torchx and pyinfra have 2 to 6
MOST_PRIVATE = 1.0  # per 1,000 words
FEW_WORDS = 300  # a package with fewer words is counted with its parent

# "None" with a capital is the value of Python.
PRONOUNS = re.compile(
    r"\b([Oo]nes?|[Tt]hose|[Ww]hat|[Ww]hom|[Ww]hose|none|[Nn]obody|[Ss]omebody|[Oo]thers|[Ww]ho)\b|\bof (?:it|them)\b"
)
# "one host" counts hosts, "what is there" and "the user who" have their noun beside them.
HARMLESS = re.compile(
    r"\b(no one|one-\w+|at once|one (?:by one|of the|per|at a time|or more|more)"
    r"|one (?:second|minute|hour|day|line|host|node|rank|process|file|byte|core|thread|call|object|run|job|attempt"
    r"|place|page|command|request|answer|connection|message|document|step|name|folder|key|port|lock|row|test|seed|subject)"
    r"|what (?:to|is|was|the|an?|went|happened|changed)|(?:the|an?|every|each) \w+ who)\b",
    re.IGNORECASE,
)
PRIVATE = re.compile(
    r"\b(shall|mend(?:s|ed|ing)?|who(?:m)?ever|anew|paper|headway|desk|council|tether|deputy|seats?|footing|beliefs?"
    r"|told|tells|word of|heard of|so many|spoil(?:s|t|ed)?)\b",
    re.IGNORECASE,
)
QUOTED = re.compile(r"``[^`]*``|`[^`]*`|\[[^\]]*\]\([^)]*\)")


class Prose(NamedTuple):
    path: Path
    line: int
    text: str


def prose_of(path: Path) -> Iterator[Prose]:
    """Yield docstrings and comments of a Python file, or paragraphs of a page, without code."""
    text = path.read_text()
    for line, piece in _paragraphs(text) if path.suffix == ".md" else _docstrings_and_comments(text):
        yield Prose(path, line, QUOTED.sub("X", piece))


def _docstrings_and_comments(text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield node.body[0].lineno, docstring
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#! ")


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    text = re.sub(r"^```.*?^```", lambda code: "\n" * code[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    line = 1
    for block in re.split(r"(\n\s*\n)", text):
        kept = [part for part in block.splitlines() if not part.startswith(("    ", "|"))]
        if any(part.strip() for part in kept):
            yield line, " ".join(kept)
        line += block.count("\n")


def find_pronouns(text: str) -> list[str]:
    """Return the pronouns of a text that stand for a noun."""
    return [match[0] for match in PRONOUNS.finditer(HARMLESS.sub("X", text))]


def count(prose: Iterable[Prose]) -> tuple[int, float, float]:
    """Return the number of words, and pronouns and private words per 1,000 words."""
    words = pronouns = private = 0
    for _, _, text in prose:
        words += len(re.findall(r"[A-Za-z][\w'-]*", text))
        pronouns += len(find_pronouns(text))
        private += len(PRIVATE.findall(text))
    rate = PER_WORDS / max(words, 1)
    return words, pronouns * rate, private * rate


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_prose_of_a_package_names_its_subjects(package: Path) -> None:
    words, pronouns, private = count(piece for path in sorted(package.glob("*.py")) for piece in prose_of(path))
    if words >= FEW_WORDS:
        assert pronouns <= MOST_PRONOUNS
        assert private <= MOST_PRIVATE


def test_the_prose_of_the_pages_names_its_subjects() -> None:
    words, pronouns, private = count(piece for page in PAGES for piece in prose_of(page))
    assert words > 10_000
    assert pronouns <= MOST_PRONOUNS
    assert private <= MOST_PRIVATE


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("One that died is none of ours.", ["One", "none"]),
        ("What it knows, of them, of it", ["What", "of them", "of it"]),
        ("Return one line per host; the user who started it; all at once.", []),
        ("who waits", ["who"]),
    ],
)
def test_pronouns_are_found(text: str, found: list[str]) -> None:
    assert find_pronouns(text) == found


def test_code_is_no_prose(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("A page.\n\n```\nnone of those\n```\n\nWhat `none` says\nof it.\n\n    those\n")
    assert [(line, text) for _, line, text in prose_of(page)] == [(1, "A page."), (7, "What X says of it.")]
    source = tmp_path / "source.py"
    source.write_text('"""Doc."""\nnone = "those"  # why ``what``\n')
    assert [text for _, _, text in prose_of(source)] == ["Doc.", "why X"]


def main(arguments: list[str]) -> None:
    for argument in arguments:
        place = Path(argument)
        files = [place] if place.is_file() else sorted([*place.rglob("*.py"), *place.rglob("*.md")])
        found = [piece for path in files for piece in prose_of(path)]
        words, pronouns, private = count(found)
        print(f"{place}: {words} words, {pronouns:.1f} pronouns and {private:.1f} private words per 1,000")
        for path, line, text in found:
            for sentence in re.split(r"(?<=[.:;!?])\s+", text):
                if find_pronouns(sentence) or PRIVATE.search(sentence):
                    print(f"  {path}:{line}: {' '.join(sentence.split())}")


if __name__ == "__main__":
    main(sys.argv[1:])
