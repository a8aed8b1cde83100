"""What the terminal and the environment decide."""

from __future__ import annotations

import io

import pytest
from rich.console import Group
from rich.text import Text

from ddpctl.render.console import has_colours, is_plain, make_console


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environ", "plain", "colours"),
    [
        (_Terminal(), {}, False, True),
        (_Terminal(), {"NO_COLOR": "1"}, False, False),
        (_Terminal(), {"NO_COLOR": ""}, False, True),
        (_Terminal(), {"TERM": "dumb"}, True, False),
        (io.StringIO(), {}, True, False),
    ],
)
def test_no_color_takes_the_colours_away_and_nothing_else(
    stream: io.StringIO, environ: dict[str, str], plain: bool, colours: bool
) -> None:
    assert is_plain(stream, environ) is plain
    assert has_colours(stream, environ) is colours


def test_printed_commands_name_the_inventory() -> None:
    out = io.StringIO()
    line = Text("end it: ddpctl kill r1, then ddpctl up", style="yellow")
    make_console(out, lambda: "-i lab.yaml ").print(Group(Group(line), "or ddpctl ps"), "ddpctl top", sep="\n")
    assert out.getvalue().splitlines() == [
        "end it: ddpctl -i lab.yaml kill r1, then ddpctl -i lab.yaml up",
        "or ddpctl -i lab.yaml ps",
        "ddpctl -i lab.yaml top",
    ]
