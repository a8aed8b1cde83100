"""How pytest-xdist hands out the tests: the groups of ``schedule``, in the order of the collection."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.suite.schedule import group_of, read_durations


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """pytest-xdist's own `--dist loadgroup` does not find its groups with pytest 9.2: it writes them into an attribute
    that pytest no longer reads."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        config.option.loadscopereorder = False  # the longest first, not the largest
        super().__init__(config, log)
        self._durations = read_durations()

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid, self._durations)
