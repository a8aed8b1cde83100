"""The documentation as a site: it builds without a warning, has every command and key, and asks no other host."""

from __future__ import annotations

import html.parser
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpctl.cli.program import COMMANDS
from ddpctl.spec.job import JobEntry
from tests.docs.build import build_site

pytestmark = pytest.mark.slow

LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "object": "data", "video": "src"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_site(tmp_path_factory.mktemp("site"))


class Loads(html.parser.HTMLParser):
    """What a browser fetches for a page, by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in LOADS and values.get("rel") not in ("index", "search", "next", "prev", "canonical"):
            self.found.append(values.get(LOADS[tag]) or "")


def loaded(path: Path) -> Iterator[str]:
    if path.suffix == ".css":
        yield from re.findall(r"url\(\s*[\"']?([^)\"']+)|@import\s+[\"']([^\"']+)", path.read_text())
        return
    parser = Loads()
    parser.feed(path.read_text())
    yield from parser.found


@pytest.mark.full(covered_by="tests/docs/test_sources.py::test_no_page_shows_a_picture_or_a_script_of_another_host")
def test_no_page_asks_another_host(site: Path) -> None:
    pages = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(pages) > 30
    asked = {(path.name, str(what)) for path in pages for what in loaded(path) if re.match(r"(https?:)?//", str(what))}
    assert not asked


@pytest.mark.full(covered_by="tests/docs/test_sources.py::test_the_reference_has_every_command_and_key")
def test_the_reference_has_every_command_and_key(site: Path) -> None:
    commands = (site / "reference" / "commands.html").read_text()
    keys = (site / "reference" / "inventory.html").read_text()
    assert [name for name in COMMANDS if f"ddpctl {name}" not in commands] == []
    assert [name for name in JobEntry.model_fields if name not in keys] == []


@pytest.mark.full(covered_by="tests/docs/test_sources.py::test_every_page_is_in_the_contents")
def test_every_page_is_found_from_the_first_one(site: Path) -> None:
    """By the contents, which are on every page."""
    index = (site / "index.html").read_text()
    pages = {str(path.relative_to(site)) for path in site.rglob("*.html")} - {
        "index.html",
        "genindex.html",
        "search.html",
    }
    assert [page for page in sorted(pages) if f'href="{page}"' not in index] == []
