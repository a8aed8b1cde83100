"""The hooks of pytest; each calls a function of the module that it is about."""

from __future__ import annotations

import contextlib
import gc
import os
import tempfile
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.lab import missing
from tests.suite import leftovers, limits, schedule, speed, tiers, turns

# A machine with other work to do is no fault of the code: no example has a deadline, and slow generation is no failure.
settings.register_profile("quick", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=400)
WORKER_INPUT = "ddpctl_turns"
FOLDER = pytest.StashKey[tempfile.TemporaryDirectory[str]]()
_measured: dict[str, float] = defaultdict(float)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", default="all", help="unit, test, K/5 (test and a share of the rest) or all")
    parser.addoption("--record-durations", action="store_true", help="write tests/suite/durations.json")


def pytest_configure(config: pytest.Config) -> None:
    tier = config.getoption("tier")
    tiers.check_tier(tier)
    leftovers.mark_process()
    settings.load_profile("thorough" if tier == "all" else "quick")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collection makes many objects that all stay; looking for garbage among them takes a third of its time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Have hypothesis read the constants of all modules before the first test, whose CPU would count as the test's.

    It takes seconds in a new checkout. hypothesis does it once an example wants a constant, as one draw in twenty does.
    """

    @settings(max_examples=20, database=None)
    @given(st.lists(st.integers(), min_size=50))
    def draw(numbers: list[int]) -> None:
        pass

    if any(tiers.is_unit(item) for item in session.items):
        draw()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tiers.select_items(config, items)
    schedule.order_items(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.suite.groups import GroupScheduling  # pytest-xdist need not be there

    return GroupScheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give all processes of the run the same folder for their locks."""
    stash = node.config.stash
    if FOLDER not in stash:
        stash[FOLDER] = tempfile.TemporaryDirectory(prefix="ddpctl-tests-")
    node.workerinput[WORKER_INPUT] = stash[FOLDER].name


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Wait for the test's turn, before its timeout begins."""
    folder = getattr(item.config, "workerinput", {}).get(WORKER_INPUT)
    with turns.wait_for_turn(item, Path(folder)) if folder else contextlib.nullcontext():
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("lab") and (reason := missing()):
        pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
    """A fixture that several tests share may leave processes running between them."""
    with contextlib.nullcontext() if fixturedef.scope == "function" else leftovers.started_for_several_tests():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """A unit test that is over its budget fails: `make unit` stays quick enough to run after every change."""
    before = speed.used_cpu_seconds()
    result = yield
    used = speed.used_cpu_seconds() - before
    if used > limits.UNIT_CPU_S and tiers.is_unit(item) and used > limits.UNIT_CPU_S * speed.measure_slowness():
        budget = f"a unit test may use {limits.UNIT_CPU_S} s of CPU"
        pytest.fail(f"{used:.1f} s; {budget}: make it cheaper, or mark it slow", pytrace=False)
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    result = yield
    if left := leftovers.end_leftovers(item, nextitem):
        lines = "\n".join(f"  {one.pid} {one.command[:200]}  (started by {one.test})" for one in left)
        pytest.fail(f"still running {limits.LEAVE_S:g} s after the test, now killed:\n{lines}", pytrace=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where the lab is required (CI), a lab test that is skipped has failed, whatever the reason."""
    report = yield
    required = os.environ.get("DDPCTL_REQUIRE_LAB") == "1" and item.get_closest_marker("lab")
    if required and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and DDPCTL_REQUIRE_LAB=1 does not allow it: {report.longrepr}"
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _measured[report.nodeid] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    if FOLDER in session.config.stash:
        session.config.stash[FOLDER].cleanup()
    if session.config.getoption("record_durations") and not hasattr(session.config, "workerinput"):
        schedule.write_durations(_measured)
