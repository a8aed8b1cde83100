"""A page in Chromium: its requests, its complaints, and its appearance."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

CHROMIUM = "/usr/bin/chromium"  # Debian's: Playwright's own would be a download from elsewhere

# The texts of each picture that overlap, or that its edge cuts.
_OVERLAPS = """() => [...document.querySelectorAll('figure svg')].flatMap(svg => {
  const texts = [...svg.querySelectorAll("text")].filter(one =>
    one.textContent.trim() && one.getBoundingClientRect().width)
  const boxes = texts.map(one => [one.textContent, one.getBoundingClientRect()])
  const edge = svg.getBoundingClientRect()
  const cut = boxes.filter(([, a]) => a.left < edge.left || a.right > edge.right || a.bottom > edge.bottom)
  const overlapping = boxes.flatMap(([text, a], at) => boxes.slice(at + 1).filter(([, b]) =>
    a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom).map(([other]) => [text, other]))
  return cut.map(([text]) => [text, 'the edge']).concat(overlapping)
})"""
# The lowest contrast of any text of the page with what is behind it (WCAG 2; 4.5 is enough for all sizes).
_CONTRAST = """() => {
  const parse = text => text.match(/[0-9.]+/g).map(Number)
  const light = color => parse(color).slice(0, 3).map(one => one / 255).map(one =>
    one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
    .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0)
  const behind = node => {
    for (; node; node = node.parentElement) {
      const color = getComputedStyle(node).backgroundColor
      if (parse(color)[3] !== 0) return color
    }
    return 'rgb(255, 255, 255)'
  }
  const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)
  const found = [...document.querySelectorAll('main *')].filter(one => one.checkVisibility() &&
    [...one.childNodes].some(node => node.nodeType === 3 && node.textContent.trim()))
  return Math.min(...found.map(one => {
    const style = getComputedStyle(one)
    return ratio(light(one.closest('svg') ? style.fill : style.color), light(behind(one)))
  }))
}"""


class Seen:
    """What a page showed and did."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.width = self.window = 0
        self.overlaps: list[list[str]] = []
        self.contrast = 0.0


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def look(browser: Browser, file: Path, *, width: int, dark: bool, picture: Path | None = None, **how: Any) -> Seen:
    """Open a file; ``picture`` gets a picture of the page, ``how`` selects the part of the page."""
    seen = Seen()
    scheme: Any = "dark" if dark else "light"
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **how)
    page = context.new_page()
    page.on("request", lambda request: seen.requests.append(request.url))
    page.on("console", lambda message: seen.complaints.append(message.text))
    page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    page.goto(file.as_uri())
    seen.width, seen.window = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    seen.overlaps = page.evaluate(_OVERLAPS)
    seen.contrast = page.evaluate(_CONTRAST)
    if picture is not None:
        page.screenshot(path=picture)
    context.close()
    return seen
