"""Watches the ranks of a run from the supervisor, and reports when the run is stuck or a rank is slow.

The watch has a thread of its own, as a rank, a disk or py-spy may take its time. Every node glances at its own ranks
every few seconds. One node decides: the gang's hub, or the only node. That node compares the glances. When nothing
moves, it asks every node for a close look, makes a diagnosis, and sends it to every node for the record. The doctor
verb takes the same close look.
"""

from __future__ import annotations

import time
from collections import deque
from threading import Event
from typing import Any, Callable, Deque, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ddpctl_worker.doctor import look, process
from ddpctl_worker.doctor.arrivals import Arrivals, Unjudged
from ddpctl_worker.doctor.hosts import HostFacts, find_differences
from ddpctl_worker.doctor.hung import Hung, WaitedRanks
from ddpctl_worker.doctor.limits import (
    GLANCE_RANKS,
    GLANCE_S,
    LOOK_S,
    MOST_GLANCE_S,
    MOST_LISTED,
    MOST_MESSAGES,
    OTHER_LOOKS_S,
    REPEAT_S,
    REST_FACTOR,
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
    """The watch over the ranks of one node.

        subjects   lists the ranks that live
        gone       lists the ranks that have ended, each as a look
        ages       gives the seconds since the last output, by local rank
        timeouts   gives the number of time-outs that each rank has printed, by local rank
        say        sends a message to the gang's hub or, on the hub, to all members
        save       takes a report for the record
        offset     gives how far the clock of a host is ahead of the clock of this host, if that is known
        facts      describes this host: busy processors, swap, hot GPUs

    ``hosts``: all nodes that compare their glances; the first node decides. ``None``: the run has other nodes but no
    gang, so that no node can decide.
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
        timeouts: Callable[[], Mapping[int, int]],
        say: Say,
        save: Say,
        offset: Callable[[str], Optional[Offset]],
        facts: HostFacts,
        clock: HostClock = CLOCK,
    ) -> None:
        self._clock = clock
        self._host, self._hosts, self._tools = host, list(hosts or ()), tools
        self._decides = bool(self._hosts) and self._hosts[0] == host
        self._subjects, self._gone, self._ages, self._timeouts = subjects, gone, ages, timeouts
        self._glanced_timeouts: Mapping[int, int] = {}  # at the last glance
        self._say, self._save = say, save
        self._offset = offset
        self._facts = facts
        self._facts_of: Dict[str, Dict[str, float]] = {}  # host -> its facts at the last glance
        self._arrivals = Arrivals()
        self._slow = SlowRanks()
        self._unjudged = Unjudged()
        self._all_counted = False  # whether every rank takes part in the judgement of speed
        self._parts: Dict[str, Dict[str, Any]] = {}  # host -> the ranks of a glance that is not complete
        self._unheard = set(self._hosts)  # hosts without a glance since the last judgement of speed
        self._judge_at = self._clock.now()
        self._slow_reported_at = 0.0
        self._report: Dict[str, Any] = {}  # the last report, with its time
        self._repeat_at = 0.0
        self._host_of: Dict[int, str] = {}  # rank -> its host
        self._pids: Dict[int, Any] = {}  # rank -> its pid at the last glance
        self._stall = Stall(stall)
        self._polling = Polling()
        self._inbox: Deque[Tuple[str, Dict[str, Any]]] = deque()
        self._came = Event()  # set while the inbox holds a message
        self._before: Dict[int, Tuple[float, process.Work]] = {}  # pid -> time and work at the last glance
        self._round = 0
        self._stopped: Set[str] = set()  # hosts whose watch is over: they send no looks
        self._glance_at = 0.0
        self._over = False
        self._waited = WaitedRanks()
        self._last = False
        self.diagnosis: Optional[Dict[str, Any]] = None  # why the run is stuck; empty while it moves
        self.slow: List[Dict[str, Any]] = []  # slow ranks: host, rank, lag_ms, last_share, why
        self._thread = clock.thread(self._run, "doctor")

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, undecided: bool = False) -> None:
        """Stop the watch. Returns at once.

        ``undecided``: the cause of the failure is still open, so a search that has begun goes on until it is over. Once
        the cause is known, no look may disturb ranks that save their work.
        """
        self._last = True
        self._over = not (undecided and self._waited.searching)
        if not self._decides:
            self._say({"what": "over"})  # a search on the node that decides must not wait for this node
        self.take_message(self._host, {"what": "stop"})

    def take_message(self, host: str, message: Dict[str, Any]) -> None:
        """Take a message from another node's watch. Returns at once; drops the message if too many wait."""
        if len(self._inbox) < MOST_MESSAGES:
            self._inbox.append((host, message))
            self._came.set()

    def _next(self, seconds: float) -> Optional[Tuple[str, Dict[str, Any]]]:
        """Return the next message and its sender, or ``None`` after ``seconds`` without a message."""
        if not self._inbox:
            self._clock.wait(self._came, seconds)
        self._came.clear()
        return self._inbox.popleft() if self._inbox else None

    def search(self, failed: Mapping[int, str]) -> Optional[Hung]:
        """Return the rank that the other ranks waited for, once it is found. For the node that decides.

        Call it when every failure so far is a time-out of a rank that waited; ``failed``: these ranks with their hosts.
        Returns at once. The first call begins the search, unless a printed time-out has begun it.
        """
        if self._decides and self._waited.note_failures(failed, self._clock.now()):
            self.take_message(self._host, {"what": "search"})  # to wake up
        return self._waited.found

    def look(self, interval: float = LOOK_S, *, asked: bool = False, nccl: bool = False) -> List[Dict[str, Any]]:
        """Take a close look at this node's ranks, from any thread.

        ``asked``: a person asks for it. ``nccl``: NCCL's record is read; an asked look always reads it.
        """
        tools = self._tools._replace(nccl=asked or nccl, asked=asked, stuck=self.diagnosis is not None)
        return self.complete_looks(look.look(self._subjects(), tools, interval))

    def last_looks(self) -> Looks:
        """Return looks at ranks that are about to be stopped. The caller runs them."""
        return Looks(self._subjects(), self._tools._replace(stuck=self.diagnosis is not None), 0.0)

    def complete_looks(self, looks: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
        """Add the ranks that have ended, and the facts that only this node has about each rank."""
        ages, seen = self._ages(), {one["pid"] for one in looks}  # a rank may have ended since its look
        gone = [one for one in self._gone() if one["pid"] not in seen]
        return [
            dict(one, host=self._host, output_age_s=ages.get(int(one["local_rank"])), pause_s=self._stall.longest)
            for one in [*looks, *gone]
        ]

    def _run(self) -> None:
        processes.set_name("doctor")
        last_error = ""
        while not self._over:
            try:
                self._turn()
            except Exception as error:
                if repr(error) != last_error:
                    last_error = repr(error)
                    note("doctor: %s" % trace(error))
                self._clock.sleep(WAKE_S)

    def _turn(self) -> None:
        now = self._clock.now()
        if now >= self._glance_at or self._timeouts().keys() != self._glanced_timeouts.keys():
            cost = time.thread_time()
            self._glance(now)
            self._glance_at = now + min(MOST_GLANCE_S, max(GLANCE_S, REST_FACTOR * (time.thread_time() - cost)))
        if self._decides and now >= self._judge_at + (GLANCE_S if self._unheard else 0.0):
            self._judge_speed(now)
        if self._waited.is_due(now):
            try:
                self._search()
            except Exception:
                self._waited.note_fault(self._clock.now())
                raise
            finally:
                self._over = self._over or (self._last and not self._waited.searching)
        if (
            self._decides
            and not self._last
            and self._stall.is_due(self._clock.now(), diagnosed=self.diagnosis is not None)
        ):
            self._examine()
        message = self._next(max(0.01, min(WAKE_S, self._glance_at - self._clock.now())))
        if message is not None:
            self._take(*message)

    def _take(self, host: str, message: Dict[str, Any]) -> None:
        what = message.get("what")
        if what == "glance" and self._decides:
            self._take_glance(host, message)
        elif what == "over":
            self._stopped.add(host)
        elif what == "look":
            self._answer(int(message.get("round") or 0), bool(message.get("asked")), bool(message.get("nccl")))
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
        self._glanced_timeouts = self._timeouts()
        found = {str(one.rank): self._at(one, now) for one in self._subjects()}
        facts = self._facts.look(now)
        if self._decides:
            self._facts_of[self._host] = facts
            self._feed(self._host, found)
        elif self._hosts:  # also once all ranks of this node have ended
            parts = [*range(0, len(found), GLANCE_RANKS)] or [0]
            for part in parts:
                some = dict(list(found.items())[part : part + GLANCE_RANKS])
                message = {"what": "glance", "ranks": some, "host": facts, "more": part != parts[-1]}
                self._say(dict(message, reported=self._report.get("reported")))

    def _at(self, one: Subject, now: float) -> Dict[str, Any]:
        """Return a glance at a rank, at little cost: its place in the collectives, and its work since then."""
        pids = [one.pid, *process.find_descendants(one.pid)]
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
            "waits": None if pending is None else [pending.group, pending.seq, pending.op, pending.elements],
            "timeouts": self._timeouts().get(one.local_rank, 0),
            "cpu": (total.ticks - before.ticks) * 100.0 / look.TICKS / seconds,
            "bytes": max(0, total.bytes - before.bytes) / seconds,
            "new": self._arrivals.since_last(one.pid, found or []),
        }

    def _feed(self, host: str, ranks: Dict[str, Any]) -> None:
        now = self._clock.now()
        self._unheard.discard(host)
        moved = [self._stall.feed(int(rank), glance, now) for rank, glance in ranks.items()]
        for rank in [rank for rank, where in self._host_of.items() if where == host and str(rank) not in ranks]:
            self._stall.forget_rank(rank)
        self._host_of.update((int(rank), host) for rank in ranks)
        self._waited.note_glances(host, {int(rank): glance for rank, glance in ranks.items()}, now)
        self._see_restarts({int(rank): glance.get("pid") for rank, glance in ranks.items()})
        self._take_arrivals(host, ranks)
        if any(moved) and self.diagnosis is not None:
            self._tell(self._ended_now(), self.slow)

    def _see_restarts(self, pids: Dict[int, Any]) -> None:
        """Forget all arrivals when a launcher has restarted a rank: its collectives are numbered from 0."""
        if any(self._pids.get(rank, pid) != pid for rank, pid in pids.items()):
            self._slow, self._unjudged, self._all_counted = SlowRanks(), Unjudged(), False
            if self.slow:
                self._tell(self.diagnosis, [])
        self._pids.update(pids)

    def _take_arrivals(self, host: str, ranks: Dict[str, Any]) -> None:
        """Keep new arrivals, by the clock of this node."""
        clock = self._offset(host)
        if clock is None:
            return
        for rank, glance in ranks.items():
            self._unjudged.add(int(rank), glance.get("new") or {}, clock.seconds)

    def _judge_speed(self, now: float) -> None:
        """Find the slow ranks once every host has reported, or GLANCE_S later.

        With many ranks this happens seldom: it takes at most 1/REST_FACTOR of a core.
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
            one["why"] = find_differences(self._facts_of.get(one["host"]) or {}, others)
            one.update(lag_ms=round(one["lag_ms"], 1), last_share=round(one["last_share"], 2))
        self._judge_at = now + REST_FACTOR * (time.thread_time() - cost)
        changed = [one["rank"] for one in slow] != [one["rank"] for one in self.slow]
        if changed or (now >= self._slow_reported_at + SLOW_REPORT_S and _differ(slow, self.slow)):
            self._slow_reported_at = now
            self._tell(self.diagnosis, slow)

    def _may_count(self) -> bool:
        """Return whether every rank has reported a collective, or has had its time: some buffer of arrivals is full.

        The first judgement of a group takes the ranks that have reported by then for all its ranks.
        """
        silent = self._host_of.keys() - {rank for rank, groups in self._unjudged.ranks.items() if groups}
        return (not silent and set(self._host_of.values()) == set(self._hosts)) or self._unjudged.full

    def _search(self) -> None:
        """Look at the ranks that live, for the rank that the other ranks waited for."""
        asked = self._waited.counts_stacks(self._clock.now())
        looks, absent = self._looks_of_all(asked=asked, nccl=True)
        shown = {one.get("rank") for one in looks}
        lacks = {host for rank, host in self._host_of.items() if rank not in shown and rank not in self._waited.failed}
        unseen = {*absent, *lacks, *(set(self._hosts) - {str(one["host"]) for one in looks})}
        self._waited.take_looks(looks, unseen, self.diagnosis, self._clock.now())

    # --- a close look of all nodes ---------------------------------------------------------------------------------
    def _examine(self) -> None:
        """Take a close look at all ranks, and report the diagnosis.

        A single round of looks is enough: a look lasts a second, and a rank that moves in this second is not stuck.
        """
        looks, absent = self._looks_of_all()
        found = verdict.diagnose(looks, absent=absent, stall=self._stall.limit, asked=False)
        ends = excuses_end(found.waited_s, self._stall.limit, looks)
        holds = self._stall.take_look(self._clock.now(), found.stuck, ends)
        if found.stuck:
            self._tell(self._diagnosis_of(found), self.slow)
        elif self.diagnosis is not None and not holds:
            self._tell(self._ended_now(), self.slow)

    def _looks_of_all(self, *, asked: bool = False, nccl: bool = False) -> Tuple[List[Dict[str, Any]], List[str]]:
        """Return all nodes' looks, and the hosts without an answer. ``asked``: the run ends, looks may disturb it."""
        self._round += 1
        others = self._hosts[1:]
        if others:
            self._say({"what": "look", "round": self._round, "asked": asked, "nccl": nccl})
        silent = set(others)
        looks = self._polling.mark_polls(self.look(asked=asked, nccl=nccl) + self._looks_of_others(silent))
        return looks, [host for host in others if host in silent]

    def _looks_of_others(self, waiting: Set[str]) -> List[Dict[str, Any]]:
        """Return the looks of the hosts in ``waiting``. A host leaves this set once its answer is complete.

        Does not wait for a host whose watch is over: its ranks have ended, or are about to be stopped.
        """
        looks: List[Dict[str, Any]] = []
        until = self._clock.now() + OTHER_LOOKS_S
        while waiting - self._stopped and not self._over and self._clock.now() < until:
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

    def _answer(self, number: int, asked: bool, nccl: bool) -> None:
        """Send a message for each rank, as a message has its limit, and a last message that ends the answer."""
        for one in self.look(asked=asked, nccl=nccl):
            self._say({"what": "looked", "round": number, "look": shorten_look(one)})
        self._say({"what": "looked", "round": number, "look": None})

    def _diagnosis_of(self, found: verdict.Diagnosis) -> Dict[str, Any]:
        """Return a diagnosis for the record. A later diagnosis of the same stall keeps the times of the first."""
        before, now, made = self.diagnosis, self._clock.wall(), limit_lists(found.to_json())
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
        """Send the report to all members, and again when a member without a connection has missed it."""
        now = self._clock.now()
        if self._hosts[1:] and self._report and now >= self._repeat_at:
            self._repeat_at = now + REPEAT_S  # a member's message until then may be older than the report
            self._say(dict(self._report, what="report"))

    def _keep(self, report: Dict[str, Any]) -> None:
        before, made, slow = self.diagnosis, report.get("diagnosis"), report.get("slow")
        made = made if isinstance(made, dict) else None
        self.diagnosis = made if made is not None and made.get("over") is None else None
        self.slow = slow if isinstance(slow, list) else []
        now = self.diagnosis
        if _named(now) != _named(before):  # the sentence changes with every second of the wait
            note("doctor: %s" % (now.get("verdict") if now is not None else "the run moves again"))
        self._report = {"diagnosis": made, "slow": self.slow, "reported": report.get("reported")}
        self._save(self._report)


def _named(diagnosis: Optional[Dict[str, Any]]) -> Any:
    return None if diagnosis is None else diagnosis.get("suspects")


def _differ(slow: Sequence[Dict[str, Any]], reported: Sequence[Dict[str, Any]]) -> bool:
    """Return whether the figures of the same slow ranks are worth another report."""
    for one, before in zip(slow, reported):  # noqa: B905  (Python 3.8; both have the same ranks)
        if one["why"] != before["why"] or abs(one["lag_ms"] - before["lag_ms"]) > before["lag_ms"] / 4:
            return True
    return False


def limit_lists(diagnosis: Dict[str, Any]) -> Dict[str, Any]:
    """Return a diagnosis that fits into a message, however many ranks there are."""
    made = dict(diagnosis)
    for name in ("groups", "suspects", "missing"):
        made[name] = diagnosis[name][:MOST_LISTED]
    more = len(diagnosis["missing"]) - MOST_LISTED
    return dict(made, missing=[*made["missing"], "and %d more" % more]) if more > 0 else made


def shorten_look(one: Dict[str, Any]) -> Dict[str, Any]:
    """Return a look for another node or for the record: the last entries and the innermost frames only."""
    made = dict(one)
    if one.get("groups"):
        made["groups"] = flight.to_json(flight.from_json(one["groups"]), SENT_ENTRIES)
    for name in ("threads", "children"):
        made[name] = [dict(each, stack=each["stack"][:SENT_CHILD_FRAMES]) for each in one.get(name) or ()]
    made["stack"] = one["stack"][:SENT_FRAMES] if one.get("stack") else None
    return made
