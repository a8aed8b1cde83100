"""Processes that outlive their test are found by their inherited environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.site import until
from tests.suite import leftovers, limits

pytestmark = pytest.mark.slow
HERE = "tests/suite/test_leftovers.py::"
LEAVES_A_DAEMON = """\
import subprocess
subprocess.Popen(["sleep", "60"], start_new_session=True)
"""


def wait_until_seen() -> None:
    """The kernel shows an empty environment for a moment after an exec."""
    until(lambda: leftovers.find_leftovers(HERE))


def test_a_daemon_is_found_and_killed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LEAVE_S", 0.2)
    subprocess.run([sys.executable, "-c", LEAVES_A_DAEMON], check=True)
    wait_until_seen()
    (found,) = leftovers.end_leftovers(request.node, None)
    assert found.command == "sleep 60 "
    assert found.test.startswith(HERE + "test_a_daemon_is_found_and_killed")
    until(lambda: leftovers.find_leftovers(request.node.nodeid) == [])


def test_a_process_of_another_test_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        wait_until_seen()
        assert [one.pid for one in leftovers.find_leftovers(HERE)] == [process.pid]
        assert leftovers.find_leftovers("tests/elsewhere/test_x.py::") == []
        monkeypatch.setenv("PYTEST_PROCESS", "another")
        assert leftovers.find_leftovers(HERE) == []
        process.kill()


def test_a_process_that_ends_by_itself_is_waited_for(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "0.5"]):
        assert leftovers.wait_until_gone(request.node.nodeid) == []


@pytest.fixture(scope="module")
def shared() -> Iterator[int]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process.pid
        process.kill()


def test_a_process_of_a_fixture_that_tests_share_may_stay(shared: int, request: pytest.FixtureRequest) -> None:
    assert leftovers.end_leftovers(request.node, None) == []
    os.kill(shared, 0)
