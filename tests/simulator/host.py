"""What the simulated agent of a host has around it: its disk, and guardian, supervisor and ranks of an attempt."""

from __future__ import annotations

import copy
import errno
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ddpctl_worker import outcome as outcomes
from ddpctl_worker.agent.hostrecord import HostRecord
from ddpctl_worker.agent.part import LocalPart
from ddpctl_worker.contract import EXITED, FAILED, KILLED, NODE_LOST, NODE_REBOOTED
from ddpctl_worker.outcome import Outcome
from ddpctl_worker.paths import RunPaths
from tests.simulator.network import SimSockets
from tests.simulator.schedule import START_OF_TIME, Machine, Process

if TYPE_CHECKING:
    from tests.simulator.agents import AgentWorld

LOOK_S = 0.2  # between two looks of a supervisor, at its lease too
NOWHERE = "/nonexistent"


class Disk:
    """What is left when the agent is gone, and when the power was."""

    def __init__(self, agreed: dict[str, Any]) -> None:
        self.agreed: dict[str, Any] = agreed
        self.exit: dict[str, Any] | None = None
        self.stop: dict[str, Any] | None = None
        self.full = False
        self.reserve = True  # room for one change on a full disk


class Paths(RunPaths):
    """The attempts that lie on the simulated disk; nothing lies on the real one."""

    def __init__(self, host: Host) -> None:
        super().__init__(f"{NOWHERE}/{host.name}")
        self._host = host

    def attempts(self) -> list[RunPaths]:
        return [RunPaths(self.top, number) for number in sorted(self._host.parts)]


class Record(HostRecord):
    """The run's record on the simulated disk."""

    def __init__(self, host: Host) -> None:
        self._site = host
        self.paths = Paths(host)

    def keep(self, agreed: dict[str, Any]) -> None:
        disk = self._site.disk
        if disk.full and not disk.reserve:
            raise OSError(errno.ENOSPC, "No space left on device")
        disk.reserve = not disk.full
        disk.agreed = copy.deepcopy(agreed)

    def stop_word(self) -> dict[str, Any] | None:
        disk = self._site.disk
        return disk.stop if disk.stop is not None else ({} if disk.exit is not None else None)

    def save(self, state: str) -> None:
        pass

    def say(self, note: str | None) -> None:
        self._site.note = note

    def end(self, outcome: Outcome, part: LocalPart | None) -> None:
        self._site.ended(outcome)


class Part(LocalPart):
    """The agent's view of one attempt on its host."""

    def __init__(self, host: Host, number: int) -> None:
        super().__init__(f"{NOWHERE}/{host.name}", number)
        self._site = host
        self._attempt = host.parts.get(number)

    def start(
        self, request: Mapping[str, Any], base: str, attempt: Mapping[str, Any], umask: int, lease: float
    ) -> None:
        self._attempt = self._site.parts[self.number] = Attempt(self._site, attempt, lease)
        self._site.world.started(self._site, attempt)

    def renew(self, until: float) -> None:
        if self._attempt is not None and self.end is None and self._site.world.leases_are_renewed:
            self._attempt.until = max(self._attempt.until, until)

    def look(self) -> None:
        if self.end is None and self._attempt is not None:
            self.end = self._attempt.end

    def stop(self, grace: float | None, by: str) -> None:
        if self._attempt is not None:
            self._attempt.finish(KILLED, outcomes.killed(self._site.name, by).cause)
        self.look()

    def call_off(self) -> None:
        if not self.called_off and self._attempt is not None:
            attempt, killed = self._attempt, outcomes.killed(self._site.name, "ddpctl").cause
            world = self._site.world
            seconds = world.random.choice([0.3, 6.0]) * world.random.uniform(0.3, 1.0)
            world.scheduler.at(seconds, lambda: attempt.finish(KILLED, killed))
        self.called_off = True


class Attempt:
    """Guardian, supervisor and ranks of an attempt on one host. They outlive the agent, and end with their lease."""

    def __init__(self, host: Host, attempt: Mapping[str, Any], lease: float) -> None:
        self._host, self._world = host, host.world
        self.number, self.hosts = int(attempt["attempt"]), list(attempt["hosts"])
        self.until = lease
        self.end: dict[str, Any] | None = None
        self.begun = host.world.scheduler.now
        self.stopped_until = 0.0  # the supervisor: then its guardian ends the ranks
        self._dies_at: float | None = None
        self._missed_at: float | None = None  # when the gang ends it, as it misses another host
        self._look()

    @property
    def runs(self) -> bool:
        return self.end is None

    def finish(self, state: str, cause: dict[str, Any] | None) -> None:
        if self.end is None:
            self.end = {"state": state, "cause": cause, "ended": "", "survivors": []}
            self._world.log(f"the ranks of attempt {self.number} end on {self._host.name}: {state}, {_brief(cause)}")
            self._world.finished(self._host, self)

    def _look(self) -> None:
        if self.end is not None:
            return
        now, choose = self._world.scheduler.now, self._world.random
        if self._host.machine.boot_time() > self.until and self._dies_at is None and self._world.leases_end:
            late = choose.uniform(1.5, 2.2) if now < self.stopped_until else choose.uniform(0.02, 0.6)
            self._dies_at = now + late
        if self._dies_at is not None and now >= self._dies_at:
            self.finish(FAILED, self._cause(self._host.name, NODE_LOST, "its lease is over"))
            return
        missed = None if self._host.name in self._world.mute else self._missed()
        if missed is None:
            self._missed_at = None
        elif self._missed_at is None:
            ended = self._ended(missed)
            self._missed_at = now + (choose.uniform(0.3, 3.0) if ended else choose.uniform(5.0, 15.0))
        elif now >= self._missed_at:
            self.finish(FAILED, self._cause(missed, NODE_LOST, "it is lost"))
            return
        self._world.scheduler.at(LOOK_S, self._look)

    def _missed(self) -> str | None:
        """A host of the attempt whose part has ended, or that is out of reach: what the gang finds out sooner or later.
        A host whose part has not begun is waited for."""
        for name in self.hosts:
            if name == self._host.name:
                continue
            if not self._world.reach(self._host.name, name) or self._ended(name):
                return str(name)
        return None

    def _ended(self, name: str) -> bool:
        part = self._world.hosts[name].parts.get(self.number)
        return part is not None and not part.runs

    def _cause(self, host: str, reason: str, text: str) -> dict[str, Any]:
        return outcomes.cause(host, reason, text, when=START_OF_TIME + self._world.scheduler.now)

    def fail(self) -> None:
        """A rank of it."""
        self.finish(FAILED, self._cause(self._host.name, EXITED, f"a rank of attempt {self.number} failed"))


class Host:
    """A machine, what is on its disk, and what runs there."""

    def __init__(self, world: AgentWorld, name: str, agreed: dict[str, Any]) -> None:
        self.world, self.name = world, name
        choose = world.random
        rate = 1.0 + choose.uniform(-world.drift, world.drift)
        self.machine = Machine(world.scheduler, name, rate, choose.uniform(10.0, 1e5))
        self.disk = Disk(agreed)
        self.parts: dict[int, Attempt] = {}
        self.process: Process | None = None  # of the agent
        self.sockets: SimSockets | None = None
        self.agent: Any = None
        self.note: str | None = None
        self.apart_since = 0.0  # since when its agent could not reach half of the hosts

    @property
    def answers(self) -> bool:
        return self.process is not None and self.process.alive and not self.process.stopped and self.machine.powered

    def kill_agent(self) -> None:
        if self.process is not None and self.process.alive:
            self.world.log(f"the agent on {self.name} is killed")
            self.process.kill()

    def lose_power(self, seconds: float) -> None:
        self.world.log(f"{self.name} loses power for {seconds:.1f} s")
        self.machine.powered = False
        if self.process is not None:
            self.process.kill()
        for part in self.parts.values():
            part.finish("lost", outcomes.cause(self.name, NODE_REBOOTED, "it was rebooted", when=START_OF_TIME))

        def back() -> None:
            self.world.log(f"{self.name} is back")
            self.machine.boot()

        self.world.scheduler.at(seconds, back)

    def ended(self, outcome: Outcome) -> None:
        """The run, as this host records it."""
        if self.disk.exit is None:
            self.disk.exit = {"state": outcome.state, "cause": outcome.cause}
            self.world.log(f"{self.name} records the end: {outcome.state}, {_brief(outcome.cause)}")
            self.world.recorded(self)


def _brief(cause: Mapping[str, Any] | None) -> str:
    return "no cause" if cause is None else f"{cause['host']} {cause['reason']}"
