"""Which tests a run selects.

======== ====================================================== =======================================
tier     tests                                                  selected by
======== ====================================================== =======================================
unit     neither lab, slow, torch nor heavy                     ``--tier unit``
test     all that are not marked ``full``                       ``--tier test``
share    the same, and a fifth of those marked ``full``         ``--tier K/5``, K from 0 to 4
all      every test                                             ``--tier all``, the default
======== ====================================================== =======================================
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import pytest

from tests.suite import limits
from tests.suite.speed import stretch

TESTS = Path(__file__).parents[1]
LAB_FIXTURES = {"lab3", "lab3_module", "make_lab", "make_module_lab", "lab_of_three"}
SLOW_FIXTURES = {"make_node"}  # real supervisors
SLOW_FOLDERS = ("chaos", "e2e", "garble", "jobs", "pages", "saves")
HEAVY_FIXTURES = {"python213", "python113"}  # interpreters with the real torch
HEAVY_FOLDERS = ("jobs",)
UNPAIRED = pytest.StashKey[list[str]]()
NOT_UNIT = ("lab", "slow", "torch", "heavy", "full", "alone")


def check_tier(tier: str) -> None:
    """Refuse a tier that does not exist.

    Raises:
        pytest.UsageError
    """
    if tier not in ("unit", "test", "all") and not re.fullmatch(rf"[0-{limits.SHARES - 1}]/{limits.SHARES}", tier):
        raise pytest.UsageError(f"--tier {tier}: unit, test, all or K/{limits.SHARES} with K from 0")


def select_items(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the items, and take out the items that the tier of this run does not have."""
    tier = config.getoption("tier")
    config.stash[UNPAIRED] = find_unpaired(items)
    chosen: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        mark_item(item)
        (chosen if is_selected(item, tier) else left_out).append(item)
    items[:] = chosen
    if left_out:
        config.hook.pytest_deselected(items=left_out)


def find_unpaired(items: list[pytest.Item]) -> list[str]:
    """The tests that only `make test-all` runs and that name no test of `make test`; each with what is wrong.

    A named test whose file is not among the collected files is not looked for.
    """
    in_test = {function_of(item) for item in items if not item.get_closest_marker("full")}
    files = {item.nodeid.partition("::")[0] for item in items}
    problems = set()
    for item in items:
        if mark := item.get_closest_marker("full"):
            name = mark.kwargs.get("covered_by", "")
            file = name.partition("::")[0]
            if not file or not (TESTS.parent / file).is_file() or (file in files and name not in in_test):
                problems.add(f"{function_of(item)}: full(covered_by={name!r}) names no test of `make test`")
    return sorted(problems)


def function_of(item: pytest.Item) -> str:
    """The name of a test, without its parameters."""
    return item.nodeid.partition("[")[0]


def mark_item(item: pytest.Item) -> None:
    """Add the markers that follow from the folder and the fixtures of a test, and its timeout."""
    folder, fixtures = item.path.relative_to(TESTS).parts[0], set(getattr(item, "fixturenames", ()))
    if folder == "lab" or LAB_FIXTURES & fixtures:
        item.add_marker("lab")
    if folder in SLOW_FOLDERS or SLOW_FIXTURES & fixtures:
        item.add_marker("slow")
    if folder in HEAVY_FOLDERS or HEAVY_FIXTURES & fixtures:
        item.add_marker("heavy")
    if not item.get_closest_marker("timeout"):
        item.add_marker(pytest.mark.timeout(timeout_of(item)))


def timeout_of(item: pytest.Item) -> float:
    """Seconds after which a test counts as stuck, on a machine as slow as this one."""
    if is_unit(item):
        return stretch(limits.UNIT_TIMEOUT_S)
    return stretch(limits.FULL_TIMEOUT_S if item.get_closest_marker("full") else limits.TEST_TIMEOUT_S)


def is_unit(item: pytest.Item) -> bool:
    return not any(map(item.get_closest_marker, NOT_UNIT))


def is_selected(item: pytest.Item, tier: str) -> bool:
    if tier == "unit":
        return is_unit(item)
    if tier == "all" or not item.get_closest_marker("full"):
        return True
    return tier != "test" and share_of(item.nodeid) == int(tier.partition("/")[0])


def share_of(nodeid: str) -> int:
    """The share that a test belongs to: by its name, so that a new test moves no other test."""
    return zlib.crc32(nodeid.encode()) % limits.SHARES
