"""The supervisor's own doctor: glances at its ranks every few seconds, and says so when the run is stuck.

In a thread of its own, as a rank, a disk or py-spy may take its time. Every node glances at its own ranks; the node
that decides (the gang's hub, or the only node) compares, asks all nodes for a close look when nothing moves, judges,
and tells the others, so that each has the diagnosis in its record. The same close look answers the ``look`` verb.
"""

from __future__ import annotations

import time
from collections import deque
from threading import Event
from typing import Any, Callable, Collection, Deque, Dict, List, Mapping, Optional, Sequence, Tuple

from ddpctl_worker.doctor import look, process
from ddpctl_worker.doctor.hosts import HostFacts, differences
from ddpctl_worker.doctor.hung import Hung, Waits, find_hung
from ddpctl_worker.doctor.limits import (
    GLANCE_RANKS,
    GLANCE_S,
    KEPT_COLLECTIVES,
    LOOK_S,
    MOST_GLANCE_S,
    MOST_GROUPS,
    MOST_LISTED,
    MOST_MESSAGES,
    OTHER_LOOKS_S,
    REPEAT_S,
    REST_FACTOR,
    SEARCH_AFTER_S,
    SENT_CHILD_FRAMES,
    SENT_ENTRIES,
    SENT_FRAMES,
    SLOW_REPORT_S,
    WAKE_S,
)
from ddpctl_worker.doctor.look import Looks, Subject, Tools
from ddpctl_worker.doctor.polling import Polling
from ddpctl_worker.doctor.slow import SlowRanks
from ddpctl_worker.doctor.stall import Stall, excuses_end
from ddpctl_worker.machine import notes, processes
from ddpctl_worker.machine.clocks import Offset
from ddpctl_worker.machine.notes import note, trace
from ddpctl_worker.machine.system import CLOCK, HostClock
from ddpctl_worker.rules import flight, verdict

Say = Callable[[Dict[str, Any]], None]


class RunWatch:
    """One node's ranks, watched. ``subjects`` lists those that live, ``gone`` those that have ended, ``ages`` when each
    last wrote something; ``say`` tells the gang's hub, or as the hub all members; ``save`` gets what belongs into the
    record; ``offset`` gives how far the clock of a host is ahead of this one's.

    ``hosts``: all nodes whose looks decide together; the first one decides. None: no gang, and other nodes to
    rendezvous with, so that nobody can decide.
    """

    def __init__(
        self,
        host: str,
        hosts: Optional[Sequence[str]],
        stall: float,
        tools: Tools,
        subjects: Callable[[], List[Subject]],
        gone: Callable[[], List[Dict[str, Any]]],
        ages: Callable[[], Dict[int, float]],
        say: Say,
        save: Say,
        offset: Callable[[str], Optional[Offset]],
        facts: HostFacts,
        clock: HostClock = CLOCK,
    ) -> None:
        self._clock = clock
        self._host, self._hosts, self._tools = host, list(hosts or ()), tools
        self._decides = bool(self._hosts) and self._hosts[0] == host
        self._subjects, self._gone, self._ages = subjects, gone, ages
        self._say, self._save = say, save
        self._offset = offset
        self._facts = facts
        self._facts_of: Dict[str, Dict[str, float]] = {}  # host -> what it told last
        self._arrivals = _Arrivals()
        self._slow = SlowRanks()
        self._unjudged = Unjudged()
        self._all_counted = False  # every rank takes part in the judgement of speed
        self._parts: Dict[str, Dict[str, Any]] = {}  # host -> what came of a glance so far
        self._unheard = set(self._hosts)  # whose glance has not come since the speed was judged
        self._judge_at = self._clock.now()
        self._slow_told = 0.0
        self._report: Dict[str, Any] = {}  # the last one, with the time at which it was made
        self._repeat_at = 0.0
        self._host_of: Dict[int, str] = {}  # rank -> its host
        self._pids: Dict[int, Any] = {}  # by rank, as its host told last
        self._stall = Stall(stall)
        self._polling = Polling()
        self._inbox: Deque[Tuple[str, Dict[str, Any]]] = deque()
        self._came = Event()  # something is in there
        self._before: Dict[int, Tuple[float, process.Work]] = {}  # by pid: when, and what it had done by then
        self._round = 0
        self._glance_at = 0.0
        self._over = False
        self._waited: Dict[int, Waits] = {}  # rank -> the collective that it was in when it was seen last
        self._left: "set[int]" = set()  # ranks that were in none at the last glance
        self._failed: "frozenset[int]" = frozenset()
        self._search_at: Optional[float] = None
        self._searching = self._last = False
        self.hung: Optional[Hung] = None  # the rank that never came, once the others have timed out
        self.diagnosis: Optional[Dict[str, Any]] = None  # why the run is stuck, while it is
        self.slow: List[Dict[str, Any]] = []  # ranks that are late again and again: host, rank, lag_ms, last_share
        self._thread = clock.thread(self._run, "doctor")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No more looks, but for a search that has begun: the run ends. Does not wait."""
        self._last = True
        self._over = not self._searching
        self.hear(self._host, {"what": "stop"})

    def hear(self, host: str, message: Dict[str, Any]) -> None:
        """A word of another node's watch. Never waits: a node that says too much is not heard."""
        if len(self._inbox) < MOST_MESSAGES:
            self._inbox.append((host, message))
            self._came.set()

    def _next(self, seconds: float) -> Optional[Tuple[str, Dict[str, Any]]]:
        """The next message, and who said it; None: there was none for so long."""
        if not self._inbox:
            self._clock.wait(self._came, seconds)
        self._came.clear()
        return self._inbox.popleft() if self._inbox else None

    def search(self, failed: Collection[int]) -> None:
        """All failures so far are those of ranks that waited, the ``failed`` ones: find the rank that did not come, as
        ``hung``. Of use on the node that decides. Does not wait; the first call begins the search.
        """
        self._failed = frozenset(failed)
        if self._search_at is None and self._decides:
            self._searching, self._search_at = True, self._clock.now() + SEARCH_AFTER_S
            self.hear(self._host, {"what": "search"})  # to wake up

    def look(self, interval: float = LOOK_S, *, asked: bool = False) -> List[Dict[str, Any]]:
        """A close look at this node's ranks, now. From any thread. ``asked``: by a person."""
        tools = self._tools._replace(nccl=asked, asked=asked, stuck=self.diagnosis is not None)
        return self.whole(look.look(self._subjects(), tools, interval))

    def last_looks(self) -> Looks:
        """At ranks that are about to be stopped; not begun."""
        return Looks(self._subjects(), self._tools._replace(stuck=self.diagnosis is not None), 0.0)

    def whole(self, looks: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
        """With the ranks that have ended, and with what only this node knows of each."""
        ages, seen = self._ages(), {one["pid"] for one in looks}  # one may have ended since it was looked at
        gone = [one for one in self._gone() if one["pid"] not in seen]
        return [
            dict(one, host=self._host, output_age_s=ages.get(int(one["local_rank"])), pause_s=self._stall.longest)
            for one in [*looks, *gone]
        ]

    def _run(self) -> None:
        processes.set_name("doctor")
        told = ""
        while not self._over:
            try:
                self._turn()
            except Exception as error:
                if repr(error) != told:
                    told = repr(error)
                    note("doctor: %s" % trace(error))
                self._clock.sleep(WAKE_S)

    def _turn(self) -> None:
        now = self._clock.now()
        if now >= self._glance_at:
            cost = time.thread_time()
            self._glance(now)
            self._glance_at = now + min(MOST_GLANCE_S, max(GLANCE_S, REST_FACTOR * (time.thread_time() - cost)))
        if self._decides and now >= self._judge_at + (GLANCE_S if self._unheard else 0.0):
            self._judge_speed(now)
        if self._searching and now >= (self._search_at or 0.0):
            try:
                self._search()
            finally:
                self._searching, self._over = False, self._last
        if self._decides and self._stall.due(self._clock.now(), diagnosed=self.diagnosis is not None):
            self._examine()
        found = self._next(max(0.01, min(WAKE_S, self._glance_at - self._clock.now())))
        if found is not None:
            self._take(*found)

    def _take(self, host: str, message: Dict[str, Any]) -> None:
        what = message.get("what")
        if what == "glance" and self._decides:
            self._take_glance(host, message)
        elif what == "look":
            self._answer(int(message.get("round") or 0), last=bool(message.get("last")))
        elif what == "report" and not self._decides:
            self._keep(message)

    def _take_glance(self, host: str, message: Dict[str, Any]) -> None:
        ranks = {**self._parts.pop(host, {}), **message["ranks"]}
        if message.get("more"):
            self._parts[host] = ranks
            return
        self._facts_of[host] = message.get("host") or {}
        self._feed(host, ranks)
        if message.get("reported") != self._report.get("reported"):
            self._repeat()

    # --- glances ---------------------------------------------------------------------------------------------------
    def _glance(self, now: float) -> None:
        found = {str(one.rank): self._at(one, now) for one in self._subjects()}
        facts = self._facts.look(now)
        if self._decides:
            self._facts_of[self._host] = facts
            self._feed(self._host, found)
        elif self._hosts:  # also when all ranks of this node have ended
            parts = [*range(0, len(found), GLANCE_RANKS)] or [0]
            for part in parts:
                some = dict(list(found.items())[part : part + GLANCE_RANKS])
                word = {"what": "glance", "ranks": some, "host": facts, "more": part != parts[-1]}
                self._say(dict(word, reported=self._report.get("reported")))

    def _at(self, one: Subject, now: float) -> Dict[str, Any]:
        """What a rank shows at little cost: whether it has come further, and whether it works."""
        pids = [one.pid, *process.below(one.pid)]
        work = process.work_of(pids).values()
        total = process.Work(sum(each.ticks for each in work), sum(each.bytes for each in work))
        when, before = self._before.get(one.pid, (now - GLANCE_S, total))
        self._before[one.pid] = (now, total)
        seconds = max(0.1, now - when)
        found = look.record_of(self._tools.folder, one.pid)
        pending = next((each for each in (found or ())[-1:] if not each.done), None)
        return {
            "pid": one.pid,
            "place": list(look.state_of(found)) if found else None,
            "pending": None if pending is None else max(0.0, self._clock.wall() - pending.at),
            "waits": None if pending is None else [pending.group, pending.seq, pending.op],
            "cpu": (total.ticks - before.ticks) * 100.0 / look.TICKS / seconds,
            "bytes": max(0, total.bytes - before.bytes) / seconds,
            "new": self._arrivals.since_last(one.pid, found or []),
        }

    def _feed(self, host: str, ranks: Dict[str, Any]) -> None:
        now = self._clock.now()
        self._unheard.discard(host)
        moved = [self._stall.feed(int(rank), glance, now) for rank, glance in ranks.items()]
        for rank in [rank for rank, where in self._host_of.items() if where == host and str(rank) not in ranks]:
            self._stall.left(rank)
        self._host_of.update((int(rank), host) for rank in ranks)
        self._note_waits(ranks)
        self._see_restarts({int(rank): glance.get("pid") for rank, glance in ranks.items()})
        self._take_arrivals(host, ranks)
        if any(moved) and self.diagnosis is not None:
            self._tell(self._ended_now(), self.slow)

    def _note_waits(self, ranks: Mapping[str, Any]) -> None:
        """In which collective each rank was last seen. Of a rank that has ended that stays; so it does for one more
        glance of a rank that has left it, which may be on its way out."""
        for rank, glance in ((int(rank), glance) for rank, glance in ranks.items()):
            waits = glance.get("waits")
            if waits:
                self._waited[rank] = (str(waits[0]), int(waits[1]), str(waits[2]))
                self._left.discard(rank)
            elif rank in self._left:
                self._waited.pop(rank, None)
            else:
                self._left.add(rank)

    def _see_restarts(self, pids: Dict[int, Any]) -> None:
        """Ranks that their launcher has started again count their collectives from the start."""
        if any(self._pids.get(rank, pid) != pid for rank, pid in pids.items()):
            self._slow, self._unjudged, self._all_counted = SlowRanks(), Unjudged(), False
            if self.slow:
                self._tell(self.diagnosis, [])
        self._pids.update(pids)

    def _take_arrivals(self, host: str, ranks: Dict[str, Any]) -> None:
        """By the clock of this node."""
        clock = self._offset(host)
        if clock is None:
            return
        for rank, glance in ranks.items():
            self._unjudged.add(int(rank), glance.get("new") or {}, clock.seconds)

    def _judge_speed(self, now: float) -> None:
        """Who is slow, once every host has said what is new, and GLANCE_S later where one has not.

        Seldom where there are many ranks: it takes at most one part in REST_FACTOR of a core.
        """
        cost = time.thread_time()
        self._unheard = set(self._hosts)
        if not self._all_counted:
            self._all_counted = self._may_count()
            if not self._all_counted:
                self._judge_at = now
                return
        unjudged, self._unjudged = self._unjudged, Unjudged()
        offsets = {rank: self._offset(host) for rank, host in self._host_of.items()}
        errors = {rank: one.error for rank, one in offsets.items() if one is not None}
        slow = [dict(one, host=self._host_of[one["rank"]]) for one in self._slow.feed(unjudged.ranks, errors)]
        for one in slow:
            others = [facts for host, facts in self._facts_of.items() if host != one["host"]]
            one["why"] = differences(self._facts_of.get(one["host"]) or {}, others)
            one.update(lag_ms=round(one["lag_ms"], 1), last_share=round(one["last_share"], 2))
        self._judge_at = now + REST_FACTOR * (time.thread_time() - cost)
        others_now = [one["rank"] for one in slow] != [one["rank"] for one in self.slow]
        if others_now or (now >= self._slow_told + SLOW_REPORT_S and _differ(slow, self.slow)):
            self._slow_told = now
            self._tell(self.diagnosis, slow)

    def _may_count(self) -> bool:
        """Whether every rank has reported a collective, or those that have not have had their time: a group is taken
        for the ranks that have reported by its first judgement."""
        silent = self._host_of.keys() - {rank for rank, groups in self._unjudged.ranks.items() if groups}
        return (not silent and set(self._host_of.values()) == set(self._hosts)) or self._unjudged.full

    def _search(self) -> None:
        """Look at the ranks that live; where none of them stands out, what was found before the time-out counts."""
        looks, _ = self._looks_of_all(last=True)
        found = find_hung([one for one in looks if one.get("rank") not in self._failed], self._waited)
        if found is None and self.diagnosis is not None:
            suspects = self.diagnosis.get("suspects") or ()
            found = next((Hung(one["host"], one["rank"], str(self.diagnosis["verdict"])) for one in suspects), None)
        self.hung = found

    # --- a close look of all nodes ---------------------------------------------------------------------------------
    def _examine(self) -> None:
        """Two rounds would be safer and slower; each look takes in a second, and nothing may move during it."""
        looks, absent = self._looks_of_all()
        found = verdict.diagnose(looks, absent=absent, stall=self._stall.limit, asked=False)
        ends = excuses_end(found.waited_s, self._stall.limit, looks)
        holds = self._stall.looked(self._clock.now(), found.stuck, ends)
        if found.stuck:
            self._tell(self._diagnosis_of(found), self.slow)
        elif self.diagnosis is not None and not holds:
            self._tell(self._ended_now(), self.slow)

    def _looks_of_all(self, *, last: bool = False) -> Tuple[List[Dict[str, Any]], List[str]]:
        """The looks of all nodes, and the hosts that gave none. ``last``: the run ends, so a look may disturb ranks."""
        self._round += 1
        others = self._hosts[1:]
        if others:
            self._say({"what": "look", "round": self._round, "last": last})
        silent = set(others)
        looks = self._polling.mark(self.look(asked=last) + self._others(silent))
        return looks, [host for host in others if host in silent]

    def _others(self, waiting: "set[str]") -> List[Dict[str, Any]]:
        """The looks of the hosts in ``waiting``; those that did not finish their answer in time stay in it."""
        looks: List[Dict[str, Any]] = []
        until = self._clock.now() + OTHER_LOOKS_S
        while waiting and not self._over and self._clock.now() < until:
            found = self._next(max(0.01, until - self._clock.now()))
            if found is None:
                break
            host, message = found
            if message.get("what") != "looked":
                self._take(host, message)
            elif message.get("round") == self._round:
                if message.get("look") is None:
                    waiting.discard(host)
                else:
                    looks.append(dict(message["look"], host=host))
        return looks

    def _answer(self, number: int, *, last: bool) -> None:
        """One message a rank, as a message has its limit; then one to say that this is all."""
        for one in self.look(asked=last):
            self._say({"what": "looked", "round": number, "look": shortened(one)})
        self._say({"what": "looked", "round": number, "look": None})

    def _diagnosis_of(self, found: verdict.Diagnosis) -> Dict[str, Any]:
        """A diagnosis for the record. One that follows another of the same stall keeps the times of the first."""
        before, now, made = self.diagnosis, self._clock.wall(), brief(found.to_json())
        if before is not None:
            return dict(made, since=before["since"], time=before["time"], over=None)
        since = self._stall.paused_since(self._clock.now())
        stood = self._clock.now() - since if since is not None else 0.0
        since_then = notes.iso(now - max(stood, found.waited_s))
        return dict(made, since=since_then, time=notes.iso(now), over=None)

    def _ended_now(self) -> Dict[str, Any]:
        return dict(self.diagnosis or {}, over=notes.iso(self._clock.wall()))

    def _tell(self, diagnosis: Optional[Dict[str, Any]], slow: List[Dict[str, Any]]) -> None:
        self._keep({"diagnosis": diagnosis, "slow": slow, "reported": notes.iso(self._clock.wall())})
        self._repeat_at = 0.0
        self._repeat()

    def _repeat(self) -> None:
        """To all members; again where one has missed it, as it had no connection."""
        now = self._clock.now()
        if self._hosts[1:] and self._report and now >= self._repeat_at:
            self._repeat_at = now + REPEAT_S  # what a member says until then may be older than the report
            self._say(dict(self._report, what="report"))

    def _keep(self, report: Dict[str, Any]) -> None:
        before, made, slow = self.diagnosis, report.get("diagnosis"), report.get("slow")
        made = made if isinstance(made, dict) else None
        self.diagnosis = made if made is not None and made.get("over") is None else None
        self.slow = slow if isinstance(slow, list) else []
        now = self.diagnosis
        if _named(now) != _named(before):  # the sentence changes with every second that they wait
            note("doctor: %s" % (now.get("verdict") if now is not None else "the run moves again"))
        self._report = {"diagnosis": made, "slow": self.slow, "reported": report.get("reported")}
        self._save(self._report)


def _named(diagnosis: Optional[Dict[str, Any]]) -> Any:
    """The suspects of a diagnosis; None without one."""
    return None if diagnosis is None else diagnosis.get("suspects")


def _differ(slow: Sequence[Dict[str, Any]], told: Sequence[Dict[str, Any]]) -> bool:
    """Whether the figures of the same slow ranks are worth another report."""
    for one, before in zip(slow, told):  # noqa: B905  (Python 3.8; both have the same ranks)
        if one["why"] != before["why"] or abs(one["lag_ms"] - before["lag_ms"]) > before["lag_ms"] / 4:
            return True
    return False


class _Arrivals:
    """What is new in the record of each rank since it was last reported."""

    def __init__(self) -> None:
        self._heads: Dict[int, Dict[str, int]] = {}  # by pid

    def since_last(self, pid: int, found: Sequence[flight.Entry]) -> Dict[str, List[Tuple[int, float]]]:
        """group -> (sequence number, Unix seconds)."""
        heads = self._heads.setdefault(pid, {})
        new: Dict[str, List[Tuple[int, float]]] = {}
        for one in found:
            if one.seq > heads.get(one.group, -1):
                new.setdefault(one.group, []).append((one.seq, round(one.at, 6)))
        heads.update((name, arrivals[-1][0]) for name, arrivals in new.items())
        return new


def brief(diagnosis: Dict[str, Any]) -> Dict[str, Any]:
    """A diagnosis that all nodes can be told, however many ranks there are."""
    made = dict(diagnosis)
    for name in ("groups", "suspects", "missing"):
        made[name] = diagnosis[name][:MOST_LISTED]
    more = len(diagnosis["missing"]) - MOST_LISTED
    return dict(made, missing=[*made["missing"], "and %d more" % more]) if more > 0 else made


class Unjudged:
    """Arrivals until they are judged. With many ranks that takes a while, so the oldest are dropped: those that
    ``Collectives`` would drop as well."""

    def __init__(self) -> None:
        self.ranks: Dict[int, Dict[str, Deque[Tuple[int, float]]]] = {}

    def add(self, rank: int, new: Mapping[str, Sequence[Tuple[int, float]]], ahead: float) -> None:
        """``ahead``: seconds by which the clock of the rank's host is ahead."""
        groups = self.ranks.setdefault(rank, {})
        for name, arrivals in new.items():
            if arrivals:
                kept = groups.setdefault(name, deque(maxlen=KEPT_COLLECTIVES))
                kept.extend((int(seq), float(at) - ahead) for seq, at in arrivals)
        while len(groups) > MOST_GROUPS:
            del groups[min(groups, key=lambda name: groups[name][-1][1])]

    @property
    def full(self) -> bool:
        """Whether arrivals of some rank had to be dropped, or the next ones will."""
        return any(len(kept) == KEPT_COLLECTIVES for groups in self.ranks.values() for kept in groups.values())


def shortened(one: Dict[str, Any]) -> Dict[str, Any]:
    """A look for another node or for the record: the last entries, the innermost frames."""
    made = dict(one)
    if one.get("groups"):
        made["groups"] = flight.to_json(flight.from_json(one["groups"]), SENT_ENTRIES)
    for name in ("threads", "children"):
        made[name] = [dict(each, stack=each["stack"][:SENT_CHILD_FRAMES]) for each in one.get(name) or ()]
    made["stack"] = one["stack"][:SENT_FRAMES] if one.get("stack") else None
    return made
