"""A simulated host of a run with restarts: its clock, its disk, its agent's state, and guardian, supervisor and ranks.

The agent is the product's own ``step``; the simulation carries out its decisions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ddpctl_worker.agent import state as st
from ddpctl_worker.agent import step as rules
from ddpctl_worker.agent.part import shorten_progress
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.record.document import Ballot, CheckpointChoice
from ddpctl_worker.wire.contract import EXITED, FAILED, KILLED, NODE_LOST, NODE_REBOOTED, SPAWN_FAILED

if TYPE_CHECKING:
    from tests.simulator.agents import AgentWorld

START_OF_TIME = 1_767_225_600.0  # Unix seconds: 2026-01-01
LOOK_S = 0.2  # between two looks of a supervisor, at its lease too
SILENT_S = 30.0  # a host gives up asking the first host of an attempt


class DiskFull(Exception):
    """The disk takes nothing."""


class Disk:
    """What is left when the agent is gone, and when the power was."""

    def __init__(self, ballot: Ballot) -> None:
        self.ballot = ballot
        self.exit: dict[str, Any] | None = None
        self.stop: dict[str, Any] | None = None
        self.full = False
        self.reserve = True  # room for a single change on a full disk


class Ranks:
    """Guardian, supervisor and ranks of an attempt on one host. They outlive the agent, and end with their lease."""

    def __init__(self, host: Host, hosts: tuple[str, ...], number: int, lease: float) -> None:
        self._host, self._world = host, host.world
        self.number, self.hosts, self.until = number, hosts, lease
        self.end: dict[str, Any] | None = None
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
            self._world.log(f"the ranks of attempt {self.number} end on {self._host.name}: {state}, {in_short(cause)}")
            self._world.finished(self._host, self.number)

    def fail(self) -> None:
        self.finish(FAILED, self._host.cause(EXITED, f"a rank of attempt {self.number} failed"))

    def _look(self) -> None:
        if self.end is not None:
            return
        world, choose = self._world, self._world.random
        if self._host.suspended:
            world.after(LOOK_S, self._look)
            return
        if self._host.clock() > self.until and self._dies_at is None and world.leases_end:
            late = choose.uniform(1.5, 2.2) if world.now < self.stopped_until else choose.uniform(0.02, 0.6)
            self._dies_at = world.now + late
        if self._dies_at is not None and world.now >= self._dies_at:
            self.finish(FAILED, self._host.cause(NODE_LOST, "its lease is over"))
            return
        missed = None if self._host.name in world.mute else self._missed()
        if missed is None:
            self._missed_at = None
        elif self._missed_at is None:
            ended = self._has_ended(missed)
            self._missed_at = world.now + (choose.uniform(0.3, 3.0) if ended else choose.uniform(5.0, 15.0))
        elif world.now >= self._missed_at:
            self.finish(FAILED, dict(self._host.cause(NODE_LOST, "it is lost"), host=missed))
            return
        world.after(LOOK_S, self._look)

    def _missed(self) -> str | None:
        """A host of the attempt whose part has ended, or that is out of reach: what the gang finds out sooner or later.
        A host whose part has not begun is waited for."""
        others = [name for name in self.hosts if name != self._host.name]
        gone = (name for name in others if not self._world.reach(self._host.name, name) or self._has_ended(name))
        return next(gone, None)

    def _has_ended(self, name: str) -> bool:
        ranks = self._world.hosts[name].ranks.get(self.number)
        return ranks is not None and not ranks.runs


class Preparation:
    """What the agent's threads leave of this host's part of an attempt."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.moved = 0
        self.reaches: tuple[str, ...] | None = None
        self.choice: CheckpointChoice | None = None
        self.restored = False
        self.called_off = False
        self.failed: dict[str, Any] | None = None


class Host:
    """A machine, its disk, and the programs that run on it. ``agent``: None once it is gone, for good."""

    def __init__(self, world: AgentWorld, name: str, config: st.Config, ballot: Ballot) -> None:
        self.world, self.name, self.config = world, name, config
        self.rate = 1.0 + world.random.uniform(-world.drift, world.drift)
        self._shift = world.random.uniform(10.0, 1e5)
        self.powered = True
        self.stopped = False  # the agent's process
        self.suspended = False  # the whole machine
        self.woke = float("-inf")
        self.held: list[Callable[[], None]] = []  # the messages that reach it once it is continued
        self.disk = Disk(ballot)
        self.ranks: dict[int, Ranks] = {}
        self.part: Preparation | None = None
        self.note: str | None = None
        self.told: list[Mapping[str, Any]] = []  # the notifiers
        self.met: dict[str, float] = {}  # when its agent last reached each host, itself included
        self.agent: st.State | None = rules.begin(config, ballot, self.clock())
        world.after(world.random.random() * LOOK_S, self._look)

    def clock(self) -> float:
        return self._shift + self.world.now * self.rate

    @property
    def answers(self) -> bool:
        return self.agent is not None and not self.stopped and self.powered

    @property
    def leads(self) -> bool:
        return self.answers and self.agent is not None and self.agent.lead is not None

    def cause(self, reason: str, text: str) -> dict[str, Any]:
        return outcomes.cause(self.name, reason, text, when=START_OF_TIME + self.world.now)

    # --- the agent

    def happen(self, fact: st.Fact) -> Mapping[str, Any] | None:
        """A step of the agent; its reply, if it has replied. Raises DiskFull."""
        assert self.agent is not None
        event = st.Event(self.clock(), START_OF_TIME + self.world.now, self.world.random.random(), fact)
        state, actions = rules.step(self.agent, event)
        for action in actions:
            if isinstance(action, st.Save):
                self._save(action.ballot)
        if self.agent is None:  # it was killed while it wrote
            return None
        self.agent = state
        reply = None
        for action in actions:
            if isinstance(action, st.Reply):
                reply = action.answer
            elif not isinstance(action, st.Save):
                self._carry_out(action)
        return reply

    def _look(self) -> None:
        if self.agent is None:
            return
        self.world.after(LOOK_S * self.world.random.uniform(0.7, 1.5), self._look)
        if self.stopped:
            return
        disk = self.disk
        stop = disk.stop if disk.stop is not None else ({} if disk.exit is not None else None)
        with contextlib.suppress(DiskFull):
            self.happen(st.Looked(stop, self._progress()))

    def _progress(self) -> st.PartProgress | None:
        part = self.part
        if part is None:
            return None
        ranks = self.ranks.get(part.number)
        end = shorten_progress(ranks.end, part.called_off) if ranks is not None else shorten_progress(part.failed)
        return st.PartProgress(part.number, part.moved, part.reaches, part.choice, part.restored, end)

    def _save(self, ballot: Ballot) -> None:
        self.world.maybe_crash(self, "before the disk had it")
        if self.disk.full and not self.disk.reserve:
            raise DiskFull
        if self.agent is None:
            return
        self.disk.reserve = not self.disk.full
        self.disk.ballot = Ballot.from_json(ballot.to_json())
        self.world.maybe_crash(self, "after the disk had it")

    def _carry_out(self, action: st.Action) -> None:
        world = self.world
        if isinstance(action, st.Ask):
            for other in action.hosts:
                world.ask(self, other, action.question)
        elif isinstance(action, st.Renew):
            if world.leases_are_renewed:
                self.ranks[action.number].until = max(self.ranks[action.number].until, action.until)
        elif isinstance(action, st.StartPart):
            self._start(action)
        elif isinstance(action, (st.Collect, st.Choose, st.RestorePart)):
            self._prepare(action)
        elif isinstance(action, st.CallOff):
            self._call_off(action.number)
        elif isinstance(action, st.Drop):
            self.part = None
        elif isinstance(action, st.CheckLinks):
            cut = [(a, b) for a in action.hosts for b in action.hosts if a < b and not world.reach(a, b)]
            checked = st.LinksChecked(action.mark, frozenset(frozenset(pair) for pair in cut))
            world.later(self, lambda: checked)
        elif isinstance(action, st.FindPorts):
            ports = world.free_ports() if world.reach(self.name, action.host) else None
            world.later(self, lambda: st.PortsFound(action.mark, action.host, ports))
        elif isinstance(action, st.Say):
            self.note = action.note
        elif isinstance(action, st.Announce):
            self.told.append(action.event)
        elif isinstance(action, st.EndRun):
            self._end(action)
        elif isinstance(action, st.Log):
            world.log(f"{self.name}: {action.text}")

    def _start(self, action: st.StartPart) -> None:
        assert self.agent is not None
        last = self.agent.document.last
        if self.part is None or self.part.number != action.number:
            self.part = Preparation(action.number)
        self.ranks[action.number] = Ranks(self, last.hosts, action.number, action.until)
        self.world.started(self, last)

    def _prepare(self, action: st.Collect | st.Choose | st.RestorePart) -> None:
        if isinstance(action, st.Collect):
            self.part = Preparation(action.number)
        part, world = self.part, self.world
        if part is None or part.number != action.number:
            return

        def is_done() -> None:
            if self.agent is None or self.part is not part:
                return
            if isinstance(action, st.Collect):
                others = [name for name in world.hosts if name not in action.hosts]
                part.reaches = tuple(name for name in others if world.reach(self.name, name))
            elif isinstance(action, st.Choose):
                part.choice = world.choose(self, action.number)
            elif world.knows_choice(action.hosts[0], action.choice):
                part.restored = True
                world.restored(self, action.number, action.choice)
            else:
                world.after(SILENT_S, lambda: self._fail_preparation(part))

        world.after(world.random.choice([0.05, 0.5, 4.0]) * world.random.random(), is_done)

    def _fail_preparation(self, part: Preparation) -> None:
        cause = self.cause(SPAWN_FAILED, "the checkpoint to resume from cannot be had")
        part.failed = {"state": FAILED, "cause": cause, "ended": "", "survivors": []}

    def _call_off(self, number: int) -> None:
        part, ranks, choose = self.part, self.ranks.get(number), self.world.random
        if part is None or part.number != number or part.called_off or ranks is None:
            return
        part.called_off = True
        killed = outcomes.killed(self.name, "ddpctl", when=START_OF_TIME + self.world.now).cause
        seconds = choose.choice([0.3, 6.0]) * choose.uniform(0.3, 1.0)
        self.world.after(seconds, lambda: ranks.finish(KILLED, killed))

    def _end(self, action: st.EndRun) -> None:
        cause = None if action.cause is None else dict(action.cause)
        for ranks in self.ranks.values():
            ranks.finish(KILLED, cause)
        self.agent = None
        self.record_end(action.state, cause)

    def record_end(self, state: str, cause: dict[str, Any] | None) -> None:
        """The run, as this host records it."""
        if self.disk.exit is None:
            self.disk.exit = {"state": state, "cause": cause}
            self.world.log(f"{self.name} records the end: {state}, {in_short(cause)}")
            self.world.recorded(self)

    # --- accidents

    def kill_agent(self, when: str = "") -> None:
        if self.agent is not None:
            self.world.log(f"the agent on {self.name} is killed {when}")
            self.agent = None

    def stop_agent(self, seconds: float) -> None:
        self.world.log(f"the agent on {self.name} is stopped for {seconds:.1f} s")
        self.stopped = True
        self.world.after(seconds, self.continue_agent)

    def continue_agent(self) -> None:
        self.stopped, held, self.held = False, self.held, []
        for happen in held:
            happen()

    def suspend(self, seconds: float, clock_stops: bool) -> None:
        """The whole machine pauses, as a laptop does, or as a guest of a hypervisor: then its clock stops, too."""
        self.world.log(f"{self.name} is suspended for {seconds:.1f} s")
        self.stopped = self.suspended = True

        def wake() -> None:
            self.world.log(f"{self.name} wakes up")
            if clock_stops:
                self._shift -= seconds * self.rate
            self.suspended, self.woke = False, self.world.now
            self.met = dict.fromkeys(self.world.hosts, self.world.now)  # a moment of contact is enough for a lease
            self.continue_agent()

        self.world.after(seconds, wake)

    def lose_power(self, seconds: float) -> None:
        self.world.log(f"{self.name} loses power for {seconds:.1f} s")
        self.powered, self.agent = False, None
        for ranks in self.ranks.values():
            ranks.finish("lost", self.cause(NODE_REBOOTED, "it was rebooted"))

        def come_back() -> None:
            self.world.log(f"{self.name} is back")
            self.powered = True

        self.world.after(seconds, come_back)


def in_short(cause: Mapping[str, Any] | None) -> str:
    return "no cause" if cause is None else f"{cause['host']} {cause['reason']}"
