"""Labs of two and four hosts, and jobs on them: some at once, each from a place of its own."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TypeVar

from tests.e2e.site import Site
from tests.lab import Lab, LabError, interpreters
from tests.lab.command import Ddpctl

TROUBLE = (LabError, AssertionError, OSError, KeyError, subprocess.SubprocessError)  # a round's, not the campaign's
SIGNALS = {signal.SIGINT, signal.SIGTERM}
Task = TypeVar("Task")


class Labs:
    """A lab for each number of hosts, started at first use."""

    def __init__(self) -> None:
        self._labs: dict[int, Lab] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Labs:
        return self

    def __exit__(self, *error: object) -> None:
        for lab in self._labs.values():
            lab.stop()

    def __getitem__(self, hosts: int) -> Lab:
        with self._lock:
            if hosts not in self._labs:
                self._labs[hosts] = Lab(hosts)
            return self._labs[hosts]


@contextlib.contextmanager
def site_in(lab: Lab, folder: Path) -> Iterator[Site]:
    """A place to start one job from; its commands are ended with it."""
    folder.mkdir(parents=True)
    ddpctl = Ddpctl(folder)
    try:
        yield Site(lab, ddpctl, folder / "site", str(interpreters.python213()))
    finally:
        ddpctl.stop()


@contextlib.contextmanager
def _noted() -> Iterator[list[int]]:
    """Signals raise nothing meanwhile. Blocking them is not enough: the kernel gives a signal for the process to any
    thread that takes it, and Python then raises in the main thread.
    """
    caught: list[int] = []
    before = {one: signal.signal(one, lambda number, frame: caught.append(number)) for one in SIGNALS}
    try:
        yield caught
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def side_by_side(tasks: Sequence[Task], play: Callable[[Task, float], None], jobs: int) -> None:
    """Play every task, `jobs` at once; `play` gets the task and the time at which it began (monotonic seconds).

    Raises the first error of `play`, or the interrupt, once the tasks that are under way have ended; the rest is
    left out. No `Thread.join` here: an interrupted join takes its thread for ended (CPython 3.11).
    """
    with ThreadPoolExecutor(jobs) as pool:
        # An exception in the middle of a submit would leave a thread that the pool does not know, and not wait for it.
        with _noted() as caught:
            futures = [pool.submit(lambda task: play(task, time.monotonic()), task) for task in tasks]
        try:
            for number in caught:
                signal.raise_signal(number)
            for future in as_completed(futures):
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
