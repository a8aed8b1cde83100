"""The page of a report in a browser: `make pages` installs a browser and runs this."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpctl.render.report_page import report_html
from tests.render.reports import small, worst

pytest.importorskip("playwright", reason="make pages installs it, and Chromium")

from playwright.sync_api import Browser

from tests.pages.browser import CHROMIUM, look

pytestmark = pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="make pages installs Chromium")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = {name: folder / f"{name}.html" for name in ("small", "worst")}
    for name, report in (("small", small()), ("worst", worst())):
        found[name].write_text(report_html(report), encoding="utf-8")
    return found


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390], ids=["desktop", "phone"])
@pytest.mark.parametrize("name", ["small", "worst"])
def test_it_can_be_read_and_asks_nobody(
    browser: Browser, pages: dict[str, Path], name: str, width: int, dark: bool
) -> None:
    seen = look(browser, pages[name], width=width, dark=dark)
    assert seen.requests == [pages[name].as_uri()]
    assert seen.complaints == []
    assert seen.width <= seen.window == width, "it scrolls sideways"
    assert seen.overlaps == []
    assert seen.contrast >= 4.5
