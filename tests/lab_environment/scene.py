"""Hosts of the lab, a file to spread, and what to do to them while it is on its way."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ddpctl.environment.spread import bring_files
from ddpctl.files.inventory import load_inventory
from ddpctl.spec.event import Event, Note, Progress
from ddpctl.spec.inventory import Inventory
from ddpctl.spec.push import Delivery
from ddpctl.transport.fleet import open_fleet
from tests.environment.support import BytesSource
from tests.lab import Lab

BASE = "/root/.local/state/ddpctl"
MB = 1_000_000


def noise(size: int, seed: int) -> BytesSource:
    """``size`` bytes that nothing compresses, the same for the same seed."""
    return BytesSource(np.random.default_rng(seed).bytes(size), f"noise{seed}")


def inventory(lab: Lab, folder: Path, **keys: Any) -> Inventory:
    path = folder / "inventory.yaml"
    lab.inventory(path, ssh_config=str(lab.ssh_config), known_hosts=str(lab.known_hosts), **keys)
    return load_inventory(path)


class Watch:
    """``tell`` of a spread that does something once, when a host has more than a part of the bytes."""

    def __init__(self, host: str = "", part: float = 2.0, then: Callable[[], object] = lambda: None) -> None:
        self._host, self._part, self._then = host, part, then
        self._thread: threading.Thread | None = None
        self.events: list[Event] = []
        self.at: dict[str, int] = {}

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if not isinstance(event, Progress) or event.host is None:
            return
        self.at[event.host] = event.done
        if event.host == self._host and event.total and event.done > self._part * event.total and not self._thread:
            # Not on the thread that reads this host's frames: ``then`` may take long.
            self._thread = threading.Thread(target=self._then)
            self._thread.start()

    def join(self) -> None:
        assert self._thread, "the moment never came"
        self._thread.join()

    @property
    def notes(self) -> list[str]:
        return [f"{event.host}: {event.message}" for event in self.events if isinstance(event, Note)]


def spread(where: Inventory, sources: Sequence[BytesSource], watch: Watch | None = None) -> Delivery:
    fleet = open_fleet(where)
    try:
        return bring_files("environment", sources, fleet, watch or Watch(), [host.name for host in where.hosts])
    finally:
        fleet.close()


def holds(lab: Lab, index: int, source: BytesSource) -> bool:
    """The host itself hashes the file."""
    said = lab[index].run(f"sha256sum {BASE}/store/{source.sha256}", check=False).stdout
    return bool(said.startswith(hashlib.sha256(source.data).hexdigest()))


def parts(lab: Lab, index: int) -> list[int]:
    """Return the sizes of the unfinished downloads on a host."""
    said = lab[index].run(f"stat -c %s {BASE}/store/*.part 2>/dev/null", check=False).stdout
    return [int(word) for word in said.split()]


def then_full_speed(lab: Lab, event: Callable[[], object]) -> Callable[[], None]:
    """An event that must come while files are on their way; the rest of them need not take long."""

    def both() -> None:
        event()
        for host in lab:
            if host.running:
                host.full_speed()

    return both


@contextmanager
def slow_links(lab: Lab, rate: str) -> Iterator[None]:
    for host in lab:
        host.slow(rate)
    try:
        yield
    finally:
        for host in lab:
            if host.running:
                host.full_speed()
