"""Turns among the processes of one pytest run, by locks on files that the kernel frees when a process ends.

- ``heavy`` tests: as many at once as ``limits.HEAVY_AT_ONCE``.
- ``alone`` tests: nothing else runs meanwhile. They change or measure resources that all labs of a machine share.

A test waits for its turn before its timeout begins.
"""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.suite import limits


@contextlib.contextmanager
def wait_for_turn(item: pytest.Item, folder: Path) -> Iterator[None]:
    """Hold a test's locks; ``folder`` is shared by all processes of the run."""
    with contextlib.ExitStack() as held:
        if item.get_closest_marker("alone"):
            held.enter_context(lock(folder / "door", fcntl.LOCK_EX))
            held.enter_context(lock(folder / "room", fcntl.LOCK_EX))
        else:
            if item.get_closest_marker("heavy"):
                held.enter_context(free_slot(folder))
            # The door is closed while an `alone` test waits: otherwise the room would never be empty.
            with lock(folder / "door", fcntl.LOCK_EX):
                held.enter_context(lock(folder / "room", fcntl.LOCK_SH))
        yield


@contextlib.contextmanager
def lock(path: Path, how: int) -> Iterator[None]:
    with open(path, "a") as file:
        fcntl.flock(file, how)
        yield


@contextlib.contextmanager
def free_slot(folder: Path) -> Iterator[None]:
    """Hold the first slot that is free."""
    with contextlib.ExitStack() as held:
        while True:
            for number in range(limits.HEAVY_AT_ONCE):
                try:
                    held.enter_context(lock(folder / f"heavy-{number}", fcntl.LOCK_EX | fcntl.LOCK_NB))
                except BlockingIOError:
                    continue
                yield
                return
            time.sleep(limits.SLOT_LOOK_S)
