"""What the terminal and the environment decide."""

from __future__ import annotations

import io

import pytest

from ddpctl.render.console import has_colours, is_plain


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
