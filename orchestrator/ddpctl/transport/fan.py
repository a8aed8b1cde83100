"""Work for many hosts, side by side: all of it finishes, then all of it is reported."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from ddpctl.errors import DdpctlError, InternalFault, as_fault
from ddpctl.transport.base import FleetOutcome

T = TypeVar("T")
_STEP_S = 0.5
_log = logging.getLogger(__name__)
OnDone = Callable[[str, T | DdpctlError], None]
_Done = tuple[str, T | None, DdpctlError | None]


def fan_out(jobs: Mapping[str, Callable[[], T]], threads: int, on_done: OnDone[T] | None = None) -> FleetOutcome[T]:
    """Run every job (host -> work) on at most ``threads`` threads; ``on_done`` is called on the calling thread.

    Any exception of a job is its host's error and nobody else's: one that is no DdpctlError becomes an InternalFault,
    and its traceback goes to the debug log. On Ctrl-C this returns at once and begins no further job; the threads are
    daemons, and the owner of their connections closes them.
    """
    waiting: queue.SimpleQueue[tuple[str, Callable[[], T]]] = queue.SimpleQueue()
    for item in jobs.items():
        waiting.put(item)
    done: queue.SimpleQueue[_Done[T]] = queue.SimpleQueue()
    for number in range(min(threads, len(jobs))):
        threading.Thread(target=_work, args=(waiting, done), daemon=True, name=f"ddpctl-{number}").start()
    try:
        return _collect(tuple(jobs), done, on_done)
    finally:  # after Ctrl-C no further job begins
        with suppress(queue.Empty):
            while True:
                waiting.get_nowait()


def _work(
    waiting: queue.SimpleQueue[tuple[str, Callable[[], T]]],
    done: queue.SimpleQueue[_Done[T]],
) -> None:
    while True:
        try:
            host, job = waiting.get_nowait()
        except queue.Empty:
            return
        error: DdpctlError | None = InternalFault("its thread was ended", host=host)
        result = None
        try:
            result, error = job(), None
        except Exception as raised:
            error = as_fault(raised, host)
            if isinstance(error, InternalFault):
                _log.debug("%s: internal error", host, exc_info=raised)
        finally:  # whatever ends this thread, the host is not waited for
            done.put((host, result, error))


def _next(done: queue.SimpleQueue[_Done[T]]) -> _Done[T]:
    """The next host that is done. Waits in short steps: a signal may have gone to another thread."""
    while True:
        with suppress(queue.Empty):
            return done.get(timeout=_STEP_S)


def _collect(hosts: tuple[str, ...], done: queue.SimpleQueue[_Done[T]], on_done: OnDone[T] | None) -> FleetOutcome[T]:
    """Wait for every host; results and errors in the order of ``hosts``."""
    results: dict[str, T] = {}
    errors: dict[str, DdpctlError] = {}
    for _ in hosts:
        host, result, error = _next(done)
        if error is not None:
            errors[host] = error
        else:
            results[host] = result  # type: ignore[assignment]  # T may be None itself
        if on_done is not None:
            on_done(host, errors[host] if host in errors else results[host])
    return FleetOutcome(
        {host: results[host] for host in hosts if host in results},
        {host: errors[host] for host in hosts if host in errors},
    )
