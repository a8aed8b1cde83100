"""The merged output: nothing interpreted, nothing lost, progress bars bearable."""

from __future__ import annotations

import io
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ddpctl.render.lines import JsonLines, LinePrinter
from ddpctl.spec.event import Line


def line(text: str, end: str = "\n", second: float = 0.0, rank: int | None = 0) -> Line:
    return Line("node0", rank, "stdout", f"2026-01-01T00:00:{second:06.3f}+00:00", text, end)


def printed(*lines: Line, colour: bool = False) -> str:
    return raw(*lines, colour=colour).decode()


def raw(*lines: Line, colour: bool = False) -> bytes:
    stream = io.BytesIO()
    printer = LinePrinter(stream, ["node0", "node1"], colour=colour, world_size=12)
    for one in lines:
        printer.write(one)
    printer.flush()
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


def test_broken_utf8_comes_out_as_it_went_in() -> None:
    assert b"caf\xe9\n" in raw(line("caf\udce9"))


@given(st.text())
def test_any_text_can_be_printed(text: str) -> None:
    assert raw(line(text)).endswith(text.encode("utf-8", "backslashreplace") + b"\n")


@given(st.text())
def test_json_lines_keep_every_text(text: str) -> None:
    stream = io.StringIO()
    JsonLines(stream).write(line(text, "\r"))
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
    for _ in range(1000):
        printer.write(line("x" * 100))
    printer.flush()
    assert stream.sizes == [len(stream.getvalue())]
