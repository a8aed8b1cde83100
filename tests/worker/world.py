"""The agents of a run in a simulated network: hosts whose clocks run at different speeds, messages that are late or
lost, links that are cut in one direction or both, agents that are killed and started again."""

from __future__ import annotations

import copy
import heapq
import itertools
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from ddpctl_worker.agent.quorum import Voter

ASK_S = 2.0  # an answer that takes longer is not waited for


class Host:
    """One agent, and what it would run: the attempt of its paper, while it has a lease for it."""

    def __init__(self, world: World, name: str, rate: float, shift: float) -> None:
        self.world, self.name, self.rate, self.shift = world, name, rate, shift
        self.saved = Voter.first(world.names[0], {"attempt": 0, "hosts": world.names[: world.nodes], "live": True})
        self.voter = Voter(name, world.names, self.saved, self.clock())
        self.voter.begin(self.clock())
        self.alive = True
        self.runs: tuple[int, float] | None = None  # attempt, and when it is gone without a new lease (world's time)
        self.ended: set[int] = set()
        self.heard: dict[str, float] = {}  # as the leader: the others, by its clock
        self.stopped: dict[str, int] = {}  # the newest attempt that each has said is over there

    def clock(self) -> float:
        return self.shift + self.world.now * self.rate

    def save(self) -> None:
        if self.voter.unsaved:
            self.saved, self.voter.unsaved = copy.deepcopy(self.voter.durable()), False

    def live(self) -> None:
        """What the real agent does with its paper and its lease."""
        value, now = self.voter.paper.value, self.clock()
        attempt = value["attempt"] if value["live"] and self.name in value["hosts"] else None
        if self.runs is not None and self.runs[0] != attempt:
            self.ended.add(self.runs[0])
            self.runs = None
        if attempt is None or attempt in self.ended:
            return
        self.voter.renew(now)
        if self.voter.lease > now and (self.runs is not None or self.voter.agreed or attempt == 0):
            self.runs = attempt, self.world.now + (self.voter.lease - now) / self.rate
        elif self.runs is not None:
            self.ended.add(attempt)
            self.runs = None


class World:
    def __init__(
        self, seed: int, size: int, nodes: int, late: float = 0.5, loss: float = 0.0, poll: float = 1.0
    ) -> None:
        self.random, self.now = random.Random(seed), 0.0
        self.names = [f"n{i}" for i in range(size)]
        self.nodes, self.late, self.loss, self.poll = nodes, late, loss, poll
        self.cut: set[tuple[str, str]] = set()
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.count = itertools.count()
        self.hosts = {
            name: Host(self, name, self.random.uniform(0.98, 1.02), self.random.uniform(0, 1e5)) for name in self.names
        }
        for host in self.hosts.values():
            self.after(self.random.random() * 0.3, partial(self.turn, host, host.voter))
        self.attempts = [(0, tuple(self.names[:nodes]))]
        self.orphans: list[tuple[int, float] | None] = []

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self.queue, (self.now + seconds, next(self.count), do))

    def run(self, until: float) -> None:
        while self.queue and self.queue[0][0] <= until:
            self.now, _, do = heapq.heappop(self.queue)
            do()
            self.check()
        self.now = until

    def kill(self, name: str) -> None:
        self.hosts[name].alive = False

    def lose_agent(self, name: str) -> None:
        """What it runs lives on until its lease ends."""
        self.kill(name)
        self.orphans.append(self.hosts[name].runs)

    def start_again(self, name: str) -> None:
        """With what is on disk, once nothing is left of what ran there."""
        host = self.hosts[name]
        if host.alive:
            return
        left = host.runs
        if left is not None and left in self.orphans and self.now < left[1]:
            self.after(left[1] - self.now, lambda: self.start_again(name))
            return
        host.ended |= {left[0]} if left is not None else set()
        host.runs, host.alive, host.heard, host.stopped = None, True, {}, {}
        host.voter = Voter(name, self.names, copy.deepcopy(host.saved), host.clock())
        self.after(0.1, partial(self.turn, host, host.voter))

    def ask(
        self, host: Host, other: str, request: dict[str, Any], done: Callable[[dict[str, Any], float], None]
    ) -> None:
        asked, asker = host.clock(), host.voter
        peer = self.hosts[other]

        def arrive() -> None:
            if not peer.alive or (host.name, other) in self.cut:
                return
            if request["k"] == "poll" and peer.voter.leads:
                peer.heard[host.name] = peer.clock()
                peer.stopped[host.name] = max([-1, *host.ended])
            answer = copy.deepcopy(peer.voter.answer(copy.deepcopy(request), peer.clock()))
            peer.save()
            peer.live()
            self.after(self.delay(), lambda: back(answer))

        def back(answer: dict[str, Any]) -> None:
            if (
                host.alive
                and host.voter is asker
                and (other, host.name) not in self.cut
                and host.clock() - asked < ASK_S * host.rate
            ):
                done(answer, asked)
                host.save()
                host.live()

        if self.random.random() >= self.loss:
            self.after(self.delay(), arrive)

    def delay(self) -> float:
        return self.random.random() ** 3 * self.late

    def turn(self, host: Host, voter: Voter) -> None:
        if not host.alive or host.voter is not voter:
            return
        self.after(self.poll * self.random.uniform(0.9, 1.1), lambda: self.turn(host, voter))
        now = host.clock()
        host.live()
        if voter.leads:
            self.lead(host)
            if voter.authority(now) < now:
                self.look_around(host)
            return
        if voter.leader is not None and voter.leader != host.name:
            self.ask(host, voter.leader, voter.poll(), partial(self.told, host))
        else:
            self.look_around(host)
        if host.clock() - voter._heard > 3.0:
            voter.lost_leader()
        self.to_all(host, voter.stand(now))
        host.save()

    def look_around(self, host: Host) -> None:
        for other in self.names:
            if other != host.name:
                self.ask(host, other, host.voter.poll(), partial(self.told, host))

    def told(self, host: Host, answer: dict[str, Any], asked: float) -> None:
        before = host.voter.known
        host.voter.told(answer, asked, host.clock())
        if host.voter.known != before and host.voter.leader not in (None, host.name):
            self.ask(host, host.voter.leader or "", host.voter.poll(), partial(self.told, host))  # say so at once

    def to_all(self, host: Host, request: dict[str, Any] | None) -> None:
        if request is None:
            return
        for other in self.names:
            if other != host.name:
                self.ask(host, other, request, partial(self.counted, host, other, request))

    def counted(self, host: Host, other: str, request: dict[str, Any], answer: dict[str, Any], _: float) -> None:
        led = host.voter.leads
        self.to_all(host, host.voter.counted(other, request, answer, host.clock()))
        if host.voter.leads and not led:  # it tells the others at once
            for follower in self.hosts.values():
                if follower is not host and follower.alive:
                    self.ask(follower, host.name, follower.voter.poll(), partial(self.told, follower))

    def lead(self, host: Host) -> None:
        """A policy as simple as can be: who was heard of lately runs the next attempt."""
        voter, now, value = host.voter, host.clock(), host.voter.paper.value
        if not voter.agreed:
            return
        near = [name for name in self.names if name == host.name or now - host.heard.get(name, -1e9) < 3.0]
        if value["live"]:
            lost = [name for name in value["hosts"] if name not in near and now > voter.quiet_at(name)]
            gone = [name for name in value["hosts"] if value["attempt"] in self.ended_of(host, name)]
            if lost or gone:
                voter.write({**value, "live": False})
        elif (
            all(self.over(host, name, value["attempt"], now) for name in value["hosts"]) and len(near) >= voter.majority
        ):
            hosts = near[: self.nodes]
            if len(hosts) == self.nodes:
                self.attempts.append((value["attempt"] + 1, tuple(hosts)))
                voter.write({"attempt": value["attempt"] + 1, "hosts": hosts, "live": True})
        host.save()

    def ended_of(self, host: Host, name: str) -> set[int]:
        return host.ended if name == host.name else {host.stopped.get(name, -1)}

    def over(self, host: Host, name: str, attempt: int, now: float) -> bool:
        if name == host.name:
            return host.runs is None
        return host.stopped.get(name, -1) >= attempt or now > host.voter.quiet_at(name)

    def running(self) -> set[int]:
        """The attempts that have a process anywhere, as long as one may live: a lost lease kills within KILL_S."""
        found = set()
        for host in self.hosts.values():
            if host.runs is not None and self.now < host.runs[1] and (host.alive or host.runs in self.orphans):
                found.add(host.runs[0])
        return found

    def check(self) -> None:
        assert len(self.running()) <= 1, (self.now, {h.name: h.runs for h in self.hosts.values()})
