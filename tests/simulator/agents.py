"""The agents of a run on 2 to 7 hosts, with faults that one seed decides, and what must hold whatever happens.

Not held by the product yet, and so not provoked or not looked at here:

- All hosts record the same end: one that is cut off records an end that nobody has agreed on (``recorded`` below).
- All hosts of an attempt choose the same checkpoint. The runs here have no checkpoints.
- More than ten hosts elect a leader within seconds.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ddpctl_worker import notes
from ddpctl_worker import outcome as outcomes
from ddpctl_worker.agent import talk
from ddpctl_worker.agent.agent import HostAgent
from ddpctl_worker.agent.quorum import Voter
from ddpctl_worker.contract import KILLED
from tests.simulator.host import Host, Part, Record
from tests.simulator.network import Network, SimSockets
from tests.simulator.schedule import Process, Scheduler

KEY = "ab" * 32
MINORITY_S = 17.0  # a host that reaches less than half of the hosts has no rank any more: lease, grace and kill
CHECK_S = 0.25
GOES_ON_S = 90.0  # within this a majority that is whole again runs the job, or has ended it
NAMES = ["n0", "n1", "n2", "n3", "n4", "n5", "n6"]


@dataclass(frozen=True)
class Profile:
    """Which faults there are, for how many seconds, and how often."""

    name: str
    kinds: tuple[str, ...]
    seconds: float = 60.0
    pauses: tuple[float, ...] = (0.5, 2.0, 6.0, 15.0)  # at most, before the next fault
    sizes: tuple[int, ...] = (2, 3, 3, 3, 4, 4, 5)
    delays: tuple[float, ...] = (0.002, 0.01, 0.1)
    losses: tuple[float, ...] = (0.0, 0.0, 0.02)
    lates: tuple[float, ...] = (0.0, 0.01)
    mute: float = 0.3  # how often the gang says nothing, so that only the lease ends ranks


CALM = Profile("calm", (), pauses=(30.0,), losses=(0.0,), lates=(0.0,), sizes=(2, 3, 4, 5))
CUTS = ("split", "isolate", "isolate", "one way", "heal", "heal", "flap")
MIXED = Profile("mixed", (*CUTS, "agent", "power", "stop", "supervisor", "fail", "fail", "disk"))
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
ELECTIONS = Profile("elections", ("leader", "flap", "flap", "split", "heal", "heal", "fail"), sizes=(3, 4, 5, 7))
PROFILES = (MIXED, SHARP, CALM, KILLS, ELECTIONS)


class AgentWorld:
    """One run. ``break_it`` is given each agent when it is made, and the disk of its host: faults of the product that
    the simulator must notice."""

    leases_are_renewed = leases_end = True

    def __init__(self, seed: int, profile: Profile, break_it: Callable[[Host], None] = lambda host: None) -> None:
        self.seed, self.profile, self._break = seed, profile, break_it
        self.scheduler = Scheduler(seed)
        self.random = choose = random.Random(f"agents {profile.name} {seed}")
        self.network = Network(self.scheduler)
        self.network.delay = choose.choice(profile.delays)
        self.network.loss, self.network.late = choose.choice(profile.losses), choose.choice(profile.lates)
        self.drift = 0.03
        self.trace: list[str] = []
        self.violations: list[str] = []
        self.processes: list[Process] = []
        self._ports = itertools.count(30000)
        names = NAMES[: choose.choice(profile.sizes)]
        nodes = choose.randint(1, len(names))
        least = choose.randint(1, nodes)
        members = [{"host": name, "nproc": 1, "address": name} for name in names]
        first = {"attempt": 1, "hosts": names[:nodes], "started": "", "ended": None, "master_port": 1, "gang_port": 2}
        first.update(cause=None, set_aside=[])
        place = {"hosts": members, "nodes": nodes, "least": least, "restarts": 1000, "first": first}
        self.run_record = {"run": "run-1", "job": "train", "attempt": 1, "timeouts": {"stop": 5}, "restart": place}
        value = {"attempts": [first], "live": True, "go": 1, "aside": {}, "over": None}
        saved = Voter.first(names[0], value)
        self.mute = set(names) if choose.random() < profile.mute else set()  # only the lease ends their ranks
        self.hosts = {name: Host(self, name, copy.deepcopy(saved)) for name in names}
        self.network.machines = {name: host.machine for name, host in self.hosts.items()}
        self.log(f"{profile.name}: hosts {len(names)}, of an attempt {nodes}, at least {least}")
        self.log(f"delay {self.network.delay} s, loss {self.network.loss}, mute: {sorted(self.mute)}")
        self._meanings: dict[int, Any] = {}
        self.over: str | None = None  # the state that was agreed on
        self.kill_known = False  # by every host
        self.killed = False  # somebody has asked for it
        self._failures = 0  # of ranks, put in
        self.faults = 0
        self._settles_at: float | None = None

    # --- the run of it

    def play(self) -> list[str]:
        """Everything that happens under this seed; the violations."""
        notes.send_notes(self._note)
        try:
            for host in self.hosts.values():
                self._begin(host)
            peers = {name: [name, host.agent._desk.port] for name, host in self.hosts.items()}
            for host in self.hosts.values():
                host.agent._line.peers.update({name: (at[0], at[1]) for name, at in peers.items()})
                self._work(host)
            self.peers = peers
            self._plan()
            self.scheduler.at(CHECK_S, self._check)
            chaos = self.profile.seconds
            self.scheduler.run(chaos)
            self._calm_down()
            until = chaos + GOES_ON_S
            while self.scheduler.now < until and not self.violations and not self._is_settled():
                self.scheduler.run(self.scheduler.now + 1.0)
            if not self.violations:
                self._judge_the_end()
        finally:
            self.scheduler.close(self.processes)
            notes.send_notes(None)
        return self.violations

    def log(self, text: str) -> None:
        self.trace.append(f"{self.scheduler.now:9.3f} {text}")

    def _note(self, line: bytes) -> None:
        """A note of the product; its time is that of the real clock."""
        self.log("note: " + line.decode().rstrip("\n").partition(" ")[2])

    def fail(self, text: str) -> None:
        if text not in self.violations:
            self.violations.append(text)
            self.log(f"VIOLATION: {text}")

    def _begin(self, host: Host) -> None:
        process = host.process = Process(host.machine, f"agent of {host.name}")
        self.processes.append(process)
        sockets = host.sockets = SimSockets(process, self.network, own_ports=True)
        run = dict(self.run_record, host=host.name)
        order = {"request": {"run": run, "gang_key": KEY, "copying": None}, "base": "/nonexistent", "umask": 0o077}
        desk = talk.AnswerDesk(
            talk.key_of(KEY), "run-1", host.name, list(self.hosts), host.name, process.clock, sockets
        )
        peers = {name: (name, 0) for name in self.hosts}
        own, saved = Record(host), copy.deepcopy(host.disk.agreed)
        host.agent = HostAgent(
            order,
            own,
            desk,
            peers,
            saved,
            process.clock,
            sockets,
            lambda top, number: Part(host, number),
            lambda request, channel: {"ports": [next(self._ports), next(self._ports)]},
        )
        self._break(host)

    def _work(self, host: Host) -> None:
        process, agent = host.process, host.agent
        assert process is not None

        def work() -> None:
            agent.work()
            process.kill()

        process.clock.thread(work, "agent").start()

    # --- what the hosts tell

    def started(self, host: Host, attempt: Any) -> None:
        number = int(attempt["attempt"])
        self.log(f"attempt {number} starts on {host.name}")
        meaning = (tuple(attempt["hosts"]), attempt["master_port"], attempt["gang_port"])
        if self._meanings.setdefault(number, meaning) != meaning:
            self.fail(f"attempt {number} has two meanings: {self._meanings[number]} and {meaning}")
        if host.name not in attempt["hosts"]:
            self.fail(f"attempt {number} starts on {host.name}, which is not in it")
        if self.over is not None:
            self.fail(f"attempt {number} starts on {host.name} after the end of the run was agreed on")
        if self.kill_known:
            self.fail(f"attempt {number} starts on {host.name} after the kill was acknowledged")
        self._check_attempts()

    def finished(self, host: Host, part: Any) -> None:
        if self.profile is CALM and not self.killed:
            self.fail(f"attempt {part.number} ended on {host.name} without a fault")

    def recorded(self, host: Host) -> None:
        """What a host records where nothing was agreed on may be another end than that of the run (a host that has
        waited for the others for long, and what ``_see_end`` does after TWO_ALONE_S). That the ends of all hosts are
        the same is not held yet, and so it is not looked at here."""

    # --- what must hold at any time

    def _check(self) -> None:
        self._check_attempts()
        self._check_minorities()
        self._check_agreement()
        if not self.violations:
            self.scheduler.at(CHECK_S, self._check)

    def _check_attempts(self) -> None:
        """One attempt runs ranks at a time, and never on a host that it has set aside."""
        live: dict[int, list[str]] = {}
        for host in self.hosts.values():
            for number, part in host.parts.items():
                if part.runs:
                    live.setdefault(number, []).append(host.name)
        if len(live) > 1:
            self.fail(f"two attempts run at once: {live}")

    def _check_minorities(self) -> None:
        for host in self.hosts.values():
            if not host.answers or 2 * len(self._reached(host.name)) < len(self.hosts):
                runs = [number for number, part in host.parts.items() if part.runs]
                apart = (self.scheduler.now - host.apart_since) * host.machine.rate
                if runs and apart > MINORITY_S:
                    self.fail(f"{host.name} is in a minority, and runs attempt {runs[0]} after {apart:.1f} s")
            else:
                host.apart_since = self.scheduler.now

    def _check_agreement(self) -> None:
        for host in self.hosts.values():
            if not host.answers:
                continue
            voter = host.agent._voter
            if not (voter.leads and voter.agreed):
                continue
            value = voter.paper.value
            over = value["over"]["state"] if value["over"] else None
            if self.over is not None and over != self.over:
                self.fail(f"the end that was agreed on was {self.over}, and is {over}")
            if over is not None and self.over is None:
                self.log(f"agreed on: the run is over, {over}")
                self.over = over
            last = value["attempts"][-1]
            aside = [one for one in last["hosts"] if one in value["aside"]]
            if value["live"] and last["ended"] is None and aside:
                self.fail(f"{aside[0]} was set aside, and is in attempt {last['attempt']}")

    def reach(self, one: str, other: str) -> bool:
        cut, machines = self.network.cut, self.network.machines
        powered = machines[one].powered and machines[other].powered
        return powered and (one, other) not in cut and (other, one) not in cut

    def _reached(self, name: str) -> set[str]:
        """The hosts whose agents this one reaches, over others too."""
        found, left = {name}, [name]
        while left:
            one = left.pop()
            for other, host in self.hosts.items():
                if other not in found and host.answers and self.reach(one, other):
                    found.add(other)
                    left.append(other)
        return found

    # --- faults

    def _plan(self) -> None:
        when, kinds = 3.0, self.profile.kinds
        while kinds and when < self.profile.seconds:
            self.scheduler.at(when, partial(self._fault, self.random.choice(kinds)))
            when += 0.1 + self.random.choice(self.profile.pauses) * self.random.uniform(0.2, 1.0)

    def _fault(self, kind: str) -> None:
        choose, names = self.random, list(self.hosts)
        host = self.hosts[choose.choice(names)]
        self.faults += 1
        if self.profile is SHARP:
            live = [one for one in self.hosts.values() if any(part.runs for part in one.parts.values())]
            host = choose.choice(live or [host])
            self.mute = {host.name}
        long = choose.choice([2.0, 6.0, 12.0, 20.0, 30.0]) * choose.uniform(0.7, 1.3)
        if kind in ("split", "half"):
            count = len(names) // 2 if kind == "half" else choose.randint(1, len(names))
            side = set(choose.sample(names, count))
            self._cut({(a, b) for a in names for b in names if (a in side) != (b in side)}, f"split: {sorted(side)}")
            if kind == "half":
                self.scheduler.at(long, self._heal)
        elif kind.startswith("isolate"):
            self._cut(self._around(host.name), f"{host.name} is cut off")
            if self.profile is SHARP:
                self.scheduler.at(long, self._heal)
            if kind.endswith("fail"):
                self.scheduler.at(choose.uniform(0.0, 4.0), lambda: self._fail_rank(but=host))
        elif kind == "one way":
            other = choose.choice(names)
            self._cut({(host.name, other)} - {(other, other)}, f"nothing comes from {host.name} to {other}")
        elif kind == "flap":
            fresh = self._around(host.name) - self.network.cut
            self._cut(fresh, f"{host.name} is cut off for a while")
            self.scheduler.at(choose.uniform(0.5, 12.0), lambda: self._mend(fresh))
        elif kind == "heal":
            self._heal()
        elif kind == "agent":
            host.kill_agent()
        elif kind == "leader":
            for one in self.hosts.values():
                if one.answers and one.agent._voter.leads:
                    self._cut(self._around(one.name), f"{one.name}, which leads, is cut off")
                    self.scheduler.at(long, self._heal)
        elif kind == "power" and host.machine.powered:
            host.lose_power(long)
        elif kind == "stop" and host.process is not None:
            process = host.process
            self.log(f"the agent on {host.name} is stopped for {long:.1f} s")
            process.stop()
            self.scheduler.at(long, process.resume)
        elif kind == "supervisor":
            for part in host.parts.values():
                part.stopped_until = self.scheduler.now + long
            self.log(f"the supervisor on {host.name} is stopped for {long:.1f} s")
        elif kind == "fail":
            self._fail_rank()
        elif kind == "disk":
            self.log(f"the disk of {host.name} is full for {long:.1f} s")
            host.disk.full = True
            self.scheduler.at(long, lambda: setattr(host.disk, "full", False))
        elif kind == "kill" and not self.killed:
            self._kill()

    def _around(self, name: str) -> set[tuple[str, str]]:
        return {(a, b) for a in self.hosts for b in self.hosts if a != b and name in (a, b)}

    def _cut(self, pairs: set[tuple[str, str]], text: str) -> None:
        self.log(text)
        self.network.cut |= pairs

    def _mend(self, pairs: set[tuple[str, str]]) -> None:
        self.network.cut -= pairs

    def _heal(self) -> None:
        self.log("the network is whole")
        self.network.cut = set()

    def _fail_rank(self, but: Host | None = None) -> None:
        hosts = [host for host in self.hosts.values() if host is not but]
        live = [part for host in hosts for part in host.parts.values() if part.runs]
        if live:
            self._failures += 1
            self.random.choice(live).fail()

    def _kill(self) -> None:
        """As `ddpctl kill` does, on every host; it asks until each has acknowledged."""
        self.killed = True
        self.log("somebody kills the run")
        left = set(self.hosts)

        def ask(host: Host) -> None:
            if host.machine.powered and host.disk.exit is None and host.disk.stop is None:
                host.disk.stop = {"by": "me", "grace": 1.0}
            alive = host.process is not None and host.process.alive
            if host.machine.powered and not alive and host.disk.exit is None:
                for part in host.parts.values():
                    part.finish(KILLED, None)
                host.ended(outcomes.killed(host.name, "me"))
            if host.machine.powered and host.disk.exit is not None and not any(p.runs for p in host.parts.values()):
                left.discard(host.name)
                if not left:
                    self.log("the kill is acknowledged by all")
                    self.kill_known = True
            else:
                self.scheduler.at(0.5, lambda: ask(host))

        for host in self.hosts.values():
            self.scheduler.at(self.random.choice([0.1, 5.0]) * self.random.random(), partial(ask, host))

    # --- the end

    def _calm_down(self) -> None:
        self._heal()
        self.log("no more faults")
        self.network.loss = self.network.late = 0.0
        for host in self.hosts.values():
            host.disk.full = False
            if host.process is not None and host.process.stopped:
                host.process.resume()

    def _leader(self) -> Any:
        found = [one for one in self.hosts.values() if one.answers and one.agent._voter.leads]
        return next((one.agent for one in found if one.agent._voter.agreed), None)

    def _is_settled(self) -> bool:
        """Whether the newest attempt runs on all of its hosts, and has done so for ten seconds; or the run is over."""
        leader = self._leader()
        if self.profile is CALM:
            return True
        if self._enough_are_gone():
            return False
        value = leader._voter.paper.value if leader is not None else None
        if value is None or value["over"] is not None or not value["live"]:
            return value is not None and value["over"] is not None
        last = value["attempts"][-1]
        parts = [self.hosts[name].parts.get(last["attempt"]) for name in last["hosts"]]
        if not all(part is not None and part.runs for part in parts):
            self._settles_at = None
            return False
        self._settles_at = self._settles_at or self.scheduler.now + 10.0
        return self.scheduler.now >= self._settles_at

    def _enough_are_gone(self) -> bool:
        alive = sum(host.answers for host in self.hosts.values())
        return 2 * alive <= len(self.hosts)

    def _judge_the_end(self) -> None:
        """A majority goes on, or has ended the run."""
        ends = [host.disk.exit for host in self.hosts.values() if host.disk.exit is not None]
        if self.over is not None or self.killed or ends or self._enough_are_gone():
            return
        leader = self._leader()
        if leader is None:
            self.fail(f"nobody leads after {GOES_ON_S:.0f} s without faults")
            return
        value = leader._voter.paper.value
        last = value["attempts"][-1]
        missing = [
            name for name in last["hosts"] if not (part := self.hosts[name].parts.get(last["attempt"])) or not part.runs
        ]
        if missing or not value["live"]:
            self.fail(f"attempt {last['attempt']} does not run on {missing} after {GOES_ON_S:.0f} s without faults")
