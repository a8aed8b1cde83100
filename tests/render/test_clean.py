"""Nothing that a node says steers the terminal, wherever it is shown."""

from __future__ import annotations

import io
import sys
from unicodedata import category

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from ddpctl.errors import RemoteError
from ddpctl.render.clean import clean
from ddpctl.render.console import make_console
from ddpctl.render.page import page, table
from ddpctl.render.progress import ProgressView
from ddpctl.spec.event import Note, Progress, StageEnded, StageStarted

EVIL = "\x1b]52;c;Z2Fy\x07\x9b31m\u202e[/nope][red]\udcff"
SHOWN = r"\x1b]52;c;Z2Fy\x07\x9b31m\u202e[/nope][red]\udcff"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@given(st.text(st.characters()))
def test_what_is_clean_has_no_control_and_stays_as_it_is(text: str) -> None:
    once = clean(text)
    assert clean(once) == once
    assert not [letter for letter in once if category(letter) in ("Cc", "Cf", "Cs") and letter not in "\n\t"]
    once.encode("utf-8")


def test_every_control_and_format_character_is_written_out() -> None:
    hidden = {chr(number) for number in range(sys.maxunicode + 1) if category(chr(number)) in ("Cc", "Cf", "Cs")}
    assert [letter for letter in hidden - {"\n", "\t"} if letter in clean(letter)] == []


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"])))
def test_what_people_write_is_not_touched(text: str) -> None:
    assert clean(text) == text


def test_a_table_a_line_and_a_page() -> None:
    assert clean(EVIL) == SHOWN
    screen = io.StringIO()
    console = make_console(screen)
    rows = Table()
    rows.add_column("A", min_width=60)
    rows.add_row(Text(EVIL.replace("\x07", "")))
    console.print(rows)
    console.print(EVIL, style="yellow")
    assert SHOWN.replace(r"\x07", "") in screen.getvalue()
    assert clean(screen.getvalue()) == screen.getvalue()
    html = page(EVIL, [table(["A"], [[EVIL]])])
    assert clean(html) == html
    assert SHOWN in html


def test_a_live_display_takes_no_text_for_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    with ProgressView(make_console(screen)) as view:
        view.tell(StageStarted("launch", 2))
        view.tell(Progress("launch", 1, 2, None, str(RemoteError(EVIL, host="node1"))))
        view.tell(Note(EVIL, "warning", "node1"))
        view.tell(StageEnded("launch", False, EVIL))
    shown = screen.getvalue()
    assert r"\x1b]52;" in shown
    assert "\x1b]52" not in shown
    assert "\u202e" not in shown
    assert "[/nope]" in shown
