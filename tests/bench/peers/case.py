"""A tool and a fault: three fresh hosts with two ranks each train, something happens, and we wait for the end."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.peers import said
from tests.bench.peers.command import Command, Cost
from tests.bench.peers.tools import RANKS, Desk, Tool, Unavailable
from tests.bench.peers.training import NOTES
from tests.bench.usage import DDPCTL
from tests.lab import Host, Lab, Process

NODES = 3
VICTIM, RANK = 1, 3  # the second host, and its second rank
START_S = 120.0
STEADY_S = 3.0
LIMIT_S = 60.0
COST_S = 20.0
PAUSE_S = 0.1
CTRL_C = "ctrl-c"


@dataclass(frozen=True)
class Fault:
    """The fault of a running training. Where the command itself is hit, there is no exit code to look for."""

    key: str
    what: str
    strike: Callable[[Lab, Command], object]
    hits_command: bool = False


@dataclass(frozen=True)
class Rank:
    """A rank as it describes itself: when its first all-reduce was done, its pid and its launcher's on its host."""

    at: float
    pid: int
    launcher: int


@dataclass(frozen=True)
class Outcome:
    """Seconds from the fault; None: not within the limit."""

    gone_s: float | None
    left: int
    ended_s: float | None
    code: int | None
    line: str
    named: Sequence[str]
    further: str = ""


def ranks(host: Host) -> dict[int, Rank]:
    folder = host.disk.upper / NOTES.lstrip("/")
    found = {}
    for path in folder.glob("rank-*[0-9]"):
        at, pid, launcher = path.read_text().split()
        found[int(path.name.partition("-")[2])] = Rank(float(at), int(pid), int(launcher))
    return found


def of_job(process: Process) -> bool:
    """All processes except the programs of every host, and the program that reads for ddpctl at the end of a
    connection.
    """
    reads = any("ddpctl=json.loads" in word for word in process.argv) and "DDPCTL_RUN" not in process.environ
    return process.state not in "ZX" and not process.system and not reads


def left(lab: Lab) -> list[Process]:
    """On hosts that live."""
    return [one for host in lab if host.running for one in host.processes() if of_job(one)]


def _signal(host: Host, pid: int) -> None:
    host.run(["kill", "-KILL", str(pid)])


FAULTS = (
    Fault("raise", "a rank raises", lambda lab, _: lab[VICTIM].write(f"{NOTES}/raise-{RANK}", "")),
    Fault("kill-rank", "a rank is SIGKILLed", lambda lab, _: _signal(lab[VICTIM], ranks(lab[VICTIM])[RANK].pid)),
    Fault(
        "kill-launcher",
        "a node's launcher is SIGKILLed",
        lambda lab, _: _signal(lab[VICTIM], ranks(lab[VICTIM])[RANK].launcher),
    ),
    Fault("power", "a host loses power", lambda lab, _: lab[VICTIM].power_off()),
    Fault("cable", "a cable is cut", lambda lab, _: lab[VICTIM].cable(False)),
    Fault("kill-command", "the command is SIGKILLed", lambda _, command: command.kill(), hits_command=True),
    Fault(
        "kill-all-here",
        "the command is SIGKILLed with all that it started here",
        lambda _, command: command.kill_all(),
        hits_command=True,
    ),
    Fault(CTRL_C, "Ctrl-C", lambda _, command: command.interrupt()),
)


@contextmanager
def training(
    tool: Tool, programs: Sequence[Path], lab: Lab, folder: Path, more: Sequence[str] = ()
) -> Iterator[tuple[Desk, Command]]:
    """The command runs; all its processes on this machine are ended at the end, its processes on the hosts end with the
    lab.
    """
    folder.mkdir()
    desk = Desk(lab, folder)
    desk.set_up()
    command = Command(desk, [*tool.command(desk), *more], programs, folder / "output")
    try:
        yield desk, command
    finally:
        command.kill_all()


def first_all_reduce(lab: Lab, command: Command) -> float:
    """When the last rank had its first all-reduce; raises with what the command said where that never comes."""
    until = time.monotonic() + START_S
    while time.monotonic() < until and command.code is None:
        found = [rank for host in lab for rank in ranks(host).values()]
        if len(found) == NODES * RANKS:
            return max(rank.at for rank in found)
        time.sleep(PAUSE_S)
    end = "nothing trains" if command.code is None else f"it ends with {command.code}"
    raise Unavailable(f"{end}: {' / '.join(command.text.split(chr(10))[-4:])[-300:]}")


def strike(tool: Tool, programs: Sequence[Path], fault: Fault, folder: Path) -> Outcome:
    more = tool.to_stop if fault.key == CTRL_C else ()
    with Lab(NODES) as lab, training(tool, programs, lab, folder, more) as (desk, command):
        first_all_reduce(lab, command)
        time.sleep(STEADY_S)
        fault.strike(lab, command)
        gone_s, ended_s = _wait(lab, command, fault)
        remains = left(lab)
        (folder / "left").write_text("".join(f"{one}\n" for one in remains))
        code = None if fault.hits_command else command.code
        host = (lab[VICTIM].name, lab[VICTIM].address)
        line, named = said.best_line(command.text, fault.key, host, RANK)
        further = f"typed with {' '.join(more)}" if more else ""
        if tool.key == "ddpctl" and remains and fault.hits_command:
            further = _by_a_later_kill(desk)
        return Outcome(gone_s, len(remains), ended_s, code, line, named, further)


def _wait(lab: Lab, command: Command, fault: Fault) -> tuple[float | None, float | None]:
    """When the last process of the job was gone, and when the command had ended: both, or the limit."""
    began = time.monotonic()
    gone_s: float | None = None
    ended_s: float | None = None
    while (now := time.monotonic() - began) < LIMIT_S:
        if left(lab):
            gone_s = None  # something came back, or had not started yet
        elif gone_s is None:
            gone_s = now
        if ended_s is None and command.code is not None:
            ended_s = now
        if gone_s is not None and (ended_s is not None or fault.hits_command):
            break
        time.sleep(PAUSE_S)
    return gone_s, ended_s


def _by_a_later_kill(desk: Desk) -> str:
    """The result of the user's next command for a run that has lost its `up`."""
    began = time.monotonic()
    done = subprocess.run(
        desk.inside([str(DDPCTL), "kill", "train", "--json"]),
        cwd=desk.place,
        env=desk.environ(),
        capture_output=True,
        text=True,
    )
    seconds = time.monotonic() - began
    survivors = [one for node in json.loads(done.stdout)["nodes"] for one in node["survivors"]]
    return f"`ddpctl kill` ends it in {seconds:.1f} s, {len(survivors)} survivors, {len(left(desk.lab))} processes"


def start(tool: Tool, programs: Sequence[Path], folder: Path, rounds: int) -> tuple[list[float], Cost]:
    """Seconds to the first all-reduce, each on the same hosts, and what the last round cost this machine."""
    seconds = []
    with Lab(NODES) as lab:
        for number in range(rounds):
            with training(tool, programs, lab, folder / str(number)) as (_, command):
                cost = Cost(command)
                try:
                    seconds.append(first_all_reduce(lab, command) - command.began_at)
                    if number == rounds - 1:
                        time.sleep(COST_S)
                finally:
                    cost.stop()
            lab.heal()
            for host in lab:
                host.run(["rm", "-rf", NOTES])
    return seconds, cost


def load() -> str:
    return f"{os.getloadavg()[0]:.1f}"
