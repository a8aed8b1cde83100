"""The merged output: nothing interpreted, nothing lost, progress bars bearable."""

from __future__ import annotations

import io
import json
import re
from datetime import datetime, timedelta, timezone
from typing import Any
from unicodedata import category

from hypothesis import given
from hypothesis import strategies as st

from ddpctl.render.lines import JsonLines, LinePrinter, LineTime
from ddpctl.spec.event import Line
from tests.examples import few


def line(text: str, end: str = "\n", second: float = 0.0, rank: int | None = 0) -> Line:
    return Line("node0", rank, "stdout", second, text, end)


def printed(*lines: Line, colour: bool = False) -> str:
    return raw(*lines, colour=colour).decode()


def raw(*lines: Line, colour: bool = False) -> bytes:
    stream = io.BytesIO()
    printer = LinePrinter(stream, ["node0", "node1"], colour=colour, world_size=12)
    printer.show([[one] for one in lines])
    return stream.getvalue()


def test_a_line_has_host_and_rank() -> None:
    assert printed(line("loss 1.0")) == "node0:0  | loss 1.0\n"
    assert printed(line("from the launcher", rank=None)) == "node0:-  | from the launcher\n"


def test_markup_is_text() -> None:
    assert "[/foo][red]x" in printed(line("[/foo][red]x"), colour=True)


def test_colour_is_the_hosts() -> None:
    assert printed(line("x"), colour=True).startswith("\x1b[36mnode0:0  |\x1b[0m x")


def test_a_progress_bar_is_a_line_a_second_and_its_last_state() -> None:
    bars = [line(f"{i}%", "\r", i / 10) for i in range(25)]
    assert [row.split("| ")[1] for row in printed(*bars, line("100%", "\n", 2.5)).splitlines()] == [
        "0%",
        "10%",
        "20%",
        "100%",
    ]


def test_a_clock_that_is_set_back_hides_no_progress_bar() -> None:
    assert printed(line("1%", "\r", 7200.0), line("2%", "\r", 60.0)).count("%") == 2


def test_broken_utf8_comes_out_as_it_went_in() -> None:
    assert b"caf\xe9\n" in raw(line("caf\udce9"))


@given(st.text())
def test_any_text_can_be_printed(text: str) -> None:
    assert raw(line(text)).endswith(text.encode("utf-8", "backslashreplace") + b"\n")


class Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


@given(st.text(st.characters(max_codepoint=0xA0)) | st.text())
def test_a_terminal_is_not_steered(text: str) -> None:
    terminal = Terminal()
    LinePrinter(terminal, ["node0"], colour=False).show([[line(text)]])
    seen = re.sub(r"\x1b\[[0-9;:]*m", "", terminal.getvalue().decode())
    assert [letter for letter in seen if category(letter) == "Cc"] == [*("\t" * text.count("\t")), "\n"]


def test_colours_reach_a_terminal() -> None:
    terminal = Terminal()
    text = "\x1b[1;31mloss\x1b[0m \x1b]52;c;ZXZpbA==\x07\x1b[2J\b \U0001f469\u200d\U0001f680"
    LinePrinter(terminal, ["node0"], colour=False).show([[line(text)]])
    shown = "\x1b[1;31mloss\x1b[0m \\x1b]52;c;ZXZpbA==\\x07\\x1b[2J\\x08 \U0001f469\u200d\U0001f680\n"
    assert terminal.getvalue().decode().endswith(shown)


@given(st.text())
def test_json_lines_keep_every_text(text: str) -> None:
    stream = io.StringIO()
    JsonLines(stream).show([[line(text, "\r")]])
    (row,) = stream.getvalue().splitlines()
    assert json.loads(row)["text"] == text
    assert set(json.loads(row)) == {"host", "rank", "stream", "time", "text"}


def test_a_batch_goes_out_in_one_piece() -> None:
    class Pieces(io.BytesIO):
        sizes: list[int]

        def write(self, data: Any) -> int:
            self.sizes.append(len(data))
            return super().write(data)

    stream = Pieces()
    stream.sizes = []
    printer = LinePrinter(stream, ["node0"], colour=False)
    printer.show([[line("x" * 100)]] * 1000)
    assert stream.sizes == [len(stream.getvalue())]


def equal(*ranks: tuple[str, int | None], attempt: int = 1) -> str:
    group = [Line(host, rank, "stdout", 0.0, "x", attempt=attempt) for host, rank in ranks]
    stream = io.BytesIO()
    LinePrinter(stream, ["node0", "node1", "node2"], colour=True, world_size=8).show([group])
    return stream.getvalue().decode()


def test_equal_lines_are_one_with_all_who_said_it() -> None:
    assert equal(*((f"node{rank // 4}", rank) for rank in range(8))) == "node[0-1]:0-7 | x\n"
    assert equal(("node0", 0), ("node2", 5), ("node2", 4), attempt=2) == "node[0,2]:0,4-5#2 | x\n"
    assert equal(("node1", 3), ("node1", 2)) == "\x1b[33mnode1:2-3 |\x1b[0m x\n"  # one host: its colour
    assert equal(("node0", None), ("node1", None)) == "node[0-1]:- | x\n"


def test_equal_lines_are_shown_without_torchs_marks_and_a_single_line_as_it_is() -> None:
    lines = [Line("node0", rank, "stderr", 0.0, f"[rank{rank}]: boom") for rank in (0, 1)]
    stream = io.BytesIO()
    LinePrinter(stream, ["node0"], colour=False).show([lines, lines[:1]])
    assert stream.getvalue() == b"node0:0-1 | boom\nnode0:0 | [rank0]: boom\n"


@given(st.integers(0, 4 * 10**15).map(lambda micro: micro / 1e6))  # a log has no more digits
@few
def test_a_time_has_milliseconds_and_its_zone(time: float) -> None:
    words = LineTime(timezone.utc)
    assert words(time) == datetime.fromtimestamp(time, timezone.utc).isoformat(timespec="milliseconds")
    stream = io.BytesIO()
    LinePrinter(stream, ["node0"], colour=False, stamp=LineTime(timezone(timedelta(hours=2)))).show([[line("x")]])
    assert stream.getvalue() == b"1970-01-01T02:00:00.000+02:00 node0:0 | x\n"
