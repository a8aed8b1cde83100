"""What the leading agent does: sees that an attempt is over everywhere, and has all agree on what follows."""

from __future__ import annotations

from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Set, Tuple

from ddpctl_worker import notes
from ddpctl_worker.agent import policy
from ddpctl_worker.agent.caller import Caller
from ddpctl_worker.agent.headway import Headway
from ddpctl_worker.agent.part import LocalPart, brief
from ddpctl_worker.agent.quorum import Voter
from ddpctl_worker.agent.talk import PeerLine, Unanswered, at_once, reachable
from ddpctl_worker.channel import WorkerError
from ddpctl_worker.contract import FAILED, STOP_GRACE_S, SUCCEEDED
from ddpctl_worker.run.ports import free_port
from ddpctl_worker.system import CLOCK, HostClock

NEAR_S = 4.0  # who has not asked for so long is not near
CHECK_S = 3.0  # one look from one host at another
FEW_S = 20.0  # how long it is waited for hosts, where there are too few
STUCK_S = 90.0  # beyond the job's grace: a host whose part does not end is lost, even if it answers
MOST_ATTEMPTS = 20  # that are told; with the oldest of them gone, their numbers still count
ROUNDS = 2  # of them; one may be bad luck
MOST_NAMED = 8  # in a sentence that every host is told with each change
PARTNERS = 2  # a host is convicted by two others or more


FreePorts = Callable[[Dict[str, Any], Any], Dict[str, Any]]


class Leader:
    """Every agent has one; it is at work on the host that leads."""

    def __init__(
        self,
        run: Dict[str, Any],
        voter: Voter,
        line: PeerLine,
        base: str,
        clock: HostClock = CLOCK,
        free_ports: FreePorts = free_port,
    ) -> None:
        self._clock, self._find_ports = clock, free_ports
        self._run, self.voter, self._line, self._base = run, voter, line, base
        place = run["restart"]
        hosts = [one["host"] for one in place["hosts"]]
        nodes, least, restarts = (int(place[name]) for name in ("nodes", "least", "restarts"))
        self._rules = policy.Rules(hosts, nodes, least, restarts)
        self._patience = STUCK_S + float((run.get("timeouts") or {}).get("stop") or STOP_GRACE_S)
        self.headway = Headway(clock)
        self._begun: Dict[int, float] = {}  # when each attempt was first seen here (seconds since boot)
        self._lasted: List[float] = []
        self._next_at: Optional[float] = None
        self._stopping: Dict[int, float] = {}  # since when each attempt is to end
        self._ended: Dict[int, float] = {}  # since when it has, as far as this host knows

    # --- what a host says of itself

    def report(self, part: Optional[LocalPart]) -> Dict[str, Any]:
        """``clear``: nothing of this attempt, nor of one before it, runs here or ever will. ``end``: how it ended."""
        last = self.voter.paper.value["attempts"][-1]["attempt"]
        mine = part is not None and part.number == last
        ended = part is None or part.end is not None
        clear = last if ended and (mine or not self.voter.paper.value["live"]) else last - 1
        ready = last if mine and part is not None and part.ready else 0
        told: Dict[str, Any] = {"clear": clear, "end": None, "attempt": last, "ready": ready}
        if mine and part is not None:
            told.update(end=brief(part.end, part.called_off), moved=part.moved, waits=part.waits_for)
        return told

    # --- what the leader does

    def turn(self, caller: Caller, part: Optional[LocalPart]) -> None:
        """One look, and what follows from it."""
        with caller.lock:
            voter, now = self.voter, self._clock.boot()
            value = voter.paper.value
            last = value["attempts"][-1]
            if not voter.leads or not value["live"] or value["go"] == last["attempt"]:
                self.headway.over()
            if not voter.leads or not voter.agreed or value["over"] is not None:
                return
            self._begun.setdefault(last["attempt"], now)
            reports = {**caller.reports, voter.host: self.report(part)}
            near = caller.near(NEAR_S)
            if last["ended"] is None:
                self._watch(caller, value, reports, near, now)
                return
        self._go_on(caller, value, near, now)

    def _watch(
        self, caller: Caller, value: Dict[str, Any], reports: Mapping[str, Any], near: List[str], now: float
    ) -> None:
        """While the attempt runs, or is being ended."""
        last = value["attempts"][-1]
        hosts: List[str] = last["hosts"]
        clear = [one for one in hosts if int((reports.get(one) or {}).get("clear", 0)) >= last["attempt"]]
        if not value["live"]:
            self._stopping.setdefault(last["attempt"], now)
        late = now > self._stopping.get(last["attempt"], now) + self._patience
        stuck = [one for one in hosts if late and one not in clear]  # they may answer, and their part does not end
        self.voter.withheld = frozenset(stuck)
        silent = stuck or [one for one in hosts if one not in clear and one not in near]
        lost = [one for one in silent if now > self.voter.quiet_at(one)]
        if len(clear) + len(lost) == len(hosts):
            self._conclude(caller, value, ends_of(last, reports, clear), near, now)
        elif value["live"] and (lost or any(_failed(reports.get(one), last["attempt"]) for one in clear)):
            self._write(caller, dict(value, live=False))  # from now on nobody gets a lease for it
        elif value["live"] and value["go"] < last["attempt"] and _all_ready(reports, last):
            self._write(caller, dict(value, go=last["attempt"]))
        elif value["live"] and value["go"] < last["attempt"]:
            self._await(caller, value, reports, near, now)

    def _await(
        self, caller: Caller, value: Dict[str, Any], reports: Mapping[str, Any], near: List[str], now: float
    ) -> None:
        """Until all hosts are ready. One that hangs is set aside, if the run can continue without it."""
        last = value["attempts"][-1]
        hang = self.headway.look(last, reports, near, now)
        aside = {**value["aside"], **hang}
        left = policy.choose(self._rules, last["hosts"], [one for one in near if one not in aside])
        if hang and len(left) >= self._rules.least:
            notes.note("attempt %d is called off: %s" % (last["attempt"], "; ".join(hang.values())))
            self._write(caller, dict(value, live=False, aside=aside))

    def _conclude(self, caller: Caller, value: Dict[str, Any], ends: policy.Ends, near: List[str], now: float) -> None:
        self.voter.withheld = frozenset()
        last = value["attempts"][-1]
        step = policy.after(self._rules, value["attempts"], ends, near, value["aside"])
        done = dict(last, ended=notes.now_iso(), cause=step.cause, set_aside=step.set_aside)
        aside = {**value["aside"], **step.unfit}
        self._lasted.append(now - self._begun[last["attempt"]])
        self._next_at = now + policy.pause(self._lasted)
        attempts = [*value["attempts"][:-1], done]
        self._write(caller, dict(value, attempts=attempts, live=False, aside=aside, over=step.over))
        notes.note("attempt %d is over: %s" % (last["attempt"], (step.cause or {}).get("message", SUCCEEDED)))

    def _go_on(self, caller: Caller, value: Dict[str, Any], near: List[str], now: float) -> None:
        """After an attempt, and a pause: the next one."""
        last = value["attempts"][-1]
        since = self._ended.setdefault(last["attempt"], now)
        if now < (self._next_at or since + NEAR_S):  # a new leader has not heard all of them yet
            return
        cut = self._cut_links(near)
        convicted = convict([one for one in near if one in self._rules.hosts], cut)
        usable = [host for host in near if host not in {**value["aside"], **convicted}]
        hosts, ports = self._with_ports(policy.connected(self._rules, last["hosts"], usable, cut), last)
        self._next_at = self._clock.boot() + 1.0
        with caller.lock:
            if not self.voter.leads or self.voter.paper.value is not value:
                return
            if not ports:
                if now - since > FEW_S:
                    over = policy.given_up(last["cause"], policy.too_few(self._rules, hosts), last)
                    self._write(caller, dict(value, over=over))
            else:
                fresh = {"attempt": last["attempt"] + 1, "hosts": hosts, "started": notes.now_iso(), "ended": None}
                fresh.update(master_port=ports[0], gang_port=ports[1], cause=None, set_aside=[])
                also = [{"host": host, "why": why} for host, why in convicted.items()]
                done = dict(last, set_aside=[*last["set_aside"], *also])
                attempts = [*_shortened(value["attempts"][:-1]), done, fresh][-MOST_ATTEMPTS:]
                self._write(caller, dict(value, attempts=attempts, live=True))

    def _write(self, caller: Caller, value: Dict[str, Any]) -> None:
        self.voter.write(value)
        caller.save()
        caller.changed.set()
        self._clock.thread(caller.nudge, "nudge").start()

    def _cut_links(self, near: List[str]) -> Set[FrozenSet[str]]:
        """Pairs of hosts without a connection in either of two rounds."""
        hosts = [one for one in near if one in self._rules.hosts]
        bad = self._bad_links(hosts)
        for _ in range(ROUNDS - 1):
            bad = bad & self._bad_links(hosts) if bad else bad
        return bad

    def _bad_links(self, hosts: List[str]) -> Set[FrozenSet[str]]:
        found: Set[FrozenSet[str]] = set()

        def look(host: str) -> None:
            others = [one for one in hosts if one != host]
            if host == self.voter.host:
                told = reachable(self._line, others, CHECK_S)
            else:
                try:
                    told = self._line.ask(host, {"k": "check", "hosts": others}, CHECK_S + 2.0)["found"]
                except Unanswered:
                    return
            found.update(frozenset((host, other)) for other, why in told.items() if why is not None)

        at_once(look, hosts, CHECK_S + 3.0, clock=self._clock)
        return set(found)

    def _with_ports(self, usable: List[str], last: Mapping[str, Any]) -> Tuple[List[str], List[int]]:
        """The hosts of the next attempt, and its ports; fewer hosts than it needs where there are no more. A host that
        this one does not reach cannot be the master."""
        usable = list(usable)
        while True:
            hosts = policy.choose(self._rules, last["hosts"], usable)
            if len(hosts) < self._rules.least:
                return hosts, []
            ports = self._ports(hosts[0], last)
            if ports is not None:
                return hosts, ports
            notes.note("agent: %s gives no ports for the next attempt, which does without it" % hosts[0])
            usable.remove(hosts[0])

    def _ports(self, master: str, last: Mapping[str, Any]) -> Optional[List[int]]:
        """Two free ports on the next master, for torch and for the gang; those of the last attempt if they are free."""
        wish = {"prefer": last["master_port"]}
        if master == self.voter.host:
            return self._free_ports(wish)
        try:
            return [int(port) for port in self._line.ask(master, {"k": "ports", **wish})["ports"]]
        except (Unanswered, KeyError):
            return None

    def _free_ports(self, wish: Mapping[str, Any]) -> List[int]:
        request = {"base_dir": self._base, "host": self.voter.host, "count": 2, "prefer": wish.get("prefer") or 0}
        request["own"] = self._run["run"]
        found: List[int] = self._find_ports(request, _NO_CHANNEL)["ports"]
        return found

    # --- questions of the others

    def answer(self, host: str, question: Dict[str, Any], caller: Caller) -> Dict[str, Any]:
        """What this host answers to ``question``."""
        kind = question["k"]
        if kind in ("poll", "pre", "vote"):
            return caller.answer(host, question)
        if kind == "hurry":
            caller.hurry()
        elif kind == "check":
            others = [one for one in question["hosts"] if one in self._line.peers]
            return {"found": reachable(self._line, others, CHECK_S)}
        elif kind == "ports":
            try:
                return {"ports": self._free_ports(question)}
            except WorkerError as error:
                return {"why": error.message}
        elif kind == "over":
            with caller.lock:
                if self.voter.leads and self.voter.paper.value["over"] is None:
                    self._write(caller, dict(self.voter.paper.value, live=False, over=question["over"]))
        return {}


_NOT_BEGUN = {"state": FAILED, "cause": None, "ended": None, "left": 0}
_NO_CHANNEL: Any = None  # nobody waits at the other end


def convict(hosts: List[str], bad: Set[FrozenSet[str]]) -> Dict[str, str]:
    """Who is to blame for links that are cut, and why: a host that fails with two others. One bad link between two
    hosts convicts neither of them."""
    found = {}
    for host in hosts:
        partners = sorted(other for link in bad if host in link for other in link if other != host)
        if len(partners) >= PARTNERS:
            more = " and %d others" % (len(partners) - MOST_NAMED) if len(partners) > MOST_NAMED else ""
            why = "no connection between it and %s%s" % (", ".join(partners[:MOST_NAMED]), more)
            found[host] = (len(partners), why)
    worst = max([count for count, _ in found.values()] or [0])
    return {host: why for host, (count, why) in found.items() if count == worst}


def ends_of(attempt: Mapping[str, Any], reports: Mapping[str, Any], clear: Sequence[str]) -> policy.Ends:
    """How each host's part of an attempt ended. A host that is ``clear`` and tells no end had not begun when the
    attempt was called off: that is no loss of it."""
    ends = {host: _end(reports.get(host), attempt["attempt"]) for host in attempt["hosts"]}
    return {host: dict(_NOT_BEGUN) if end is None and host in clear else end for host, end in ends.items()}


def _all_ready(reports: Mapping[str, Any], last: Mapping[str, Any]) -> bool:
    return all((reports.get(one) or {}).get("ready") == last["attempt"] for one in last["hosts"])


def _end(report: Optional[Mapping[str, Any]], attempt: int) -> Optional[Dict[str, Any]]:
    return dict(report["end"]) if report and report.get("attempt") == attempt and report.get("end") else None


def _failed(report: Optional[Mapping[str, Any]], attempt: int) -> bool:
    end = _end(report, attempt)
    return end is None or end["state"] != SUCCEEDED


def _shortened(attempts: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """What every host is told again with each change has to stay small."""
    return [dict(one, cause=dict(one["cause"], traceback=None)) if one.get("cause") else one for one in attempts]
