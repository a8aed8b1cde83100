"""A test that leaves a process behind fails, and the process is killed.

pytest sets PYTEST_CURRENT_TEST while a test runs, and every process that the test starts inherits it, whatever session
or parent it moves to. The processes of a lab's hosts do not have it: the lab kills these itself (``Lab.heal``).

A second run of the suite on the same machine has tests with the same names, so each pytest process sets a mark too.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.suite import limits
from tests.suite.tiers import is_unit

TEST = b"PYTEST_CURRENT_TEST="
MARK = b"PYTEST_PROCESS="


@dataclass(frozen=True)
class Leftover:
    """A process, the test that started it, the mark of that test's pytest process, and the command line."""

    pid: int
    test: str
    mark: str
    command: str


def mark_process() -> None:
    """Give this pytest process a mark of its own, which all processes of its tests inherit."""
    os.environ[_name(MARK)] = secrets.token_hex(8)


@contextlib.contextmanager
def started_for_several_tests() -> Iterator[None]:
    """Processes that are started meanwhile belong to no test."""
    name = _name(TEST)
    value = os.environ.pop(name, None)
    try:
        yield
    finally:
        if value is not None:
            os.environ[name] = value


def end_leftovers(item: pytest.Item, nextitem: pytest.Item | None) -> list[Leftover]:
    """Kill what a test left running, and return it. After unit tests, which start hardly any process, once a file."""
    last_of_file = nextitem is None or nextitem.path != item.path
    if is_unit(item) and not last_of_file:
        return []
    file = item.nodeid.partition("::")[0]
    left = wait_until_gone(f"{file}::" if last_of_file else item.nodeid)
    for process in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    return left


def wait_until_gone(test: str) -> list[Leftover]:
    """The processes of a test that are still there after ``limits.LEAVE_S``."""
    deadline = time.monotonic() + limits.LEAVE_S
    while (left := find_leftovers(test)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def find_leftovers(test: str) -> list[Leftover]:
    """Return the living processes of this pytest process, of the tests whose names begin with ``test``."""
    own = os.environ[_name(MARK)]
    processes = (read_process(entry) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    return [
        one for one in processes if one and one.pid != os.getpid() and one.mark == own and one.test.startswith(test)
    ]


def read_process(entry: Path) -> Leftover | None:
    """A process that a test has started, or None."""
    try:
        environ = (entry / "environ").read_bytes()
        if TEST not in environ:
            return None
        fields = (entry / "stat").read_text().rpartition(")")[2].split()
        command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:  # it has ended meanwhile
        return None
    if fields[0] in "ZX":
        return None
    return Leftover(int(entry.name), value_of(TEST, environ), value_of(MARK, environ), command)


def _name(variable: bytes) -> str:
    return variable.decode().rstrip("=")


def value_of(name: bytes, environ: bytes) -> str:
    return (b"\0" + environ).partition(b"\0" + name)[2].partition(b"\0")[0].decode(errors="replace")
