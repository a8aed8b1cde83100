"""The promises of a run with restarts, whatever happens to its hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpctl_worker.agent.limits import END_S
from ddpctl_worker.record.document import AgreedAttempt, CheckpointChoice

if TYPE_CHECKING:
    from tests.simulator.agents import AgentWorld
    from tests.simulator.host import Host

MINORITY_S = END_S + 0.5  # a host that reaches less than half of the hosts has no rank any more after this
SETTLED_S = 10.0
WAKES_S = 1.0


class Promises:
    """What was seen of a run so far, and which promises it broke."""

    def __init__(self, world: AgentWorld) -> None:
        self._world = world
        self.violations: list[str] = []
        self._meanings: dict[int, tuple[object, ...]] = {}
        self._resumed: dict[int, str] = {}  # by attempt: the digest of the choice
        self._ready: set[tuple[str, int]] = set()
        self._newest_term = 0  # of a leader whose proposal was committed
        self.over: str | None = None  # the state that was agreed on
        self._recorded: str | None = None  # the first end that a host has recorded
        self._settles_at: float | None = None

    def fail(self, text: str) -> None:
        if text not in self.violations:
            self.violations.append(text)
            self._world.log(f"VIOLATION: {text}")

    # --- events

    def see_start(self, name: str, attempt: AgreedAttempt) -> None:
        number = attempt.number
        meaning = (attempt.hosts, attempt.master_port, attempt.gang_port)
        if self._meanings.setdefault(number, meaning) != meaning:
            self.fail(f"attempt {number} has two meanings: {self._meanings[number]} and {meaning}")
        self._check_ready(name, attempt)
        if name not in attempt.hosts:
            self.fail(f"attempt {number} starts on {name}, which is not in it")
        if self.over is not None:
            self.fail(f"attempt {number} starts on {name} after the end of the run was agreed on")
        if self._world.kill_known:
            self.fail(f"attempt {number} starts on {name} after the kill was acknowledged")
        if self._recorded is not None and not self._world.killed and not self._is_of_two():
            self.fail(f"attempt {number} starts on {name} after a host has recorded the end {self._recorded}")
        self._check_attempts()

    def _check_ready(self, name: str, attempt: AgreedAttempt) -> None:
        """No rank starts before every host has in place what the attempt resumes from."""
        if attempt.number == 1 or not self._world.resumes:
            return
        late = [host for host in attempt.hosts if (host, attempt.number) not in self._ready]
        if late:
            self.fail(f"attempt {attempt.number} starts on {name} before {late[0]} is ready")

    def see_restored(self, name: str, number: int, choice: CheckpointChoice) -> None:
        self._ready.add((name, number))
        if self._resumed.setdefault(number, choice.digest) != choice.digest:
            self.fail(f"attempt {number} resumes from {self._resumed[number]} and, on {name}, from {choice.digest}")

    def see_end(self, host: Host) -> None:
        """Of two hosts, each records the end that it knows when the other one is gone; so the documentation says. A
        kill is recorded by each host that it reaches."""
        assert host.disk.exit is not None
        state = str(host.disk.exit["state"])
        if self._world.killed or self._is_of_two():
            return
        if self.over is not None and state != self.over:
            self.fail(f"{host.name} records {state}, and {self.over} was agreed on")
        if self._recorded is not None and state != self._recorded:
            self.fail(f"{host.name} records {state}, and another host {self._recorded}")
        self._recorded = state

    def _is_of_two(self) -> bool:
        return len(self._world.hosts) <= 2

    # --- at any time

    def check(self) -> None:
        self._check_attempts()
        self._check_minorities()
        self._check_agreement()

    def _check_attempts(self) -> None:
        """One attempt runs ranks at a time."""
        live: dict[int, list[str]] = {}
        for host in self._world.hosts.values():
            for number, ranks in host.ranks.items():
                if ranks.runs and not self._is_excused(host):
                    live.setdefault(number, []).append(host.name)
        if len(live) > 1:
            self.fail(f"two attempts run at once: {live}")

    def _is_excused(self, host: Host) -> bool:
        """A machine that was suspended runs its ranks until it looks at the clock. If the clock was stopped too, it
        takes its lease for the remaining time."""
        late = END_S if "pause" in self._world.profile.kinds else WAKES_S
        return host.suspended or self._world.now - host.woke < late

    def _check_minorities(self) -> None:
        """A host is part of half of the hosts for as long as it has reached as many lately, one by one."""
        self.note_reached()
        now, hosts = self._world.now, self._world.hosts
        needed = len(hosts) - (len(hosts) // 2 + 1) + 1
        for host in hosts.values():
            met = sorted((host.met.get(name, 0.0) for name in hosts), reverse=True)
            runs = [number for number, ranks in host.ranks.items() if ranks.runs]
            apart = (now - met[needed - 1]) * host.rate
            if runs and not self._is_excused(host) and apart > MINORITY_S * (1 + 2 * self._world.drift):
                self.fail(f"{host.name} is in a minority, and runs attempt {runs[0]} after {apart:.1f} s")

    def note_reached(self) -> None:
        """Note for each host which hosts it reaches now."""
        for host in self._world.hosts.values():
            if host.answers:
                host.met.update(dict.fromkeys(self._reached(host.name), self._world.now))

    def _check_agreement(self) -> None:
        for host in self._world.leaders():
            state = host.agent
            if state is None or not state.agreed or state.ballot.term < self._newest_term:
                continue  # a leader that is cut off does not know that there is another leader
            self._newest_term = state.ballot.term
            document = state.document
            over = document.over["state"] if document.over else None
            if self.over is not None and over != self.over:
                self.fail(f"the end that was agreed on was {self.over}, and is {over}")
            if over is not None and self.over is None:
                self._world.log(f"agreed on: the run is over, {over}")
                self.over = over
            last = document.last
            aside = [name for name in last.hosts if name in document.set_aside]
            if document.live and last.ended is None and aside:
                self.fail(f"{aside[0]} was set aside, and is in attempt {last.number}")

    def _reached(self, name: str) -> set[str]:
        """The hosts with agents that this host reaches, over other hosts too."""
        found, left = {name}, [name]
        while left:
            one = left.pop()
            for other, host in self._world.hosts.items():
                if other not in found and host.answers and self._world.reach(one, other):
                    found.add(other)
                    left.append(other)
        return found

    # --- the end

    def is_settled(self) -> bool:
        """Whether the newest attempt runs on all of its hosts, and has done so for a while; or the run is over."""
        if not self._world.profile.kinds:
            return True
        if self._enough_are_gone():
            return False
        missing = self._missing()
        if missing is None or missing:
            self._settles_at = None
            return self.over is not None
        self._settles_at = self._settles_at or self._world.now + SETTLED_S
        return self._world.now >= self._settles_at

    def judge_the_end(self) -> None:
        """A majority goes on, or has ended the run."""
        ended = any(host.disk.exit is not None for host in self._world.hosts.values())
        if self.over is not None or self._world.killed or ended or self._enough_are_gone():
            return
        missing = self._missing()
        if missing is None:
            self.fail("no attempt is live, long after the last fault")
        elif missing:
            self.fail(f"the newest attempt does not run on {missing}, long after the last fault")

    def _missing(self) -> list[str] | None:
        """The hosts of the newest attempt on which it does not run; None: no host leads, or the leader is not live."""
        found = [host.agent for host in self._world.leaders() if host.agent is not None and host.agent.agreed]
        if not found or not found[0].document.live:
            return None
        last = found[0].document.last
        runs = {name for name in last.hosts if (ranks := self._world.hosts[name].ranks.get(last.number)) and ranks.runs}
        return [name for name in last.hosts if name not in runs]

    def _enough_are_gone(self) -> bool:
        return 2 * sum(host.answers for host in self._world.hosts.values()) <= len(self._world.hosts)
