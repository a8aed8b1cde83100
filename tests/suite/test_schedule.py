"""The longest groups of tests come first, and groups that need a turn are spread over the order."""

from __future__ import annotations

from typing import Any

from tests.suite.schedule import order_groups


class Item:
    def __init__(self, heavy: bool) -> None:
        self.heavy = heavy

    def get_closest_marker(self, name: str) -> bool:
        return self.heavy and name == "heavy"


def groups_of(heavy: str, light: str) -> dict[str, Any]:
    return {**{name: [Item(True)] for name in heavy}, **{name: [Item(False)] for name in light}}


def test_the_longest_come_first() -> None:
    seconds = {"a": 1.0, "b": 9.0, "c": 4.0}
    assert order_groups(groups_of("", "abc"), seconds) == ["b", "c", "a"]


def test_heavy_groups_are_spread_over_the_order() -> None:
    seconds = dict.fromkeys("ABCDabcdefgh", 1.0)
    order = "".join(order_groups(groups_of("ABCD", "abcdefgh"), seconds))
    assert [sum(name.isupper() for name in order[start : start + 3]) for start in (0, 3, 6, 9)] == [1, 1, 1, 1]
