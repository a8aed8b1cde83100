"""A step that begins before its turn has come."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from ddpctl.spec.event import Event, Tell

T = TypeVar("T")


class Ahead(Generic[T]):
    """``work`` in a thread of its own. What it tells is kept until its result is wanted: a person reads one step after
    the other. A caller that never asks for the result leaves the thread to end with the fleet's connections."""

    def __init__(self, work: Callable[[Tell], T]) -> None:
        self._work = work
        self._told: list[Event] = []
        self._found: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="ddpctl-ahead", daemon=True)
        self._thread.start()

    def result(self, tell: Tell) -> T:
        """Wait for it, and tell what it told; raises what it raised."""
        self._thread.join()
        for event in self._told:
            tell(event)
        if self._error is not None:
            raise self._error
        return self._found[0]

    def _run(self) -> None:
        try:
            self._found.append(self._work(self._told.append))
        except BaseException as error:  # raised where the result is wanted
            self._error = error
