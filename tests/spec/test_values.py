"""Values that the inventory, the command line and files of other tools share."""

from __future__ import annotations

import pytest

from ddpctl.spec.values import whole_number


@pytest.mark.parametrize(("text", "number"), [("1", 1), ("007", 7), ("65535", 65535), ("0" * 5000 + "9", 9)])
def test_a_whole_number(text: str, number: int) -> None:
    assert whole_number(text, 1, 65535) == number


@pytest.mark.parametrize("text", ["", "0", "65536", "-1", "+1", " 1", "1.0", "1_0", "²", "١", "9" * 5000])
def test_any_other_text_is_none(text: str) -> None:
    assert whole_number(text, 1, 65535) is None
