"""The campaign of healthy jobs: each pauses for long, and neither the watcher nor the doctor may call it hung."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from ddpctl_worker.wire.contract import TERMINAL
from tests.e2e.site import Site, until
from tests.hangs import report
from tests.hangs.campaign import TROUBLE, Labs, side_by_side, site_in
from tests.hangs.judge import Healthy, false_alarms
from tests.hangs.pauses import PROGRAMS, Run, plan
from tests.hangs.play import submit

BEGIN_S = 240.0  # until the pause begins
END_S = 240.0  # from the end of the pause to that of the run
DOCTOR_S = 60.0
POLL_S = 5.0  # status of four jobs at once: each takes half a second of a core
BUSY = "while True: pass"


class BusyMachine:
    """A process per core that uses all its time, for as long as the job of any thread needs it."""

    def __init__(self) -> None:
        self._users = 0
        self._lock = threading.Lock()
        self._processes: list[subprocess.Popen[bytes]] = []

    @contextlib.contextmanager
    def while_needed(self, needed: bool) -> Iterator[None]:
        if not needed:
            yield
            return
        self._change(1)
        try:
            yield
        finally:
            self._change(-1)

    def _change(self, number: int) -> None:
        with self._lock:
            self._users += number
            if self._users and not self._processes:
                words = [sys.executable, "-c", BUSY]
                self._processes = [subprocess.Popen(words) for _ in range(os.cpu_count() or 1)]
            elif not self._users:
                for process in self._processes:
                    process.kill()
                    process.wait()
                self._processes = []


def campaign(folder: Path, options: argparse.Namespace) -> bool:
    """True where something was wrong. ``folder`` gets the outputs of all commands."""
    results: list[Healthy] = []
    runs = plan(options.seed, options.number, options.only)[options.begin :]
    busy = BusyMachine()
    with Labs() as labs:

        def play(run: Run, began: float) -> None:
            with busy.while_needed(PROGRAMS[run.program].busy_machine):
                healthy = _play(labs, folder / f"healthy{run.number}", run, options)
            results.append(healthy)
            print(report.healthy_line(healthy, run.number, time.monotonic() - began), flush=True)

        side_by_side(runs, play, options.jobs or 4)
    bad = [one for one in results if false_alarms(one)]
    print("\n" + report.healthy_summary(results))
    print(f"{len(results)} healthy jobs, {len(bad)} with a false alarm or another end")
    return bool(bad)


def _play(labs: Labs, place: Path, run: Run, options: argparse.Namespace) -> Healthy:
    healthy = Healthy(run.program)
    try:
        with site_in(labs[run.hosts], place) as site:
            _watch(site, run, healthy, options.pause, doctor=not options.programs)
    except TROUBLE as error:
        healthy.trouble.append(f"campaign: {error!r}")
    return healthy


def _watch(site: Site, run: Run, healthy: Healthy, pause: float, *, doctor: bool) -> None:
    program, job = PROGRAMS[run.program], f"healthy{run.number}"
    key = {"stall": program.stall * pause} if doctor else None
    submit(site, job, program.text, str(pause), str(run.slow), job, doctor=key)

    def state() -> str:
        status = site.status(job)
        healthy.state = status["state"]
        if (found := status.get("diagnosis")) and found not in healthy.diagnoses:
            healthy.diagnoses.append(found)
        return healthy.state

    def begun() -> bool:
        return any(host.exists(f"/tmp/{job}.pause") for host in site.lab)

    try:
        until(lambda: begun() or state() in TERMINAL, BEGIN_S, "the pause never began", pause=2.0)
        began = time.monotonic()
        looks = [began + share * pause for share in run.looks] if doctor else []
        while state() not in TERMINAL:
            if looks and looks[0] <= time.monotonic():
                looks.pop(0)
                _ask(site, job, healthy)
            if time.monotonic() > began + 2 * pause + END_S:
                healthy.trouble.append("the job does not end")
                break
            time.sleep(min(POLL_S, pause / 10))
    finally:
        if state() not in TERMINAL:
            site("kill", job).ok()


def _ask(site: Site, job: str, healthy: Healthy) -> None:
    done = site("doctor", job, "--json", timeout=DOCTOR_S)
    try:
        healthy.doctors.append(done.json())
    except json.JSONDecodeError:
        healthy.trouble.append(f"`ddpctl doctor` ended with {done.rc}: {done.stderr.strip()[-300:]}")
