"""The agent: one process on each host of a run that may be restarted, spares and witness included.

It outlives the attempts: it starts this host's part of each, renews the lease of that part's supervisor, and agrees
with the other agents on what comes next (quorum.py). The one that leads decides (lead.py, policy.py). Two threads: this
one looks at the disk, starts and stops; the other one talks (caller.py). That one needs the disk only where what is
agreed on changes, so a slow disk costs no lease.

    agent -> guardian -> supervisor -> launcher -> ranks       one guardian an attempt

An agent that is gone, with its host or alone, can be started again (rejoin.py): with what was agreed on, from disk, and
the secrets of another one. What it had started has ended before.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ddpctl_worker import fs, notes
from ddpctl_worker import outcome as outcomes
from ddpctl_worker.agent import policy, talk
from ddpctl_worker.agent.caller import Caller
from ddpctl_worker.agent.growth import RankSaver
from ddpctl_worker.agent.hostrecord import HostRecord
from ddpctl_worker.agent.lead import FreePorts, Leader
from ddpctl_worker.agent.part import CalledOff, LocalPart, left_behind
from ddpctl_worker.agent.quorum import Voter
from ddpctl_worker.agent.resume import Resume
from ddpctl_worker.channel import WorkerError
from ddpctl_worker.contract import KILLED, NODE_LOST, RUNNING, SPAWN_FAILED, STARTING
from ddpctl_worker.outcome import Outcome
from ddpctl_worker.paths import RunPaths
from ddpctl_worker.run import detached, launcher, notifying, processes, record
from ddpctl_worker.run.ports import free_port
from ddpctl_worker.run.start import notifiers
from ddpctl_worker.strangers import TALLY
from ddpctl_worker.system import CLOCK, SOCKETS, HostClock, Sockets

TURN_S = 0.2
BEGIN_S = 120.0  # how long after its start it waits to be told where the others are
CALL_OFF_S = 5.0  # a part of an attempt that is over elsewhere ends by itself, or is stopped after this
ROOM_S = 2.0  # a lease that ends sooner is not worth starting anything for
ALONE_S = 86400.0  # without the others for so long, it ends; until then they may go on, and it waits for them
TWO_ALONE_S = 30.0  # of two hosts, where neither can go on alone
CUT_OFF_S = 30.0  # without the others for so long, the status says so
TELL_ALONE_S = 600.0  # ... and somebody is notified
NOBODY_S = 60.0  # one that was started again and hears of nobody goes away again
ANSWERING_S = 25.0  # a host that has answered within this is cut off together with this one
FAREWELL_S = 10.0  # how long the leader waits for the others to hear how it ended
SECRET = ("gang_key", "copying", "secrets", "notify")  # of the request: on no disk
Peers = Mapping[str, Tuple[str, int]]


def main(reply: int) -> None:
    """The agent's process."""
    order = detached.read_order()
    paths = RunPaths(order["top"])
    detached.detach(paths.debug_log)
    processes.set_name("ddpctl-agent")
    TALLY.start(paths.strangers("agent"))
    admitted = order.get("admitted")  # by another agent: this one is started again
    refused: Optional[str] = None
    try:
        own = HostRecord(paths)
        desk = _desk(order, paths.host)
        if admitted is not None:
            refused = own.take_over(desk.port, admitted["moved"])
        elif own.claim(desk.port):
            record.replace(paths.agreed, _first_word(order["request"]["run"]), paths.agreed_reserve)
        else:
            refused = "the start of this run took too long and was abandoned"
        saved = fs.read_json(paths.agreed) or {}
    except (OSError, WorkerError) as error:
        refused = str(error)
    os.write(reply, json.dumps({"refused": refused, "port": None if refused else desk.port}).encode("ascii"))
    os.close(reply)
    if refused:
        return
    if admitted is not None:
        peers: Optional[Peers] = _places(admitted["peers"])
    else:
        peers = _wait_for_peers(own)
    if peers is not None:
        HostAgent(order, own, desk, peers, saved).work()


def _first_word(run: Mapping[str, Any]) -> Dict[str, Any]:
    """What this host has promised when the run begins. On disk before anything is: an agent that is started again and
    finds nothing does not know what it had promised, and must not take part."""
    place = run["restart"]
    first = {"attempts": [place["first"]], "live": True, "go": record.attempt_of(run), "aside": {}, "over": None}
    return Voter.first(place["hosts"][0]["host"], first)


def _places(told: Mapping[str, Any]) -> Peers:
    return {host: (str(at[0]), int(at[1])) for host, at in told.items()}


def _desk(order: Mapping[str, Any], host: str) -> talk.AnswerDesk:
    run = order["request"]["run"]
    members = run["restart"]["hosts"]
    bind = next(str(one["address"] or "") for one in members if one["host"] == host)
    key = talk.key_of(str(order["request"]["gang_key"]))
    return talk.AnswerDesk(key, run["run"], host, [one["host"] for one in members], bind)


def _wait_for_peers(own: HostRecord) -> Optional[Peers]:
    """Where the others are; None: the run is over before it has begun."""
    until = time.monotonic() + BEGIN_S
    while time.monotonic() < until:
        word = own.stop_word()
        if word is not None:
            own.end(outcomes.killed(own.paths.host, str(word.get("by") or "")), None)
            return None
        told = fs.read_json(own.paths.peers)
        if told is not None:
            return _places(told["peers"])
        time.sleep(0.05)
    text = "the start was interrupted before the hosts knew of each other; start it again"
    own.end(outcomes.failed(outcomes.cause(own.paths.host, SPAWN_FAILED, text)), None)
    return None


class HostAgent:
    """At work once it knows where the others are."""

    def __init__(
        self,
        order: Mapping[str, Any],
        own: HostRecord,
        desk: talk.AnswerDesk,
        peers: Peers,
        saved: Dict[str, Any],
        clock: HostClock = CLOCK,
        sockets: Sockets = SOCKETS,
        new_part: Callable[[str, int], LocalPart] = LocalPart,
        free_ports: FreePorts = free_port,
    ) -> None:
        self._clock, self._new_part = clock, new_part
        self._request, self._base, self._umask = order["request"], str(order["base"]), int(order["umask"])
        self._own, self._desk = own, desk
        run = self._request["run"]
        hosts = [one["host"] for one in run["restart"]["hosts"]]
        self._first = record.attempt_of(run)
        self._host = own.paths.host
        self._two = len(hosts) <= 2
        self._witness = next((one["host"] for one in run["restart"]["hosts"] if one["role"] == "witness"), None)
        self._voter = Voter(self._host, hosts, saved, self._clock.boot())
        self._lock = threading.RLock()
        key = talk.key_of(str(self._request["gang_key"]))
        self._line = line = talk.PeerLine(key, run["run"], self._host, peers, clock, sockets)
        self._lonely = own.moved is not None  # it was started again, and has not heard of the others yet
        self._caller = Caller(self._voter, line, self._lock, own.keep, self._report, self._renew, clock)
        saver = RankSaver(self._base, run)
        self._leader = Leader(
            run, self._voter, line, self._base, lambda asked: saver.answer(asked, self._part), clock, free_ports
        )
        self._resume = Resume(self._base, run, self._request.get("copying"), line)
        self._part: Optional[LocalPart] = None
        if own.moved is not None:
            line.learn({**order["admitted"]["moved"], self._host: own.moved})
            self._part = left_behind(own.paths, new_part)
        self._over_since: Optional[float] = None
        self._called_off_at: Optional[float] = None  # when its part is stopped, should it not end by itself
        self._cut_off: Optional[str] = None  # since when (ISO 8601) it has not reached enough of the others
        self._told_cut_off = False
        self._notifying: List[int] = []  # its children that notify
        self._told = self._voter.paper.value["attempts"][-1]["attempt"]  # the newest that the notifiers know of
        self._done = False
        cwd = launcher.working_folder(self._request.get("cwd"), own.paths)
        self._notify = notifiers(self._request, cwd, self._umask)

    def work(self) -> None:
        """Until the run is over here."""
        if not self._lonely:  # else others may lead by now
            self._voter.begin(self._clock.boot())
        self._resume.start()
        self._desk.start(self._answer, self._line)
        self._own.open_desk(self._admit)
        self._caller.start()
        faults = notes.Faults(float("inf"), self._clock)
        while not self._done:
            faults.survive(self._turn)
            self._clock.wait(self._caller.changed, TURN_S)
            self._caller.changed.clear()

    def _turn(self) -> None:
        self._caller.turned = self._clock.boot()
        self._notifying = [pid for pid in self._notifying if not processes.collected(pid)]
        word = self._own.stop_word()
        if word is not None:
            self._killed(word)
            return
        self._look()
        self._attend()
        self._leader.turn(self._caller, self._part)
        self._tell_of_restart()
        self._see_end()

    def _look(self) -> None:
        """See whether this host's part has ended."""
        if self._part is not None and self._part.end is None:
            self._part.look()
            if self._part.end is not None:
                self._caller.hurry()
        if self._part is not None and self._part.started:
            with contextlib.suppress(OSError):  # a full disk: at the next turn
                self._own.save(RUNNING)

    def _attend(self) -> None:
        """This host's part of the newest attempt: what it resumes from is put in place, then, once that has been done
        on all of its hosts, it starts."""
        with self._lock:
            voter, value = self._voter, self._voter.paper.value
            last = value["attempts"][-1]
            number, wanted = int(last["attempt"]), value["live"] and self._host in last["hosts"]
            may_start = value["go"] >= number and voter.lease >= self._clock.boot() + ROOM_S
            if not (voter.agreed or number == self._first):
                return
            part = self._part
            if part is not None and part.started and part.end is None and not value["live"]:
                wait = 0.0 if value.get("grew") == part.number else CALL_OFF_S  # nothing else ends it
                self._called_off_at = self._called_off_at or self._clock.boot() + wait
            else:
                self._called_off_at = None
            waits = part is not None and not part.started and part.end is None  # else it has its end to tell
            if part is not None and waits and (part.number < number or not wanted):
                part.wanted = False
                part = self._part = None  # called off before it began
            if wanted and (part is None or (part.number < number and part.end is not None)):
                part = self._part = self._new_part(self._own.paths.top, number)
                self._begin_to_prepare(part, last["hosts"])
            if part is not None and self._called_off_at and self._clock.boot() > self._called_off_at:
                part.call_off()
            if part is None or part.started or not part.ready or part.end is not None or not may_start:
                return
            part.started, lease = True, voter.lease
        try:
            part.start(self._request, self._base, last, self._umask, lease)
        except Exception as error:
            notes.note("attempt %d: %s" % (part.number, notes.trace(error)))
            part.failed("it could not be started: %s" % error)

    def _begin_to_prepare(self, part: LocalPart, hosts: Sequence[str]) -> None:
        try:
            self._clock.thread(self._prepare, "prepare", part, hosts).start()
        except RuntimeError as error:  # no more threads: the others must not wait for it
            part.failed("it could not be prepared: %s" % error)

    def _prepare(self, part: LocalPart, hosts: Sequence[str]) -> None:
        """In a thread of its own: a checkpoint may be large, and the run can be killed meanwhile."""
        try:
            if part.number > self._first:  # before that one ddpctl has done it
                self._resume.bring(part, hosts)
        except CalledOff:
            return
        except Exception as error:
            notes.note("the checkpoints for attempt %d: %s" % (part.number, notes.trace(error)))
            part.failed("the checkpoint to resume from cannot be had: %s" % error)
        part.ready = True
        self._caller.hurry()
        self._caller.changed.set()

    def _tell_of_restart(self) -> None:
        with self._lock:
            attempts, speaks = self._voter.paper.value["attempts"], self._speaks()
            fresh = self._voter.agreed and attempts[-1]["attempt"] > self._told
        if fresh:
            self._told = attempts[-1]["attempt"]
        if fresh and speaks:
            event = {"event": notifying.RESTART, "state": RUNNING, "cause": attempts[-2]["cause"]}
            event["grew"] = len(attempts[-1]["hosts"]) if attempts[-2]["cause"] is None else None
            self._tell(dict(event, attempt=self._told, started=attempts[-1]["started"]))

    def _speaks(self) -> bool:
        """Whether this host runs the notifiers; one does."""
        leader = self._voter.leader
        if leader == self._host and not self._voter.leads:  # so another host believes
            return False
        return policy.speaker(leader, self._witness, self._voter.paper.value["attempts"][-1]) == self._host

    def _speaks_alone(self) -> bool:
        """The same where nobody leads: the first of the hosts that are cut off together."""
        with self._lock:
            here = [one for one in self._caller.answering(ANSWERING_S) if one != self._witness]
        return here[:1] == [self._host]

    def _tell(self, event: Dict[str, Any]) -> None:
        if self._notify is None:
            return
        try:
            self._notifying.append(notifying.notify(self._own.paths, self._request["run"], self._notify, event))
        except OSError as error:
            notes.note("notify: nobody was notified: %s" % error)

    def _see_end(self) -> None:
        """Whether the run is over, as all have agreed; or as far as this host will ever know."""
        now = self._clock.now()
        with self._lock:
            over, agreed, leads = self._voter.paper.value["over"], self._voter.agreed, self._voter.leads
            alone = self._caller.alone_for()
        self._lonely = self._lonely and not agreed
        if over is None:
            if self._lonely and alone > NOBODY_S:
                self._leave()
            elif alone > (TWO_ALONE_S if self._two else ALONE_S) and self._part_ended():
                self._end_alone(alone)
            else:
                self._see_whether_cut_off(alone)
            return
        self._over_since = self._over_since or now
        waited = now - self._over_since
        heard = not leads or waited > FAREWELL_S or self._caller.all_know()
        if (agreed and heard) or waited > TWO_ALONE_S:
            self._end(Outcome(over["state"], over["cause"]))

    def _see_whether_cut_off(self, alone: float) -> None:
        """The status says whom this host waits for. If it is for the majority, somebody is notified after a while."""
        if alone < CUT_OFF_S:
            self._cut_off, self._told_cut_off = None, False
            self._own.say(self._leader.headway.waits)
            return
        self._cut_off = self._cut_off or notes.iso(self._clock.wall() - alone)
        job, size = self._request["run"]["job"], len(self._voter.hosts)
        text = "since %s it does not reach a majority of the run's %d hosts, which may go on without it"
        text = text % (self._cut_off, size) + "; it takes part again once it does; "
        self._own.say(text + "to end the run instead: ddpctl kill %s" % job)
        if alone > TELL_ALONE_S and not self._told_cut_off:
            self._told_cut_off = True
            self._tell_cut_off(text + "how it stands: ddpctl status %s" % job)

    def _tell_cut_off(self, text: str) -> None:
        if self._speaks_alone():
            last = self._voter.paper.value["attempts"][-1]
            why = outcomes.cause(self._host, NODE_LOST, text)
            event = {"event": notifying.CUT_OFF, "state": STARTING, "cause": why}
            self._tell(dict(event, attempt=last["attempt"], started=last["started"]))

    def _part_ended(self) -> bool:
        return self._part is None or self._part.end is not None

    def _leave(self) -> None:
        """As if it had not been started again: what became of the run is not known here."""
        notes.note("agent: none of the others was heard of within %d s; it goes away again" % NOBODY_S)
        self._caller.stop()
        self._resume.close()
        self._done = True

    def _end_alone(self, seconds: float) -> None:
        own = self._part.end if self._part is not None else None
        why = dict((own or {}).get("cause") or outcomes.cause(self._host, NODE_LOST, "the other hosts are lost"))
        text = "%s; not restarted: %s did not reach a majority of the run's %d hosts for %s; continue it with: %s"
        step = "ddpctl restart %s" % self._request["run"]["job"]
        spell = "%d s" % seconds if seconds < 3600 else "%d h" % (seconds / 3600)
        why["message"] = text % (why["message"], self._host, len(self._voter.hosts), spell, step)
        self._end(outcomes.failed(why), speaks=self._speaks_alone())

    def _killed(self, word: Mapping[str, Any]) -> None:
        """Somebody ends the run, on every host by itself; a host that was out of reach hears of it from the others."""
        outcome = outcomes.killed(self._host, str(word.get("by") or ""))
        self._caller.spread({"state": KILLED, "cause": outcome.cause})
        self._end(outcome, word.get("grace"))

    def _end(self, outcome: Outcome, grace: Optional[float] = None, speaks: bool = False) -> None:
        if self._part is not None and self._part.end is None:
            self._part.stop(grace, "ddpctl")
        self._caller.stop()
        self._resume.close()
        self._own.end(outcome, self._part)
        self._done = True
        if speaks or self._speaks():
            attempts = self._voter.paper.value["attempts"]
            event = {"event": notifying.ENDED, "state": outcome.state, "cause": outcome.cause, "ended": notes.now_iso()}
            self._tell(dict(event, attempt=attempts[-1]["attempt"], started=attempts[0]["started"]))

    def _admit(self) -> Dict[str, Any]:
        """For a host of the run that comes back: what every agent was given, and has on no disk."""
        with self._lock:
            over = self._done or self._voter.paper.value["over"] is not None
        if over:
            return {"over": True}
        given = {name: self._request.get(name) for name in SECRET}
        return dict(given, over=False, peers=self._line.peers, moved=self._line.moved)

    def _answer(self, host: str, question: Dict[str, Any]) -> Dict[str, Any]:
        """A question of another agent; in a thread of its own."""
        if question["k"] == "serves":
            return {"port": self._resume.port}
        return self._leader.answer(host, question, self._caller)

    # --- for the other thread, which holds the lock

    def _report(self) -> Dict[str, Any]:
        """What the leader hears of this host; it belongs to the paper that is sent with it."""
        return self._leader.report(self._part)

    def _renew(self, until: float) -> None:
        """The lease of the part that the newest paper allows."""
        part, value = self._part, self._voter.paper.value
        last = value["attempts"][-1]
        if part is not None and part.number == last["attempt"] and last["ended"] is None:
            part.renew(until)  # also while it is being stopped: the leader waits for its end
