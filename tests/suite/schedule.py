"""The order of the tests, and which tests go to one process together.

Each idle process gets the next group of tests (``groups``). The longest groups come first: a long group that starts
last would keep all other processes waiting. Groups that need a turn (see ``turns``) are spread evenly over the order,
since most processes would otherwise wait for a turn at the beginning and have no turn to wait for at the end.

``--record-durations`` writes the durations of a run into durations.json.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.suite import limits

DURATIONS = Path(__file__).with_name("durations.json")
# Files whose tests share a scene that costs more than the tests, or that would take each other's ports on this machine.
TOGETHER = frozenset(
    {
        "tests/chaos/test_campaign.py",
        "tests/cli/test_documents.py",
        "tests/cli/test_much_output.py",
        "tests/e2e/test_local.py",
        "tests/e2e/test_names.py",
    }
)
Groups = Mapping[str, list[pytest.Item]]


def order_items(items: list[pytest.Item]) -> None:
    """Sort the items into groups, and the groups into the order in which they start."""
    durations = read_durations()
    groups: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        groups[group_of(item.nodeid, durations)].append(item)
    seconds = {
        name: sum(durations.get(item.nodeid, limits.UNKNOWN_S) for item in members) for name, members in groups.items()
    }
    items[:] = [item for name in order_groups(groups, seconds) for item in groups[name]]


def read_durations() -> dict[str, float]:
    """The recorded seconds of each test, by its name."""
    durations: dict[str, float] = json.loads(DURATIONS.read_text())
    return durations


def group_of(name: str, durations: Mapping[str, float]) -> str:
    """A long test is a group of its own; otherwise the group is the file."""
    file = name.partition("::")[0]
    alone = durations.get(name, 0.0) >= limits.SPLIT_S and file not in TOGETHER
    return name if alone else file


def order_groups(groups: Groups, seconds: Mapping[str, float]) -> list[str]:
    """The longest first, with the groups that need a turn spread over the other groups by their share of the time."""
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


def write_durations(measured: Mapping[str, float]) -> None:
    """Replace the durations of the tests that ran; keep the durations of the other tests."""
    known = read_durations()
    known.update(measured)
    kept = {name: round(value, 1) for name, value in sorted(known.items()) if value >= limits.RECORD_S}
    DURATIONS.write_text(json.dumps(kept, indent=0) + "\n")
