"""Healthy runs on a machine that has far too little of everything: a run that does not succeed is a false alarm.

Every core is busy with something else, the hosts have less memory than they use (the rest is on swap, where this
machine lets us have some), and once in each run the whole lab stands still for ten seconds, ddpctl with it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from ddpctl_worker.machine.proc import parse_meminfo
from tests.chaos.sight import BASE, document, folder, left, read, runs
from tests.e2e.site import Site
from tests.lab import Lab, LabError, interpreters
from tests.lab.command import Ddpctl
from tests.lab.process import call

TRAIN_S = 14.0
PAUSE_S = 10.0
UP_S = 180.0  # all ranks are up
END_S = 180.0
EMPTY_S = 30.0  # the workers that `up` has talked to may take a moment to end
SWAP_MB = 1024
MEMORY = "180M"  # of a host: what a run on it needs is about 250 MB
BUSY = "while True: pass"
PROGRAM = """\
import os, time
ballast = bytearray(os.urandom(1 << 20)) * 64
print("rank", os.environ["RANK"], "is up", flush=True)
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    ballast[:: 4096] = bytes(len(ballast[:: 4096]))  # pages that are wanted again and again
    time.sleep(0.2)
"""


def campaign(place: Path, number: int, *, labs: int) -> list[str]:
    """The false alarms."""
    tickets: queue.SimpleQueue[int] = queue.SimpleQueue()
    for nth in range(number):
        tickets.put(nth)
    alarms: list[str] = []
    with _swap(place) as swapping, _busy(os.cpu_count() or 1):
        print("memory pressure with swap" if swapping else "no swap to be had: no memory pressure", flush=True)
        threads = [threading.Thread(target=_one_lab, args=(place, tickets, alarms, swapping)) for _ in range(labs)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        finally:  # cut short: the runs that are under way are the last
            with contextlib.suppress(queue.Empty):
                while True:
                    tickets.get_nowait()
            for thread in threads:
                thread.join()
    return alarms


def _one_lab(place: Path, tickets: queue.SimpleQueue[int], alarms: list[str], swapping: bool) -> None:
    with Lab(3) as lab:
        if swapping:
            for host in lab:
                host.memory_limit(MEMORY)
        while True:
            try:
                nth = tickets.get_nowait()
            except queue.Empty:
                return
            found = _one_run(lab, place / f"healthy{nth}", nth)
            alarms += [f"run {nth}: {text}" for text in found]
            print(f"{nth:4} healthy", *(found or ["ok"]), flush=True)


def _one_run(lab: Lab, place: Path, nth: int) -> list[str]:
    place.mkdir()
    ddpctl = Ddpctl(place)
    known = runs(lab[0], BASE)
    try:
        site = Site(lab, ddpctl, place / "site", str(interpreters.python213()))
        up = site.start("up", "--job", site.job("healthy", PROGRAM.format(seconds=TRAIN_S)), "--skip-preflight")
        deadline = time.monotonic() + UP_S
        while len(set(re.findall(r"rank (\d+) is up", up.stdout))) < len(lab) and up.process.poll() is None:
            if time.monotonic() > deadline:
                break
            time.sleep(0.2)
        time.sleep(nth % 5)
        with _everything_stopped(lab, up.pid):
            time.sleep(PAUSE_S)
            print(f"{nth:4} pauses, {_swapped():.0f} MB are on swap", flush=True)
        done = up.wait(END_S)
    except (AssertionError, LabError) as error:
        return [str(error)]
    finally:
        ddpctl.stop()
    found = [] if done.rc == 0 else [f"`up` ended with {done.rc}: {done.stderr.strip().splitlines()[-1:]}"]
    for run in runs(lab[0], BASE) - known:
        found += _not_succeeded(lab, run)
    return found


def _not_succeeded(lab: Lab, run: str) -> Iterator[str]:
    deadline = time.monotonic() + EMPTY_S
    while any(left(host) for host in lab) and time.monotonic() < deadline:
        time.sleep(0.5)
    for host in lab:
        end = document(read(folder(host, BASE, "runs", run, host.name, "exit.json")))
        if end.get("state") != "succeeded":
            yield f"{host.name} {end.get('state')}: {(end.get('cause') or {}).get('message')}"
        if rest := left(host):
            yield f"{host.name} still runs {rest}"


@contextlib.contextmanager
def _everything_stopped(lab: Lab, up: int) -> Iterator[None]:
    """As when the machine below all hosts is paused, or asleep."""
    with contextlib.ExitStack() as undo:
        undo.callback(_signal_group, up, signal.SIGCONT)
        _signal_group(up, signal.SIGSTOP)
        for host in lab:
            undo.callback(host.thaw)
            host.freeze()
        yield


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


@contextlib.contextmanager
def _busy(cores: int) -> Iterator[None]:
    """Two processes per core that use all its time."""
    found = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(2 * cores)]
    try:
        yield
    finally:
        for one in found:
            one.kill()
            one.wait()


def _swapped() -> float:
    """MB that are on swap now."""
    sizes = parse_meminfo(Path("/proc/meminfo").read_text())
    return (sizes["SwapTotal"] - sizes["SwapFree"]) / (1 << 20)


@contextlib.contextmanager
def _swap(place: Path) -> Iterator[bool]:
    """A swap file, where this machine allows it; without it a host that is short of memory would be hurt, not slow."""
    path = place / "swap"
    call(["dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={SWAP_MB}", "status=none"])
    path.chmod(0o600)
    call(["mkswap", str(path)])
    on = call(["swapon", str(path)], check=False).returncode == 0
    try:
        yield on
    finally:
        if on:
            call(["swapoff", str(path)], timeout=600)
        path.unlink()
