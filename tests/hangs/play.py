"""A round: start a job that hangs, wait for the watcher, ask the doctor, end the job."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ddpctl_worker.wire.contract import TERMINAL
from tests.chaos.disks import own_disk
from tests.e2e.site import Site, ranks, until
from tests.hangs.judge import Expected, Facts, wrong_lines
from tests.hangs.kinds import FREEZE, KINDS, STOP
from tests.hangs.look import last_progress, stacks, written_time
from tests.hangs.plan import RANKS_PER_HOST, Round
from tests.hangs.programs import program
from tests.lab import Host

UP_S = 180.0
FIRST_STEP_S = 180.0  # eight processes import torch, on a machine that may have other work
GIVE_UP_S = 30.0  # after the watcher may speak
DOCTOR_S = 60.0
END_S = 60.0  # of a run that ends by itself
QUIET_S = 6.0  # no step for this long: without the doctor, a job counts as hung
LOOKS = 3  # at the stacks of a job that counts as hung
POLL_S = 1.0


def submit(site: Site, name: str, text: str, *args: str, doctor: dict[str, float] | None) -> str:
    """Start a job on all hosts of the site; returns the run's id. `doctor` is the job key; None leaves it out."""
    site.keys["defaults"]["slots"] = RANKS_PER_HOST
    keys: dict[str, Any] = {"env": {"OMP_NUM_THREADS": "1"}, "timeouts": {"stop": 2}}
    if doctor:
        keys["doctor"] = doctor
    site.job(name, text, *args, **keys)
    return str(site.up(name, "--skip-preflight", timeout=UP_S)["run"])


class Hang:
    """A round while it is played."""

    def __init__(self, site: Site, round: Round, stall: float) -> None:
        self.site, self.round, self.kind = site, round, KINDS[round.kind]
        self.job = f"hang{round.number}"
        self.script = f"{self.job}.py"
        self.facts = Facts(round, Expected.of(round, self.script, stall))
        self.hosts: list[Host] = list(site.lab)
        self.stall = stall
        self.run = ""

    @property
    def victim(self) -> Host:
        """The host of the first odd rank."""
        return self.hosts[self.round.odd[0] // RANKS_PER_HOST]

    def play(self, look: Callable[[Hang], None], *, doctor: bool) -> Facts:
        """Start it, make it hang, `look`, end it."""
        text = program(self.round.frame, self.kind.parts)
        odd = ",".join(map(str, self.round.odd))
        with contextlib.ExitStack() as undo:
            if self.kind.act == FREEZE:
                undo.enter_context(own_disk(self.victim, f"/srv/{self.job}"))
            undo.callback(self._end)
            key = {"stall": self.stall} if doctor else None
            self.run = submit(self.site, self.job, text, str(self.round.step), odd, self.job, doctor=key)
            until(self._progress, FIRST_STEP_S, "no rank finished a step", pause=0.25)
            self._act(undo)
            look(self)
        return self.facts

    def _progress(self) -> float | None:
        self.facts.last_progress = last_progress(self.hosts, self.job, self.round.world)
        return self.facts.last_progress

    def _act(self, undo: contextlib.ExitStack) -> None:
        """What the program cannot do to itself, once its odd rank waits for it."""
        if not self.kind.act:
            return
        until(lambda: written_time(self.victim, self.job, "ready"), FIRST_STEP_S, "the odd rank is not ready")
        if self.kind.act == STOP:
            process = ranks(self.victim, self.run)[self.round.odd[0]]
            self.victim.run(["kill", "-STOP", str(process.pid)])
        else:
            undo.callback(self.victim.run, ["fsfreeze", "-u", f"/srv/{self.job}"])
            self.victim.run(["fsfreeze", "-f", f"/srv/{self.job}"])

    def read_status(self) -> dict[str, Any]:
        found = self.site.status(self.job)
        self.facts.state, self.facts.cause = found["state"], found.get("cause")
        self.facts.diagnosis = found.get("diagnosis") or self.facts.diagnosis
        return found

    def quiet_s(self) -> float:
        """How long no rank has finished a step."""
        return time.time() - (self._progress() or time.time())

    def _end(self) -> None:
        if self.run and self.read_status()["state"] not in TERMINAL:
            done = self.site("kill", self.job)
            if done.rc:
                self.facts.trouble.append(f"`ddpctl kill` ended with {done.rc}: {done.stderr.strip()[-300:]}")


def with_doctor(hang: Hang) -> None:
    """Wait for the watcher, which has until GIVE_UP_S after it may speak; then ask the doctor."""
    facts = hang.facts
    while hang.quiet_s() < facts.expected.stall and not (facts.expected.ends and _ended(hang)):
        time.sleep(POLL_S)
    while not _ended(hang) and facts.diagnosis is None and hang.quiet_s() < facts.expected.stall + GIVE_UP_S:
        time.sleep(POLL_S)
    done = hang.site("doctor", hang.job, "--json", timeout=DOCTOR_S)
    facts.doctor_s = done.seconds
    try:
        facts.doctor = done.json()
    except ValueError:
        facts.trouble.append(f"`ddpctl doctor` ended with {done.rc}: {done.stderr.strip()[-300:]}")


def _ended(hang: Hang) -> bool:
    return hang.read_status()["state"] in TERMINAL


def without_doctor(tool: str) -> Callable[[Hang], None]:
    """Check the program itself, with py-spy: does it hang, and do its odd ranks stand where they are meant to?"""

    def look(hang: Hang) -> None:
        if hang.kind.ends:
            until(lambda: _ended(hang), END_S, "the run did not end by itself", pause=POLL_S)
            return
        until(lambda: hang.quiet_s() > QUIET_S, FIRST_STEP_S, "the job does not hang", pause=0.5)
        for _ in range(LOOKS):  # a slow machine may need longer for a step than QUIET_S
            hang.facts.doctor = stacks(tool, hang.hosts, hang.run, hang.script)
            found = _misplaced(hang)
            if not found:
                break
            time.sleep(QUIET_S)
        hang.facts.trouble += found
        before = hang.facts.last_progress
        time.sleep(1.0)
        if hang._progress() != before or _ended(hang):
            hang.facts.trouble.append(f"the job did not hang for long: {hang.facts.state}")

    return look


def _misplaced(hang: Hang) -> list[str]:
    document = hang.facts.doctor or {}
    found = {one["rank"] for one in document["ranks"]}
    gone = hang.facts.expected.odd if hang.kind.gone else frozenset()
    wrong = list(wrong_lines(document, hang.facts.expected))
    if found != set(range(hang.round.world)) - gone:
        wrong.append(f"these ranks run: {sorted(found)}")
    return wrong


def keep_evidence(facts: Facts, place: Path, text: str) -> None:
    """The documents of a round, and its program."""
    place.mkdir(parents=True, exist_ok=True)
    documents: Sequence[tuple[str, Any]] = (
        ("doctor.json", facts.doctor),
        ("status.json", {"state": facts.state, "diagnosis": facts.diagnosis, "cause": facts.cause}),
    )
    for name, document in documents:
        (place / name).write_text(json.dumps(document, indent=1) + "\n")
    (place / "program.py").write_text(text)
