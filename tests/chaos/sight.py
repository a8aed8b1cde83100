"""A run as it can be seen from outside: the hosts' /proc, their control groups and the files below base_dir. Nothing
here asks ddpctl."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.site import launcher, ranks, running
from tests.lab import Host, LabError

LOOK_S = 0.2
BASE = "/root/.local/state/ddpctl"
RECORDS = ("run.json", "state.json", "exit.json")
STOPPING = "stopping"


def folder(host: Host, base: str, *parts: str) -> Path:
    """A folder below base_dir, as it lies in the host, or on its disk while it has no power."""
    init = host.init  # once: a host may lose its power while we look
    root = Path("/proc", str(init.pid), "root") if init and init.alive() else host.disk.upper
    return Path(str(root) + base, *parts)


def runs(host: Host, base: str) -> set[str]:
    """The runs that have begun a record there."""
    return {path.parent.parent.name for path in folder(host, base, "runs").glob(f"*/{host.name}/run.json")}


def document(text: bytes | None) -> dict[str, Any]:
    """A record; {} where it is missing or cannot be read."""
    with contextlib.suppress(ValueError):
        found = json.loads(text or b"")
        return found if isinstance(found, dict) else {}
    return {}


def read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def left(host: Host) -> list[str]:
    """Whatever lives in a host beside its init and sshd, by its /proc and by its control group."""
    if not host.running:
        return []
    found = {one.pid: " ".join(one.argv)[:120] or "?" for one in running(host)}
    with contextlib.suppress(OSError):
        found.update(_in_groups(host))
    return [f"pid {pid} ({words})" for pid, words in sorted(found.items())]


def _in_groups(host: Host) -> dict[int, str]:
    """Processes in the groups below the host's own: a run may make groups, and must leave no group with a process in
    it.
    """
    found: dict[int, str] = {}
    top = host.lab.claim.groups.host(host.name)
    for path, _, _ in os.walk(top) if top else ():
        if Path(path) != top and "populated 1" in (Path(path) / "cgroup.events").read_text():
            found.update({int(pid): f"in {path}" for pid in (Path(path) / "cgroup.procs").read_text().split()})
    return found


@dataclass
class Seen:
    """One host's part of a run, over time (monotonic seconds)."""

    peak: int = 0  # most ranks at once
    launchers: set[tuple[int, int]] = field(default_factory=set)  # pid and start time
    alive: int = 0  # launcher and ranks, at the last look
    began: float | None = None  # when it began to stop: a rank or launcher gone, an entry about it in the record
    gone: float | None = None  # when the last process was gone
    exits: list[bytes] = field(default_factory=list)  # every content that exit.json ever had


class Watch:
    """Looks at all hosts a few times a second, in a thread of its own, from the start of a round to its end."""

    def __init__(self, hosts: Mapping[Host, str]) -> None:
        self.bases = hosts
        self.run = ""
        self.seen = {host.name: Seen() for host in hosts}
        self._known = {run for host, base in hosts.items() for run in runs(host, base)}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def new_runs(self) -> set[str]:
        """The runs that began after this watch."""
        found: set[str] = set()
        for host, base in self.bases.items():
            with contextlib.suppress(OSError):
                found |= runs(host, base)
        return found - self._known

    def record(self, host: Host, name: str, run: str = "") -> bytes | None:
        return read(folder(host, self.bases[host], "runs", run or self.run, host.name, name))

    def mark(self) -> None:
        """Forget the observed stops: only later stops count."""
        self.look()
        for seen in self.seen.values():
            seen.began, seen.peak = None, 0

    def look(self) -> None:
        """Once more, now: what changed since the last look counts too."""
        for host in self.bases:
            with contextlib.suppress(OSError, LabError, AttributeError):  # it loses its power just now
                self._look(host, self.seen[host.name])

    def _loop(self) -> None:
        while not self._over.wait(LOOK_S):
            if self.run:
                self.look()

    def _look(self, host: Host, seen: Seen) -> None:
        end, state = self.record(host, "exit.json"), document(self.record(host, "state.json")).get("state")
        if end is not None and (not seen.exits or seen.exits[-1] != end):
            seen.exits.append(end)
        found, head = (ranks(host, self.run), launcher(host, self.run)) if host.running else ({}, None)
        if head is not None and "torch" in " ".join(head.argv):  # past its exec
            seen.launchers.add((head.pid, head.start))
        now, alive = time.monotonic(), len(found) + (head is not None)
        fewer = seen.peak > len(found) or (seen.alive and not alive)
        if seen.began is None and (fewer or end is not None or state == STOPPING):
            seen.began = now
        if alive:
            seen.gone = None
        elif seen.gone is None and seen.launchers:
            seen.gone = now
        seen.peak, seen.alive = max(seen.peak, len(found)), alive
