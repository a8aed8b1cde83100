"""The sources of the documentation: every link leads somewhere, every page is in the contents, none asks another host.

`make test-all` builds the site and looks at the pages that come out (test_site.py).
"""

from __future__ import annotations

import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from ddpctl.cli.program import COMMANDS
from ddpctl.spec.job import JobEntry
from ddpctl_worker.wire import contract

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
MADE = {"reference/commands", "reference/inventory", "reference/exit-codes"}  # while the site is built
TOCTREE = re.compile(r"^```\{toctree\}\n((?::[^\n]*\n)*)\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def prose(page: Path) -> str:
    """Return a page without its examples."""
    return FENCE.sub("", page.read_text())


def headings(page: Path) -> set[str]:
    """Return the anchors of a page, as a code host makes them."""
    titles = re.findall(r"^#{1,4} (.+)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def dead_links(page: Path) -> Iterator[str]:
    for link in LINK.findall(prose(page)):
        if re.match(r"(https?|mailto):", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if str(target.relative_to(DOCS.parent).with_suffix("")) in {f"docs/{name}" for name in MADE}:
            continue
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in headings(target)):
            yield link


def test_the_json_page_names_every_state_and_every_reason() -> None:
    text = (DOCS / "json.md").read_text()
    states, reasons = re.search(r"A \*state\* is(.*?)A \*reason\* is(.*?)Times are", text, re.S).groups()  # type: ignore[union-attr]
    assert set(re.findall(r"`(\w+)`", states)) == contract.ACTIVE | contract.TERMINAL | contract.NODE_ONLY
    section = inspect.getsource(contract).partition("# --- reasons of a failure")[2].partition("# ---")[0]
    assert re.findall(r"`(\w+)`", reasons) == re.findall(r'^\w+ = "(\w+)"', section, re.M)


def test_every_link_leads_to_a_page_and_a_heading() -> None:
    links = {str(page.relative_to(DOCS)): list(dead_links(page)) for page in PAGES}
    assert {page: dead for page, dead in links.items() if dead} == {}


def test_every_page_is_in_the_contents() -> None:
    listed = set()
    for options, entries in (tree for page in PAGES for tree in TOCTREE.findall(page.read_text())):
        for entry in entries.split():
            found = [str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.glob(f"{entry}.md")]
            listed |= set(found) if ":glob:" in options else {entry}
    assert listed - MADE == {str(page.relative_to(DOCS).with_suffix("")) for page in PAGES} - {"index"} - MADE
    assert listed >= MADE


def test_no_page_shows_a_picture_or_a_script_of_another_host() -> None:
    asked = re.compile(r"!\[[^\]]*\]\(https?:|<(?:script|img|link|iframe|video)\b[^>]*https?:|@import")
    assert [page.name for page in PAGES if asked.search(page.read_text())] == []
    settings = (DOCS / "conf.py").read_text()
    assert re.findall(r"https?://", settings) == []
    assert "html_js_files" not in settings


def test_the_reference_has_every_command_and_key(generate: ModuleType, tmp_path: Path) -> None:
    generate.write(tmp_path)
    assert {f"reference/{path.stem}" for path in tmp_path.iterdir()} == MADE
    commands, keys = ((tmp_path / f"{name}.md").read_text() for name in ("commands", "inventory"))
    assert [name for name in COMMANDS if f"## ddpctl {name}" not in commands] == []
    assert [name for name in JobEntry.model_fields if f"`{name}`" not in keys] == []
