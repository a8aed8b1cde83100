"""The order of the tests, and which tests go to one process together.

`pytest --dist loadgroup` gives each idle process the next group of tests. The longest groups come first: a long group
that starts last would keep all other processes waiting. Groups that need a turn (see ``turns``) are spread evenly over
the order, since most processes would otherwise wait for a turn at the beginning and have none to wait for at the end.

``--record-durations`` writes the durations of a run into durations.json.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.suite import limits

DURATIONS = Path(__file__).with_name("durations.json")
Groups = Mapping[str, list[pytest.Item]]


def order_items(items: list[pytest.Item]) -> None:
    """Sort the items into groups, and the groups into the order in which they start."""
    durations = json.loads(DURATIONS.read_text())
    groups: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        groups[group_of(item, durations)].append(item)
    for name, members in groups.items():
        for item in members:
            if not item.get_closest_marker("xdist_group"):
                item.add_marker(pytest.mark.xdist_group(name))
    seconds = {
        name: sum(durations.get(item.nodeid, limits.UNKNOWN_S) for item in members) for name, members in groups.items()
    }
    items[:] = [item for name in order_groups(groups, seconds) for item in groups[name]]


def group_of(item: pytest.Item, durations: Mapping[str, float]) -> str:
    """A test's own group if it is long; otherwise its file's, apart for tests that need a turn."""
    if marker := item.get_closest_marker("xdist_group"):
        return str(marker.args[0])
    if durations.get(item.nodeid, 0.0) >= limits.SPLIT_S:
        return re.sub(r"[@\[\]]", "-", item.nodeid)  # pytest-xdist looks for the group behind the last "]" and "@"
    file = item.nodeid.partition("::")[0]
    return f"{file} heavy" if needs_turn(item) else file


def order_groups(groups: Groups, seconds: Mapping[str, float]) -> list[str]:
    """The longest first, with the groups that need a turn spread over the others by their share of the time."""
    positions: dict[str, float] = {}
    for wanted in (True, False):
        kind = [name for name, members in groups.items() if needs_turn(members[0]) is wanted]
        kind.sort(key=lambda name: -seconds[name])
        total, passed = sum(seconds[name] for name in kind), 0.0
        for name in kind:
            positions[name] = passed / total
            passed += seconds[name]
    return sorted(groups, key=positions.__getitem__)


def needs_turn(item: pytest.Item) -> bool:
    return any(map(item.get_closest_marker, ("heavy", "alone")))


def name_of(report: pytest.TestReport) -> str:
    """The name of a test, without the group that pytest-xdist adds."""
    return re.sub(r"@[^@\]]*$", "", report.nodeid)


def write_durations(measured: Mapping[str, float]) -> None:
    """Replace the durations of the tests that ran; keep those of the tests that did not."""
    known = json.loads(DURATIONS.read_text())
    known.update(measured)
    kept = {name: round(value, 1) for name, value in sorted(known.items()) if value >= limits.RECORD_S}
    DURATIONS.write_text(json.dumps(kept, indent=0) + "\n")
