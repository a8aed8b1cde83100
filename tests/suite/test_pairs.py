"""A test that only `make test-all` runs has a cheaper test in `make test` that fails for the same fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.suite.tiers import TESTS, UNPAIRED, find_unpaired

HERE = str(Path(__file__).relative_to(TESTS.parent))


class Item:
    """A collected test."""

    def __init__(self, name: str, **mark: str) -> None:
        self.nodeid = f"{HERE}::{name}"
        self.mark = pytest.mark.full(**mark).mark if mark else None

    def get_closest_marker(self, name: str) -> Any:
        return self.mark if name == "full" else None


def test_every_full_test_of_this_run_names_a_test_of_make_test(pytestconfig: pytest.Config) -> None:
    assert not pytestconfig.stash[UNPAIRED]


def test_a_full_test_without_such_a_test_is_found() -> None:
    items: Any = [
        Item("test_cheap"),
        Item("test_dear", covered_by=f"{HERE}::test_cheap"),
        Item("test_odd[1]", covered_by=f"{HERE}::test_odd"),
        Item("test_odd[2]"),
        Item("test_typo", covered_by=f"{HERE}::test_chaep"),
        Item("test_of_another_full_test", covered_by=f"{HERE}::test_dear"),
        Item("test_of_a_file_that_is_not_there", covered_by="tests/suite/test_nothing.py::test_x"),
        Item("test_without_a_name", why="too long"),
    ]
    found = [line.partition(":: ")[0].partition(": ")[0] for line in find_unpaired(items)]
    assert found == [
        f"{HERE}::{name}"
        for name in (
            "test_of_a_file_that_is_not_there",
            "test_of_another_full_test",
            "test_typo",
            "test_without_a_name",
        )
    ]
