"""A campaign: one lab, and the records of all its runs, which must still be there at its end."""

from __future__ import annotations

import functools
import subprocess
import time
from pathlib import Path

from tests.chaos.judge import Part, violations
from tests.chaos.plan import PLAIN, Round
from tests.chaos.play import keep_evidence, play
from tests.chaos.report import Result
from tests.chaos.sight import BASE, folder, read
from tests.e2e.site import Site
from tests.lab import Lab, LabError, interpreters
from tests.lab.command import Ddpctl
from tests.restarts.play import LAST
from tests.restarts.train import uninterrupted


class Campaign:
    """``folder`` holds the outputs of all commands, and the evidence of violations."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ends: dict[tuple[str, str], bytes] = {}  # run and host -> exit.json

    def __enter__(self) -> Campaign:
        self.lab = Lab(3)
        return self

    def __exit__(self, *error: object) -> None:
        self.lab.stop()

    def play(self, round: Round) -> Result:
        began = time.monotonic()
        try:
            return self._play(round, began)
        except (LabError, AssertionError, OSError, subprocess.SubprocessError) as error:
            self._start_again()
            return Result(round, False, False, (f"campaign: {error!r}",), time.monotonic() - began)

    def _start_again(self) -> None:
        """With new hosts: the lab itself failed."""
        self.lab.stop()
        self.lab = Lab(3)
        self._ends.clear()

    def _play(self, round: Round, began: float) -> Result:
        place = self.folder / f"round{round.number}"
        place.mkdir()
        ddpctl = Ddpctl(place)
        try:
            python = interpreters.make_stand_in() if round.job == PLAIN else interpreters.python213()
            site = Site(self.lab, ddpctl, self.folder / f"site{round.number}", str(python))
            site.keys["defaults"]["slots"] = 2  # for a second run of the same name
            facts, scene = play(site, round)
        finally:
            ddpctl.stop()
        facts.right = self._right if facts.carried else {}
        found = violations(facts)
        if found:
            keep_evidence(scene, facts, place / "evidence")
        self._remember(facts.parts if not facts.fault.disk else {})
        return Result(
            round,
            facts.hit,
            facts.must_end,
            tuple(found),
            time.monotonic() - began,
            facts.detected,
            facts.stopped,
            facts.up_ended,
        )

    @functools.cached_property
    def _right(self) -> dict[int, float]:
        return uninterrupted(self.folder / "uninterrupted", interpreters.python213(), LAST)

    def _remember(self, parts: dict[str, dict[str, Part]]) -> None:
        for run, hosts in parts.items():
            for host, part in hosts.items():
                if end := part.records.get("exit.json"):
                    self._ends[run, host] = end

    def lost_records(self) -> list[str]:
        """Ends that are not on record any more, or another way than they were, after all that came later."""
        hosts = {host.name: host for host in self.lab}
        return [
            f"record: exit.json of {run} on {host} is gone or has changed"
            for (run, host), end in self._ends.items()
            if read(folder(hosts[host], BASE, "runs", run, host, "exit.json")) != end
        ]
