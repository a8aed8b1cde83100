"""Draws the events of stages: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from ddpctl.spec.event import Event, Note, StageEnded, StageStarted
from ddpctl.spec.event import Progress as Step

MOST_BARS = 16
SLOW_SHARE = 0.5  # a host with less than this share of the bytes of the median host is named as slow
SLOW_LEAST = 0.1  # ... once the median host has this share of its bytes: at the start all hosts differ
SHOWN_SLOW = 3  # slow hosts that a line names


class _Screen:
    """The displays on the terminal, which make room for a question or a line from any thread.

    The lock is held only for moments, never while a person is asked.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._drawn: list[Progress] = []
        self._pauses = 0

    def show(self, progress: Progress, on: bool) -> None:
        with self._lock:
            self._drawn = [each for each in self._drawn if each is not progress] + ([progress] if on else [])
            if not on:
                progress.stop()
            elif not self._pauses:
                progress.start()

    def pause(self, on: bool) -> None:
        with self._lock:
            self._pauses += 1 if on else -1
            for progress in self._drawn:
                if self._pauses:
                    progress.stop()
                else:
                    progress.start()


_SCREEN = _Screen()


@contextmanager
def quiet() -> Iterator[None]:
    """Draw nothing within this context."""
    _SCREEN.pause(True)
    try:
        yield
    finally:
        _SCREEN.pause(False)


_TITLES = {"mesh": "network mesh"}  # for stages with names that do not tell enough


@dataclass
class Arrived:
    """The bytes on a host: before this stage counted them, now, and in all."""

    first: int
    done: int
    total: int

    @property
    def share(self) -> float:
        return self.done / self.total if self.total else 1.0


def describe_arrivals(hosts: Mapping[str, Arrived], seconds: float) -> str:
    """Return ``3 of 8 hosts  24.1 MB/s  slow: node3 (12%)``. The rate is the mean of the hosts."""
    ready = sum(host.done >= host.total for host in hosts.values())
    rate = sum(host.done - host.first for host in hosts.values()) / len(hosts) / max(seconds, 0.1) / 1e6
    middle = statistics.median(host.share for host in hosts.values())
    slow = sorted(
        (host.share, name) for name, host in hosts.items() if middle >= SLOW_LEAST and host.share < SLOW_SHARE * middle
    )
    named = ", ".join(f"{name} ({share:.0%})" for share, name in slow[:SHOWN_SLOW])
    more = f" and {len(slow) - SHOWN_SLOW} more" if len(slow) > SHOWN_SLOW else ""
    return f"{ready} of {len(hosts)} hosts  {rate:.1f} MB/s" + (f"  slow: {named}{more}" if slow else "")


class ProgressView:
    """``tell`` for the stages before and after a run: a line for each stage, with a bar while it works on a terminal.

    A context manager.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = console.is_terminal
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}
        self._per_host: dict[tuple[str, str], TaskID] = {}
        self._bytes: dict[str, dict[str, Arrived]] = {}  # stage -> the bytes of each host
        self._begun: dict[str, float] = {}

    def __enter__(self) -> ProgressView:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._live:  # without a display rich would end with an empty line
            _SCREEN.show(self._progress, False)

    def tell(self, event: Event) -> None:
        """Draw an event."""
        if isinstance(event, StageStarted):
            self._start(event)
        elif isinstance(event, Step):
            self._step(event)
        elif isinstance(event, StageEnded):
            self._end(event)
        elif isinstance(event, Note):
            style = "yellow" if event.level == "warning" else ""
            host = f"{event.host}: " if event.host and not event.message.startswith(event.host) else ""
            self._console.print(Text(f"{host}{event.message}", style=style))

    def _start(self, event: StageStarted) -> None:
        self._begun[event.stage] = time.monotonic()
        if not self._live:
            return
        if not self._tasks:
            _SCREEN.show(self._progress, True)
        title = _TITLES.get(event.stage, event.stage)
        self._tasks[event.stage] = self._progress.add_task(title, total=event.total, note="")
        if event.unit == "bytes":
            self._bytes[event.stage] = {}

    def _step(self, event: Step) -> None:
        task = self._tasks.get(event.stage)
        if task is None:
            return
        if event.host is not None and event.stage in self._bytes:
            self._step_of_host(event, event.host)
            hosts = self._bytes[event.stage]
            arrived = hosts.setdefault(event.host, Arrived(event.done, event.done, event.done))
            arrived.done, arrived.total = event.done, event.total or event.done
            seconds = time.monotonic() - self._begun[event.stage]
            mean = int(statistics.fmean(host.done for host in hosts.values()))
            self._progress.update(task, completed=mean, note=describe_arrivals(hosts, seconds))
        elif event.host is None or event.total is None or event.total > 0:
            self._progress.update(task, completed=event.done, note=self._note(event))

    def _note(self, event: Step) -> str:
        """Return ``3 of 4  node2``."""
        count = f"{event.done} of {event.total}" if event.total and event.stage not in self._bytes else ""
        return "  ".join(part for part in (count, event.host or event.note) if part)

    def _step_of_host(self, event: Step, host: str) -> None:
        """Draw a bar for each host, up to MOST_BARS: bytes arrive on every host at its own pace."""
        key = (event.stage, host)
        if key not in self._per_host:
            if len(self._per_host) >= MOST_BARS:
                return
            self._per_host[key] = self._progress.add_task(f"  {host}", total=event.total, note="")
        self._progress.update(self._per_host[key], completed=event.done, total=event.total)

    def _end(self, event: StageEnded) -> None:
        task = self._tasks.pop(event.stage, None)
        if task is not None:
            self._progress.remove_task(task)
            for key in [key for key in self._per_host if key[0] == event.stage]:
                self._progress.remove_task(self._per_host.pop(key))
            self._bytes.pop(event.stage, None)
            if not self._tasks:
                _SCREEN.show(self._progress, False)
        begun = self._begun.pop(event.stage, None)
        seconds = "" if begun is None else f"  {time.monotonic() - begun:.1f}s"
        mark = event.result or ("ok" if event.ok else "failed")
        style = "green" if event.ok else "bold red"
        title = _TITLES.get(event.stage, event.stage)
        note = f"  {event.note}" if event.note else ""
        self._console.print(Text.assemble((f"{title:<14}", "bold"), (mark, style), f"{seconds}{note}"))
