"""The agents of a run on 2 to 64 hosts, with faults from a seed.

Time is simulated, and a single queue orders all events, so the seed decides everything. The promises that
must hold whatever happens are in promises.py.
"""

from __future__ import annotations

import contextlib
import copy
import heapq
import itertools
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ddpctl_worker.agent import state as st
from ddpctl_worker.agent.policy import Rules
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.record.document import AgreedAttempt, Ballot, CheckpointChoice, Document
from ddpctl_worker.wire.contract import KILLED
from tests.simulator.host import START_OF_TIME, DiskFull, Host
from tests.simulator.promises import Promises

ASK_S = 2.0  # an answer that takes longer is not waited for (agent/talk.py)
CHECK_S = 0.25
GOES_ON_S = 90.0  # within this a majority that is whole again runs the job, or has ended it


@dataclass(frozen=True)
class Profile:
    """Which faults there are, for how many seconds, and how often."""

    name: str
    kinds: tuple[str, ...]
    seconds: float = 60.0
    pauses: tuple[float, ...] = (0.5, 2.0, 6.0, 15.0)  # at most, before the next fault
    sizes: tuple[int, ...] = (2, 3, 3, 3, 4, 4, 5)
    crashes: float = 0.0  # while an agent writes to its disk
    delays: tuple[float, ...] = (0.002, 0.01, 0.1)
    losses: tuple[float, ...] = (0.0, 0.0, 0.02)
    lates: tuple[float, ...] = (0.0, 0.01)
    mute: float = 0.3  # how often the gang says nothing, so that only the lease ends ranks
    drift: float = 0.03
    resumes: float = 0.5  # how often the job has checkpoints


CALM = Profile("calm", (), pauses=(30.0,), losses=(0.0,), lates=(0.0,), sizes=(2, 3, 4, 5))
CUTS = ("split", "isolate", "isolate", "one way", "heal", "heal", "flap")
MIXED = Profile("mixed", (*CUTS, "agent", "power", "stop", "stop", "supervisor", "fail", "fail", "disk"))
# One compound fault at a time, and mute gangs: what the leases alone must hold.
SHARP = Profile(
    "sharp",
    ("isolate+fail", "isolate+fail", "isolate", "half", "stop", "agent", "power"),
    90.0,
    (40.0,),
    (3, 3, 4, 5),
    mute=0.0,
)
KILLS = Profile("kill", ("kill", "isolate", "heal", "agent", "fail", "stop"), pauses=(15.0,))
CRASHES = Profile("crash", ("fail", "isolate", "heal", "flap", "fail"), crashes=0.01, sizes=(3, 4, 5, 7))
ELECTIONS = Profile("elections", ("leader", "flap", "flap", "split", "heal", "heal", "fail"), sizes=(3, 4, 5, 7))
ROLLBACKS = Profile("rollback", ("leader", "leader+fail", "fail", "flap", "heal"), 120.0, (8.0,), (4, 5, 5, 7))
BOUNDS = Profile("bound", ("pair of the leader", "heal", "fail"), 120.0, (15.0,), (3, 4, 5), losses=(0.0,), mute=1.0)
CLOCKS = Profile("clocks", ("isolate+fail", "isolate", "half", "flap"), 90.0, (30.0,), (3, 4, 5), drift=0.083)
SUSPENDS = Profile("suspend", ("suspend", "suspend", "isolate+fail", "flap"), 90.0, (30.0,), (3, 4, 5), mute=1.0)
# A guest whose clock stops cannot know that its lease is over; decision 7 says for how long.
PAUSES = Profile("pause", ("pause", "pause", "isolate+fail", "flap"), 90.0, (30.0,), (3, 4, 5), mute=1.0)
PROFILES = (MIXED, SHARP, CALM, KILLS, CRASHES, ELECTIONS, ROLLBACKS, BOUNDS, CLOCKS, SUSPENDS, PAUSES)


class AgentWorld:
    """One run. ``leases_are_renewed`` and ``leases_end`` are False where a fault of the product is put in."""

    leases_are_renewed = leases_end = True

    def __init__(self, seed: int, profile: Profile) -> None:
        self.seed, self.profile = seed, profile
        self.random = choose = random.Random(f"agents {profile.name} {seed}")
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self.trace: list[str] = []
        self.cut: set[tuple[str, str]] = set()  # pairs of hosts, in one direction
        self.delay, self.loss = choose.choice(profile.delays), choose.choice(profile.losses)
        self.late, self.drift = choose.choice(profile.lates), profile.drift
        names = [f"n{number}" for number in range(choose.choice(profile.sizes))]
        nodes = choose.randint(1, len(names))
        self.rules = Rules(tuple(names), nodes, choose.randint(1, nodes), restarts=1000)
        self.resumes = choose.random() < profile.resumes
        first = AgreedAttempt(1, self.first_hosts(names, nodes), 1, 2, "2026-01-01T00:00:00+00:00")
        ballot = Ballot.first(names[0], Document((first,), True, 1))
        self.mute = set(names) if choose.random() < profile.mute else set()  # only the lease ends their ranks
        self._ports = itertools.count(30000, 2)
        self._choices = itertools.count(1)
        self._chosen: dict[str, str] = {}  # which host has made a choice
        self.faults = 0
        self.killed = False  # a user has asked for it
        self.kill_known = False  # every host has acknowledged it
        self.hosts: dict[str, Host] = {}
        for name in names:
            config = st.Config(name, tuple(names), self.rules, "train", 1, self.resumes, 5.0)
            self.hosts[name] = Host(self, name, config, copy.deepcopy(ballot))
        self.log(f"{profile.name}: hosts {len(names)}, of an attempt {nodes}, at least {self.rules.least}")
        self.log(f"delay {self.delay} s, loss {self.loss}, resumes: {self.resumes}, mute: {sorted(self.mute)}")
        self.promises = Promises(self)

    @staticmethod
    def first_hosts(names: list[str], nodes: int) -> tuple[str, ...]:
        """Of the first attempt."""
        return tuple(names[:nodes])

    # --- the run of the simulation

    def play(self) -> list[str]:
        """Everything that happens under this seed; the violations."""
        self._plan()
        self.after(CHECK_S, self._check)
        self.run(self.profile.seconds)
        self._calm_down()
        until = self.profile.seconds + GOES_ON_S
        while self.now < until and not self.violations and not self.promises.is_settled():
            self.run(self.now + 1.0)
        if not self.violations:
            self.promises.judge_the_end()
        return self.violations

    @property
    def violations(self) -> list[str]:
        return self.promises.violations

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + seconds, next(self._count), do))

    def run(self, until: float) -> None:
        while self._queue and self._queue[0][0] <= until:
            self.now, _, do = heapq.heappop(self._queue)
            do()
        self.now = until

    def log(self, text: str) -> None:
        self.trace.append(f"{self.now:9.3f} {text}")

    def _check(self) -> None:
        self.promises.check()
        if not self.violations:
            self.after(CHECK_S, self._check)

    # --- the network

    def reach(self, one: str, other: str) -> bool:
        powered = self.hosts[one].powered and self.hosts[other].powered
        return powered and (one, other) not in self.cut and (other, one) not in self.cut

    def ask(self, host: Host, other: str, question: Mapping[str, Any]) -> None:
        """A question to another host's agent; an answer that comes in time happens to ``host``."""
        peer, asked = self.hosts[other], host.clock()
        carried = json.loads(json.dumps(question))

        def arrive() -> None:
            if (host.name, other) in self.cut or not peer.powered or peer.agent is None:
                return
            if peer.stopped:
                peer.held.append(arrive)
                return
            try:
                answer = peer.happen(st.PeerAsked(host.name, carried))
            except DiskFull:
                return
            if answer is not None:
                came = json.loads(json.dumps(answer))
                self._carry(lambda: come_back(came))

        def come_back(answer: Mapping[str, Any]) -> None:
            if (other, host.name) in self.cut or not host.powered or host.agent is None:
                return
            if host.stopped:
                host.held.append(lambda: come_back(answer))
            elif host.clock() - asked <= ASK_S:
                self._happen(host, st.PeerAnswered(other, carried, answer, asked))

        self._carry(arrive)

    def later(self, host: Host, fact: Callable[[], st.Fact]) -> None:
        """What a thread of the agent finds out."""

        def happen() -> None:
            if host.agent is None:
                return
            if host.stopped:
                host.held.append(happen)
            else:
                self._happen(host, fact())

        self.after(self.random.uniform(0.1, 1.0), happen)

    @staticmethod
    def _happen(host: Host, fact: st.Fact) -> None:
        with contextlib.suppress(DiskFull):
            host.happen(fact)

    def _carry(self, arrive: Callable[[], None]) -> None:
        if self.random.random() < self.loss:
            return
        late = 2.5 * self.random.random() if self.random.random() < self.late else 0.0
        self.after(self.delay * self.random.uniform(0.5, 1.5) + late, arrive)

    # --- what the hosts do

    def free_ports(self) -> tuple[int, int]:
        port = next(self._ports)
        return port, port + 1

    def choose(self, host: Host, number: int) -> CheckpointChoice:
        """Another change each time: what is saved may have changed."""
        choice = CheckpointChoice(f"choice {next(self._choices)} for {number}", ())
        self._chosen[choice.digest] = host.name
        return choice

    def knows_choice(self, first: str, choice: CheckpointChoice) -> bool:
        return self._chosen.get(choice.digest) == first and self.hosts[first].agent is not None

    def restored(self, host: Host, number: int, choice: CheckpointChoice) -> None:
        self.promises.see_restored(host.name, number, choice)

    def started(self, host: Host, attempt: AgreedAttempt) -> None:
        self.log(f"attempt {attempt.number} starts on {host.name}")
        self.promises.see_start(host.name, attempt)

    def finished(self, host: Host, number: int) -> None:
        if self.profile is CALM and not self.killed:
            self.promises.fail(f"attempt {number} ended on {host.name} without a fault")

    def recorded(self, host: Host) -> None:
        self.promises.see_end(host)

    def maybe_crash(self, host: Host, when: str) -> None:
        alive = sum(one.agent is not None for one in self.hosts.values())
        if 2 * (alive - 1) <= len(self.hosts) or self.now >= self.profile.seconds:
            return  # what is left could not go on
        if self.random.random() < self.profile.crashes:
            self.faults += 1
            host.kill_agent(when)

    # --- faults

    def _plan(self) -> None:
        when, kinds = 3.0, self.profile.kinds
        while kinds and when < self.profile.seconds:
            self.after(when, partial(self._fault, self.random.choice(kinds)))
            when += 0.1 + self.random.choice(self.profile.pauses) * self.random.uniform(0.2, 1.0)

    def _fault(self, kind: str) -> None:
        choose, names = self.random, list(self.hosts)
        host = self.hosts[choose.choice(names)]
        self.faults += 1
        if self.profile is SHARP:
            live = [one for one in self.hosts.values() if any(ranks.runs for ranks in one.ranks.values())]
            host = choose.choice(live or [host])
            self.mute = {host.name}
        long = choose.choice([2.0, 6.0, 12.0, 20.0, 30.0]) * choose.uniform(0.7, 1.3)
        if kind in ("split", "half"):
            count = len(names) // 2 if kind == "half" else choose.randint(1, len(names))
            side = set(choose.sample(names, count))
            self.cut_links({(a, b) for a in names for b in names if (a in side) != (b in side)}, f"{sorted(side)}")
            if kind == "half":
                self.after(long, self.heal)
        elif kind.startswith("isolate"):
            self.cut_links(self.around(host.name), host.name)
            if self.profile in (SHARP, CLOCKS):
                self.after(long, self.heal)
            if kind.endswith("fail"):
                self.after(choose.uniform(0.0, 4.0), lambda: self._fail_rank(but=host))
        elif kind == "one way":
            other = choose.choice(names)
            self.cut_links({(host.name, other)} - {(other, other)}, f"{host.name} to {other}")
        elif kind == "flap":
            fresh = self.around(host.name) - self.cut
            self.cut_links(fresh, f"{host.name} for a while")
            self.after(choose.uniform(0.5, 12.0), lambda: self._restore_links(fresh))
        elif kind == "heal":
            self.heal()
        elif kind == "agent":
            host.kill_agent()
        elif kind.startswith("leader"):
            self._isolate_leader(long)
            if kind.endswith("fail"):
                self.after(choose.uniform(0.0, 3.0), self._fail_rank)
        elif kind == "pair of the leader":
            self._lose_a_follower_of_the_leader()
        elif kind == "power" and host.powered:
            host.lose_power(long)
        elif kind == "stop" and host.agent is not None and not host.stopped:
            host.stop_agent(long)
        elif kind in ("suspend", "pause") and not host.stopped and host.powered:
            host.suspend(long, clock_stops=kind == "pause")
        elif kind == "supervisor":
            for ranks in host.ranks.values():
                ranks.stopped_until = self.now + long
            self.log(f"the supervisor on {host.name} is stopped for {long:.1f} s")
        elif kind == "fail":
            self._fail_rank()
        elif kind == "disk":
            self.log(f"the disk of {host.name} is full for {long:.1f} s")
            host.disk.full = True
            self.after(long, lambda: setattr(host.disk, "full", False))
        elif kind == "kill" and not self.killed:
            self.kill()

    def around(self, name: str) -> set[tuple[str, str]]:
        return {(a, b) for a in self.hosts for b in self.hosts if a != b and name in (a, b)}

    def cut_links(self, pairs: set[tuple[str, str]], text: str) -> None:
        self.log(f"cut: {text}")
        self.promises.note_reached()  # a link may have worked for less time than there is between two checks
        self.cut |= pairs

    def _restore_links(self, pairs: set[tuple[str, str]]) -> None:
        self.cut -= pairs

    def heal(self) -> None:
        self.log("the network is whole")
        self.cut = set()

    def leaders(self) -> list[Host]:
        return [host for host in self.hosts.values() if host.leads]

    def _isolate_leader(self, seconds: float) -> None:
        for host in self.leaders():
            self.cut_links(self.around(host.name), f"{host.name}, which leads")
            self.after(seconds, self.heal)

    def _lose_a_follower_of_the_leader(self) -> None:
        """It stands for election. If another host leads, the earlier leader is cut off at once: its lease runs."""
        leaders = self.leaders()
        if len(leaders) != 1:
            return
        old = leaders[0]
        other = self.random.choice([name for name in self.hosts if name != old.name])
        self.cut_links({(old.name, other), (other, old.name)}, f"between {old.name}, which leads, and {other}")

        def watch(left: int) -> None:
            fresh = [host for host in self.leaders() if host is not old]
            if fresh:
                self.cut_links(self.around(old.name), f"{old.name}, which led")
                self.log(f"{fresh[0].name} leads now")
                self.after(0.5, lambda: self._fail_rank(but=old))
            elif left:
                self.after(0.05, lambda: watch(left - 1))

        watch(400)

    def _fail_rank(self, but: Host | None = None) -> None:
        hosts = [host for host in self.hosts.values() if host is not but]
        live = [ranks for host in hosts for ranks in host.ranks.values() if ranks.runs]
        if live:
            self.random.choice(live).fail()

    def kill(self) -> None:
        """As `ddpctl kill` does, on every host; it asks until each has acknowledged."""
        self.killed = True
        self.log("somebody kills the run")
        left = set(self.hosts)

        def ask(host: Host) -> None:
            if host.powered and host.disk.exit is None and host.disk.stop is None:
                host.disk.stop = {"by": "me", "grace": 1.0}
            if host.powered and host.agent is None and host.disk.exit is None:
                cause = outcomes.killed(host.name, "me", when=START_OF_TIME + self.now).cause
                for ranks in host.ranks.values():
                    ranks.finish(KILLED, cause)
                host.record_end(KILLED, cause)
            if host.powered and host.disk.exit is not None and not any(ranks.runs for ranks in host.ranks.values()):
                left.discard(host.name)
                if not left:
                    self.log("the kill is acknowledged by all")
                    self.kill_known = True
            else:
                self.after(0.5, lambda: ask(host))

        for host in self.hosts.values():
            self.after(self.random.choice([0.1, 5.0]) * self.random.random(), partial(ask, host))

    def _calm_down(self) -> None:
        self.heal()
        self.log("no more faults")
        self.loss = self.late = 0.0
        for host in self.hosts.values():
            host.disk.full = False
            if host.stopped and not host.suspended:
                host.continue_agent()
