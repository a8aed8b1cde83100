"""A run with restarts as it can be seen from outside: /proc of every host, and files. Nothing here asks ddpctl."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Iterable, Mapping

from tests.chaos.sight import BASE, folder, read
from tests.e2e.site import running
from tests.lab import Host, LabError
from tests.restarts.train import STEPS_FOLDER, Steps

LOOK_S = 0.25
WAKE_S = 3.0  # a host that was frozen has a moment to see that its time is over


class Sight:
    """Which attempts live on which hosts, looked at all the time."""

    def __init__(self, hosts: Iterable[Host], job: str) -> None:
        self._hosts, self._job = list(hosts), job
        self._over = threading.Event()
        self._froze: dict[str, float] = {}  # when the host was last seen frozen
        self.twice: list[Mapping[str, set[int]]] = []
        self.begun: dict[int, float] = {}  # when a rank of each attempt was first seen on any host
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Sight:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join(60.0)

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            alive = _all(self._look())
            for attempt in alive:
                self.begun.setdefault(attempt, time.monotonic())
            # The hosts are looked at one by one: do they live at the same moment?
            if len(alive) > 1 and len(_all(again := self._look())) > 1:
                self.twice.append(again)

    def _look(self) -> dict[str, set[int]]:
        return {host.name: self._living(host) for host in self._hosts}

    def _living(self, host: Host) -> set[int]:
        """What is frozen does nothing: it cannot even end."""
        found: set[int] = set()
        if host.frozen:
            self._froze[host.name] = time.monotonic()
        if time.monotonic() - self._froze.get(host.name, -WAKE_S) < WAKE_S:
            return found
        with contextlib.suppress(OSError, LabError, AttributeError):  # it loses power just now
            for one in running(host) if host.running else ():
                env = one.environ
                if env.get("DDPCTL_JOB") == self._job and "RANK" in env and "DDPCTL_ATTEMPT" in env:
                    found.add(int(env["DDPCTL_ATTEMPT"]))
        return found


def _all(found: Mapping[str, set[int]]) -> set[int]:
    return set().union(*found.values())


def attempts(hosts: Iterable[Host], job: str) -> dict[int, dict[str, Steps]]:
    """What the ranks have written of each attempt; a host that is off has its disk."""
    found: dict[int, dict[str, Steps]] = {}
    for host in hosts:
        for path in folder(host, STEPS_FOLDER).glob(f"{job}.*"):
            steps = Steps.read((read(path) or b"").decode())
            found.setdefault(int(path.suffix[1:]), {})[host.name] = steps
    return found


def complete(hosts: Iterable[Host], job: str) -> dict[str, int]:
    """The last step that each host has a manifest of, with the file that belongs to it, whichever host wrote it."""
    found: dict[str, int] = {}
    for host in hosts:
        for path in folder(host, BASE, "checkpoints").glob(f"*/*/{job}/*/.ddpctl/step_*.pt.json"):
            step = re.fullmatch(r"step_(\d+)\.pt", path.name[: -len(".json")])
            with contextlib.suppress(OSError, ValueError):
                size = json.loads(path.read_text())["files"][""]["size"]
                whole = (path.parent.parent / path.name[: -len(".json")]).stat().st_size == size
                if step and whole:
                    found[host.name] = max(found.get(host.name, 0), int(step[1]))
    return found


def ended(hosts: Iterable[Host], run: str) -> bool:
    """Whether every host that has power has the end of the run on record."""
    ends = [folder(host, BASE, "runs", run, host.name, "exit.json") for host in hosts if host.running]
    return all(path.exists() for path in ends)
