"""The supervisors of a run on 2 to 7 hosts watch each other: hub, members and the decision to end are the product's."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from ddpctl_worker.gang.base import Gang
from ddpctl_worker.gang.hub import HubGang
from ddpctl_worker.gang.member import MemberGang
from ddpctl_worker.machine import notes
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.record.outcome import Outcome
from ddpctl_worker.run.deadlines import Deadlines
from ddpctl_worker.run.ending import Ending
from ddpctl_worker.run.limits import VERDICT_S
from ddpctl_worker.wire.contract import (
    EXITED,
    FAILED,
    KILLED,
    KILLED_BY_USER,
    LINK_LOST,
    NODE_LOST,
    RENDEZVOUS_TIMEOUT,
    SUCCEEDED,
    SUPERVISOR_LOST,
)
from tests.simulator.network import Network, SimSockets
from tests.simulator.schedule import Machine, Process, Scheduler

PORT = 29400
KEY = b"k" * 32
TURN_S = 0.5
SETTLED_S = 8.0  # after the start: all nodes have met
# Within this all nodes know of it: as in docs/architecture.md; and LATE_S for beat, verdict and a late connection.
LATE_S = 4.0
WITHIN_S = {
    "a rank fails": 5.0,
    "victims speak first": 8.0,
    "a node loses power": 12.0,
    "a node is cut off": 12.0,
    "a node stands still": 12.0,
    "a supervisor is killed": 5.0,
    "a loop is stuck": 10.0,
    "a kill on one node": 5.0,
    "a node never comes": 25.0,  # the start has 20 s, and the hub speaks first
    "a cut at the start": 25.0,
}
COSTS_NOTHING = ("nothing", "a short cut", "a short stop", "all stand still", "a fault in the hub")
ENDS_WELL = ("all succeed", "a short run")
KINDS = (*WITHIN_S, *COSTS_NOTHING, *ENDS_WELL)


class NoCuts:
    """In place of the watch over the kernel's tables of connections."""

    def __init__(self, *_: Any) -> None:
        self.here: list[str] = []
        self.known: dict[str, list[str]] = {}

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def meet(self, host: str, addresses: list[str]) -> None:
        self.known[host] = addresses

    def dial(self, host: str, end: Any) -> None:
        pass


class Node:
    """A supervisor: its gang and its decisions are real, launcher and ranks are not."""

    def __init__(self, world: GangWorld, name: str) -> None:
        self.world, self.name = world, name
        choose = world.random
        self.machine = Machine(world.scheduler, name, 1.0 + choose.uniform(-0.02, 0.02), choose.uniform(10.0, 1e5))
        self.process = Process(self.machine, f"supervisor of {name}")
        self.status: int | None = None  # of the launcher
        self.own: Outcome | None = None  # the failure on this node
        self.any = True  # whether it has ranks
        self.deaths: dict[int, Any] = {}
        self.outcome: Outcome | None = None
        self.ended_at: float | None = None
        self.stuck_for = 0.0
        self._stopping = False
        self.woken = threading.Event()

    def start(self) -> None:
        world = self.world
        place = {"hub_host": world.names[0], "hub_addr": world.names[0], "port": PORT, "bind_addr": self.name}
        run: Any = {"run": "run-1", "host": self.name, "hosts": world.names, "gang": place, "nnodes": len(world.names)}
        run["timeouts"] = {"start": 20.0, "stop": 2.0, "silence": None, "silence_enforced": False}
        clock, sockets = self.process.clock, SimSockets(self.process, world.network)
        kind = world.hub_kind if self.name == world.names[0] else world.member_kind
        self.gang: Gang = kind(run, KEY, self.woken.set, clock, sockets, NoCuts)
        findings: Any = self
        self._ending = Ending(self.name, findings, self.gang, lambda: None, clock)
        self._deadlines = Deadlines(run, clock)
        clock.thread(self._supervise, "supervisor").start()

    # --- what the real supervisor sees of its ranks

    def failure(self, status: int | None) -> Outcome | None:
        return self.own

    def find_slow_rank(self, candidate: Outcome | None) -> Outcome | None:
        return None

    likeliest_failure = find_slow_rank  # both: nothing more is found

    def all_ended(self) -> bool:
        return False

    def fail(self, *, victim: bool = False) -> None:
        text = "Connection closed by peer" if victim else "boom"
        why = outcomes.cause(self.name, EXITED, text, rank=0, exit_code=1)
        self.own = outcomes.failed(why, victim=victim, when=self.process.clock.wall())
        self.woken.set()

    def succeed(self) -> None:
        self.status = 0
        self.woken.set()

    def kill(self) -> None:
        self._ending.obey("alice")
        self.woken.set()

    # --- the loop

    def _supervise(self) -> None:
        clock, gang, ending = self.process.clock, self.gang, self._ending
        roster: Any = self
        overdue = partial(self._deadlines.overdue, roster, 0.0, gang)
        gang.start()
        while True:
            clock.wait(self.woken, TURN_S)
            self.woken.clear()
            if self.stuck_for:
                seconds, self.stuck_for = self.stuck_for, 0.0
                clock.sleep(seconds)
            ending.look(self.status, self._stopping, overdue)
            if not self._stopping and (ending.outcome is not None or (self.status is not None and ending.candidate)):
                self._stopping = True
                if self.status is None:
                    seconds = self.world.random.uniform(0.0, 1.0)
                    self.world.scheduler.at(seconds, self._ranks_have_ended)
            if ending.outcome is not None and self.outcome is None:
                self.outcome, self.ended_at = ending.outcome, self.world.scheduler.now
                self.world.log(f"{self.name} ends: {_brief(ending.outcome)}")
            if self.outcome is not None and self.status is not None:
                gang.leave(self.outcome)
            gang.note_turn(None, 1 if self.status is None else 0)
            if self.outcome is not None and self.status is not None and not gang.talking:
                break
        self.world.log(f"the supervisor on {self.name} has ended")
        self.process.kill()

    def _ranks_have_ended(self) -> None:
        self.status = -15 if self.status is None else self.status
        self.woken.set()


class GangWorld:
    """A run with a single fault, under a seed."""

    hub_kind: Callable[..., Gang] = HubGang
    member_kind: Callable[..., Gang] = MemberGang

    def __init__(self, seed: int, kind: str | None = None) -> None:
        self.seed = seed
        self.scheduler = Scheduler(seed)
        self.random = choose = random.Random(f"gang {seed}")
        self.kind = kind or KINDS[seed % len(KINDS)]
        self.network = Network(self.scheduler)
        self.network.delay = choose.choice([0.0005, 0.01, 0.05])
        self.network.loss = choose.choice([0.0, 0.0, 0.01])
        self.names = [f"n{i}" for i in range(choose.choice([2, 3, 3, 4, 5, 7]))]
        self.trace: list[str] = []
        self.violations: list[str] = []
        self.nodes = {name: Node(self, name) for name in self.names}
        self.network.machines = {name: node.machine for name, node in self.nodes.items()}
        self.chosen = self.nodes[choose.choice(self.names)]
        if self.kind == "a cut at the start" and self.chosen.name == self.names[0]:
            self.chosen = self.nodes[self.names[1]]
        self.fault_at = 0.0
        self.log(f"{self.kind} ({self.chosen.name} of {len(self.names)})")

    def log(self, text: str) -> None:
        self.trace.append(f"{self.scheduler.now:9.3f} {text}")

    def fail(self, text: str) -> None:
        self.violations.append(text)
        self.log(f"VIOLATION: {text}")

    def play(self) -> list[str]:
        notes.send_notes(lambda line: self.log("note: " + line.decode().rstrip("\n").partition(" ")[2]))
        try:
            self._begin()
            self.scheduler.run(self.fault_at)
            getattr(self, "_" + self.kind.replace(" ", "_"), self._nothing)()
            if self.kind in WITHIN_S:
                self._judge_an_end()
            elif self.kind in COSTS_NOTHING:
                self._judge_no_end()
            else:
                self._judge_success()
        finally:
            self.scheduler.close([node.process for node in self.nodes.values()])
            notes.send_notes(None)
        return self.violations

    def _begin(self) -> None:
        late = self.nodes[self.names[-1]] if self.kind == "a short run" else None
        for node in self.nodes.values():
            if self.kind == "a node never comes":
                node.any = False  # each launcher waits in the rendezvous
                if node is self.chosen:
                    continue
            if node is late:
                continue
            # In a short run the last node has ended before the hub listens.
            seconds = self.random.uniform(0.0, 3.0) + (4.0 if late is not None else 0.0)
            self.scheduler.at(seconds, node.start)
        if late is not None:
            self.scheduler.at(0.0, late.start)
            self.scheduler.at(1.0, late.succeed)
        if self.kind == "a cut at the start":
            self._isolate()
        at_start = self.kind in ("a node never comes", "a cut at the start")
        self.fault_at = 0.0 if at_start else SETTLED_S + self.random.uniform(0.0, 3.0)

    # --- the events

    def _nothing(self) -> None:
        self.scheduler.run(self.scheduler.now + 40.0)

    def _others(self) -> list[Node]:
        return [node for node in self.nodes.values() if node is not self.chosen]

    def _isolate(self) -> set[tuple[str, str]]:
        pairs = {(a, b) for a in self.names for b in self.names if a != b and self.chosen.name in (a, b)}
        self.network.cut |= pairs
        return pairs

    def _a_short_cut(self) -> None:
        """Of seven seconds, as documented; TCP itself would try again too late."""
        self._isolate()
        self.scheduler.run(self.scheduler.now + self.random.uniform(1.0, 7.0))
        self.network.cut = set()
        self.scheduler.run(self.scheduler.now + 20.0)

    def _a_short_stop(self) -> None:
        self.chosen.process.stop()
        self.scheduler.run(self.scheduler.now + self.random.uniform(1.0, 9.0))
        self.chosen.process.resume()
        self.scheduler.run(self.scheduler.now + 20.0)

    def _all_stand_still(self) -> None:
        """Machines that are suspended together: no node listened, so no node's silence counts."""
        for node in self.nodes.values():
            node.process.stop()
        self.scheduler.run(self.scheduler.now + self.random.uniform(13.0, 60.0))
        for node in self.nodes.values():
            self.scheduler.at(self.random.uniform(0.0, 0.5), node.process.resume)
        self.scheduler.run(self.scheduler.now + 20.0)

    def _a_fault_in_the_hub(self) -> None:
        """The hub's loop raises: it begins anew, and the nodes find each other again."""
        hub: Any = self.nodes[self.names[0]].gang
        hub._inbox.append(None)
        self.scheduler.run(self.scheduler.now + 20.0)

    def _a_rank_fails(self) -> None:
        self.chosen.fail()
        for node in self._others():
            if self.random.random() < 0.5:
                self.scheduler.at(self.random.uniform(0.0, 0.9), partial(node.fail, victim=True))

    def _victims_speak_first(self) -> None:
        for node in self._others():
            self.scheduler.at(self.random.uniform(0.0, 1.0), partial(node.fail, victim=True))
        self.scheduler.at(self.random.uniform(1.0, 6.0), self.chosen.fail)

    def _a_node_loses_power(self) -> None:
        self.chosen.machine.powered = False
        self.chosen.process.kill()

    def _a_node_is_cut_off(self) -> None:
        self._isolate()

    def _a_node_stands_still(self) -> None:
        self.chosen.process.stop()
        self.scheduler.at(self.random.uniform(25.0, 35.0), self.chosen.process.resume)

    def _a_supervisor_is_killed(self) -> None:
        self.chosen.process.kill()

    def _a_loop_is_stuck(self) -> None:
        self.chosen.stuck_for = 200.0
        self.chosen.woken.set()

    def _a_kill_on_one_node(self) -> None:
        self.chosen.kill()

    def _a_node_never_comes(self) -> None:
        pass

    def _a_cut_at_the_start(self) -> None:
        """Ranks run on both sides, as where only torch's own connections pass; the hub has never heard the node."""

    def _all_succeed(self) -> None:
        for node in self.nodes.values():
            self.scheduler.at(self.random.uniform(0.0, 4.0), node.succeed)

    def _a_short_run(self) -> None:
        """Longer than the start may take: the node that was there before the hub is not missing then."""
        self.scheduler.run(self.scheduler.now + 20.0)
        for node in self.nodes.values():
            node.succeed()

    # --- the promises

    def _judge_no_end(self) -> None:
        for node in self.nodes.values():
            if node.outcome is not None:
                self.fail(f"{node.name} ended without a fault: {_brief(node.outcome)}")

    def _judge_success(self) -> None:
        self.scheduler.run(self.scheduler.now + 30.0)
        for node in self.nodes.values():
            if node.outcome is None or node.outcome.state != SUCCEEDED:
                self.fail(f"{node.name} did not succeed: {_brief(node.outcome)}")
            elif node.process.alive:
                self.fail(f"the supervisor on {node.name} stays behind")

    def _judge_an_end(self) -> None:
        """Every node that can know ends in time, and all name the same cause."""
        within = WITHIN_S[self.kind] + LATE_S
        if self.kind == "a node never comes" and self.chosen.name == self.names[0]:
            within += VERDICT_S  # no node decides without a hub: each member does so by itself
        begun, chosen = self.fault_at, self.chosen
        self.scheduler.run(begun + within + 1.0)
        reason = {
            "a rank fails": EXITED,
            "victims speak first": EXITED,
            "a supervisor is killed": SUPERVISOR_LOST,
            "a loop is stuck": SUPERVISOR_LOST,
            "a kill on one node": KILLED_BY_USER,
            "a node never comes": RENDEZVOUS_TIMEOUT,
            "a cut at the start": RENDEZVOUS_TIMEOUT,
        }.get(self.kind, NODE_LOST)
        told = self.kind in ("a rank fails", "victims speak first", "a kill on one node")
        for node in self.nodes.values() if told else self._others():
            self._judge(node, reason, chosen.name, begun + within)
        if self.kind == "a node is cut off":
            # A node that it cannot reach is lost for it: the hub for a member, and for the hub some member.
            if chosen.outcome is None or chosen.ended_at is None or chosen.ended_at > begun + within:
                self.fail(f"{chosen.name} is cut off, and runs on")
        elif self.kind == "a cut at the start":
            self.scheduler.run(begun + within + VERDICT_S)
            self._judge(chosen, LINK_LOST, chosen.name, begun + within + VERDICT_S)
        elif self.kind == "a node stands still":
            self.scheduler.run(begun + 60.0)
            self._judge(chosen, NODE_LOST, chosen.name, begun + 60.0)

    def _judge(self, node: Node, reason: str, host: str, by: float) -> None:
        found = node.outcome
        if found is None or node.ended_at is None or node.ended_at > by:
            self.fail(f"{node.name} does not know of it in time")
            return
        why = found.cause or {}
        state = KILLED if reason == KILLED_BY_USER else FAILED
        if (found.state, why.get("host"), why.get("reason")) != (state, host, reason):
            self.fail(f"{node.name} says {_brief(found)} instead of {host} {reason}")


def _brief(outcome: Outcome | None) -> str:
    if outcome is None or outcome.cause is None:
        return "nothing" if outcome is None else outcome.state
    return f"{outcome.state}, {outcome.cause['host']} {outcome.cause['reason']}: {outcome.cause['message']}"
