"""SIGKILL and SIGSTOP of whatever a run consists of on one node, and threads of the supervisor that stand still."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.chaos.fault import Fate, Fault, Scene
from tests.chaos.plan import END, KILL, PLAIN, RESTARTS, THENS, TORCH, TRAINING
from tests.e2e.site import launcher, named, ranks
from tests.lab import Host, Process
from tests.worker.programs import thread_stopped as stand_still

Find = Callable[[Scene], Process | None]
ONE = (PLAIN, TORCH)  # the supervisor of an attempt among several has other threads
THREADS = ("main", "drain", "log", "record", "gang", "cuts")  # of the supervisor, in the order in which it starts them
AFTER_EXEC = (TRAINING, END)
KILLS = ("launcher", "rank", "supervisor", "guardian")


def the_launcher(scene: Scene) -> Process | None:
    return launcher(scene.victim, scene.run)


def the_rank(scene: Scene) -> Process | None:
    return next(iter(ranks(scene.victim, scene.run).values()), None)


def the_supervisor(scene: Scene) -> Process | None:
    return named(scene.victim, "ddpctl-super")


def the_guardian(scene: Scene) -> Process | None:
    return named(scene.victim, "ddpctl-guardian")


def the_agent(scene: Scene) -> Process | None:
    return named(scene.victim, "ddpctl-agent")


ROLES: dict[str, Find] = {
    "agent": the_agent,
    "launcher": the_launcher,
    "rank": the_rank,
    "supervisor": the_supervisor,
    "guardian": the_guardian,
}


def killed(*roles: str) -> Callable[[Scene], bool]:
    """SIGKILL, to all processes with a single call of kill."""

    def inject(scene: Scene) -> bool:
        if not scene.within(lambda: all(ROLES[role](scene) for role in roles)):
            return False
        found = [ROLES[role](scene) for role in roles]
        return send(scene.victim, signal.SIGKILL, *(one for one in found if one))

    return inject


def stopped(role: str) -> Callable[[Scene], bool]:
    """SIGSTOP; SIGCONT takes it back."""

    def inject(scene: Scene) -> bool:
        if not scene.within(lambda: ROLES[role](scene)):
            return False
        found = ROLES[role](scene)
        if found is None or not send(scene.victim, signal.SIGSTOP, found):
            return False
        scene.undo.callback(send, scene.victim, signal.SIGCONT, found)
        return True

    return inject


def thread_stopped(name: str) -> Callable[[Scene], bool]:
    """One thread of the supervisor stands still, as on a page fault that a hung disk does not serve."""

    def inject(scene: Scene) -> bool:
        if not scene.within(lambda: len(threads(scene)) == len(THREADS)):
            return False
        found = threads(scene)
        if len(found) != len(THREADS):
            return False
        with contextlib.suppress(AssertionError):  # it has just ended
            scene.undo.enter_context(stand_still(found[THREADS.index(name)]))
            return True
        return False

    return inject


def threads(scene: Scene) -> list[int]:
    """The supervisor's in the order of their start, by the pids of this machine, from which it is to be traced."""
    found = the_supervisor(scene)
    if found is None:
        return []
    with contextlib.suppress(OSError, StopIteration):
        outer = next(pid for pid in scene.victim.outer_pids() if inner_pid(pid) == found.pid)
        return [int(task.name) for task in Path(f"/proc/{outer}/task").iterdir()]  # the kernel lists them so
    return []


def inner_pid(pid: int) -> int:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("NSpid:")).split()[-1])
    return 0


def send(host: Host, number: signal.Signals, *found: Process) -> bool:
    """Send a signal to each process whose identity is unchanged."""
    now = {(one.pid, one.start) for one in host.processes()} if host.running else set()
    alive = [str(one.pid) for one in found if (one.pid, one.start) in now]
    return bool(alive) and host.run(["kill", f"-{number.value}", *alive], check=False).returncode == 0


def faults() -> Iterator[Fault]:
    yield Fault("kill-launcher", killed("launcher"))
    yield Fault("kill-rank", killed("rank"), moments=AFTER_EXEC)
    yield Fault("kill-supervisor", killed("supervisor"))
    yield Fault("kill-guardian", killed("guardian"), Fate.GOES_ON, thens=THENS)
    yield Fault("kill-watchers", killed("supervisor", "guardian"), leaves=True)
    yield Fault("kill-agent", killed("agent"), moments=(TRAINING,), jobs=(RESTARTS,), leaves=True)
    yield Fault("stop-launcher", stopped("launcher"), Fate.GOES_ON, thens=THENS)
    yield Fault("stop-rank", stopped("rank"), Fate.GOES_ON, moments=AFTER_EXEC, thens=THENS)
    yield Fault("pause-supervisor", stopped("supervisor"), Fate.GOES_ON, thens=THENS)
    yield Fault("stop-supervisor", stopped("supervisor"), hold=45.0)
    yield Fault("stop-guardian", stopped("guardian"), Fate.GOES_ON, thens=THENS)
    yield Fault("stop-main-thread", thread_stopped("main"), hold=45.0, jobs=(PLAIN,))
    yield Fault("pause-drain", thread_stopped("drain"), Fate.GOES_ON, thens=THENS, jobs=ONE)
    yield Fault("pause-log", thread_stopped("log"), Fate.GOES_ON, thens=THENS, hold=10.0, jobs=ONE)
    yield Fault("pause-record", thread_stopped("record"), Fate.GOES_ON, thens=THENS, hold=10.0, jobs=ONE)
    yield Fault("pause-gang", thread_stopped("gang"), Fate.GOES_ON, thens=THENS, jobs=ONE)
    yield Fault("stop-gang", thread_stopped("gang"), moments=(TRAINING,), deaf=True, thens=(KILL,), hold=45.0, jobs=ONE)
