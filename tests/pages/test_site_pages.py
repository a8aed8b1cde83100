"""Every page of the documentation's site in a browser."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="make pages installs it, and Chromium")

from playwright.sync_api import Browser

from tests.docs.build import build_site
from tests.pages.browser import CHROMIUM, look

pytestmark = pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="make pages installs Chromium")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_site(tmp_path_factory.mktemp("site"))


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)], ids=["desktop", "phone in the dark"])
def test_pages_can_be_read_and_ask_nobody(browser: Browser, site: Path, width: int, dark: bool) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    wrong = []
    for page in pages:
        seen = look(browser, page, width=width, dark=dark)
        asked = [address for address in seen.requests if not address.startswith(("file:", "data:", "blob:"))]
        wide = [f"{seen.width} wide"] if seen.width > width else []
        wrong += [(page.name, trouble) for trouble in (*asked, *seen.complaints, *wide)]
    assert wrong == []


def test_a_recording_plays(browser: Browser, site: Path) -> None:
    page = browser.new_page()
    page.goto((site / "firewalls.html").as_uri())
    player = page.locator(".ap-player").first
    assert "preflight" not in player.inner_text()
    player.click()
    player.get_by_text("preflight").first.wait_for(timeout=20_000)
    page.close()
