"""The agent: a process on each host of a run that may be restarted, spare hosts included.

It outlives the attempts. It starts this host's part of each attempt, renews the lease of that part's supervisor, and
agrees with the other agents on the next attempt. step.py decides and is pure; this module has the process and its
threads, and carries out the actions. The main thread reads the disk, starts and stops. A second thread lets time pass,
so a slow disk costs no lease. Each question to or from another agent has a thread of its own.

    agent -> guardian -> supervisor -> launcher -> ranks       one guardian per attempt

A lost agent is not started again: its host takes part in the next run of the job (`ddpctl restart`).
"""

from __future__ import annotations

import contextlib
import errno
import random
import signal
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Mapping, Optional, Tuple

from ddpctl_worker.agent import links, state, talk
from ddpctl_worker.agent.hostrecord import HostRecord
from ddpctl_worker.agent.limits import (
    BEGIN_LOOK_S,
    BEGIN_S,
    DISK_LOOK_S,
    HOSTS_A_POLL,
    LEAST_PAUSE_S,
    MOST_POLL_S,
    POLL_S,
)
from ddpctl_worker.agent.part import CalledOff, LocalPart
from ddpctl_worker.agent.policy import Rules
from ddpctl_worker.agent.resume import Resume
from ddpctl_worker.agent.state import Config, Event, Fact
from ddpctl_worker.agent.step import ANSWERED_HERE, begin, step, wakes_at
from ddpctl_worker.machine import child, fs, notes, processes
from ddpctl_worker.machine.strangers import TALLY
from ddpctl_worker.machine.wakeup import UNIT_STOP, SignalSender
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.record import record
from ddpctl_worker.record.document import Ballot, Document
from ddpctl_worker.record.outcome import Outcome
from ddpctl_worker.record.paths import RunPaths
from ddpctl_worker.record.runrecord import RunRecord, require_restart
from ddpctl_worker.run import launcher, notifying, shutdown
from ddpctl_worker.run.ports import reserved_ports
from ddpctl_worker.run.scope import enter_scope
from ddpctl_worker.run.start import notifiers
from ddpctl_worker.slots import claims
from ddpctl_worker.wire.channel import WorkerError
from ddpctl_worker.wire.contract import RUNNING, SPAWN_FAILED

Peers = Mapping[str, Tuple[str, int]]


def main(reply_fd: str, *_: str) -> None:
    """Run the agent's process."""
    reply = int(reply_fd)
    order = child.read_order()
    paths = RunPaths(order["top"])
    child.detach(paths.debug_log)
    processes.set_name("ddpctl-agent")
    run, slots = order["request"]["run"], order["request"]["slots"]
    refused = enter_scope(run, bool(order["request"].get("outlive")))
    signal.pthread_sigmask(signal.SIG_BLOCK, [UNIT_STOP])  # before any other thread; see _is_leaving
    TALLY.start(paths.strangers("agent"))
    claims.keep_private(slots)
    try:
        own = HostRecord(paths)
        server = _server(order, paths.host)
        ballot = Ballot.first(run["restart"]["hosts"][0]["host"], Document.first(run["restart"]["first"]))
        if refused is None and own.claim(server.port):
            own.keep(ballot.to_json())
        elif refused is None:
            refused = "the start of this run took too long and was abandoned"
    except (OSError, WorkerError) as error:
        refused = str(error)
    child.reply_to_starter(reply, {"refused": refused, "port": None if refused else server.port})
    peers = None if refused else _wait_for_peers(own)
    if peers is not None:
        HostAgent(order, own, server, peers, ballot).work()
    claims.leave(slots, over=True)


def _server(order: Mapping[str, Any], host: str) -> talk.AnswerServer:
    run = order["request"]["run"]
    members = run["restart"]["hosts"]
    bind = next(str(member["address"] or "") for member in members if member["host"] == host)
    key = talk.key_of(str(order["request"]["gang_key"]))
    hosts = [member["host"] for member in members]
    return talk.AnswerServer(key, run["run"], host, hosts, bind, reserved_ports(str(order["base"]), host))


def _wait_for_peers(own: HostRecord) -> Optional[Peers]:
    """Return the addresses of the other agents; ``None`` if the run ended before it began."""
    until = time.monotonic() + BEGIN_S
    while time.monotonic() < until:
        stop = own.read_stop_order()
        if stop is not None:
            own.end(outcomes.killed(own.paths.host, str(stop.get("by") or "")), None)
            return None
        found = fs.read_json(own.paths.peers)
        if found is not None:
            return {host: (str(at[0]), int(at[1])) for host, at in found["peers"].items()}
        time.sleep(BEGIN_LOOK_S)
    text = "the start was interrupted before the hosts knew of each other; start it again"
    own.end(outcomes.failed(outcomes.cause(own.paths.host, SPAWN_FAILED, text)), None)
    return None


def config_of(run: RunRecord, host: str, resumes: bool) -> Config:
    """Return the constants of a run, from its record."""
    restart = require_restart(run)
    hosts = tuple(str(member["host"]) for member in restart["hosts"])
    nodes, least, restarts = int(restart["nodes"]), int(restart["least"]), int(restart["restarts"])
    grace = float(run["timeouts"]["stop"])
    poll_every = min(MOST_POLL_S, max(POLL_S, len(hosts) / HOSTS_A_POLL))
    rules = Rules(hosts, nodes, least, restarts)
    return Config(host, hosts, rules, str(run["job"]), record.attempt_of(run), resumes, grace, poll_every)


class HostAgent:
    """The agent of this host, once it knows the addresses of the other agents."""

    def __init__(
        self, order: Mapping[str, Any], own: HostRecord, server: talk.AnswerServer, peers: Peers, ballot: Ballot
    ) -> None:
        self._request, self._base, self._umask = order["request"], str(order["base"]), int(order["umask"])
        self._own, self._server, self._host = own, server, own.paths.host
        run, copying = self._request["run"], self._request.get("copying")
        self._run: RunRecord = run
        self._line = talk.PeerLine(talk.key_of(str(self._request["gang_key"])), run["run"], self._host, peers)
        self._resume = Resume(self._base, run, copying, self._line)
        self._lock = threading.RLock()  # guards _state and _part
        self._state = begin(config_of(run, self._host, copying is not None), ballot, notes.boottime())
        self._part: Optional[LocalPart] = None
        self._todo: Deque[state.Action] = deque()  # actions for the main thread
        self._woken = threading.Event()
        self._done = False
        self._leaving = False  # systemd stops the unit of the run: no attempt starts here any more
        self._notifying: List[int] = []  # pids of notifier processes
        self._faults = notes.Faults(float("inf"))
        cwd = launcher.working_folder(self._request.get("cwd"), own.paths)
        self._notify = notifiers(self._request, cwd, self._umask)
        self._carry_out: Dict[type, Callable[[Any], None]] = {
            state.Collect: self._collect,
            state.Choose: self._choose,
            state.RestorePart: self._restore,
            state.StartPart: self._start,
            state.CallOff: self._call_off,
            state.Drop: self._drop,
            state.CheckLinks: self._check_links,
            state.FindPorts: self._find_ports,
            state.Announce: self._announce,
            state.Say: lambda action: own.say(action.note),
            state.Log: lambda action: notes.note(action.text),
            state.EndRun: self._end,
        }

    def work(self) -> None:
        """Carry out actions until the run is over on this host."""
        self._resume.start()
        self._server.start(self._answer)
        threading.Thread(target=self._tick, name="tick", daemon=True).start()
        faults = notes.Faults(float("inf"))
        while not self._done:
            faults.survive(self._look)
            self._woken.wait(DISK_LOOK_S)
            self._woken.clear()
        self._resume.close()
        self._line.close()

    # --- events

    def _look(self) -> None:
        """Read the disk, take a step, and carry out its actions."""
        self._notifying = [pid for pid in self._notifying if not processes.collect_exit(pid)]
        part = self._part
        if part is not None:
            part.look()
            if part.started:
                with contextlib.suppress(OSError):  # a full disk: tried again at the next look
                    self._own.save(RUNNING)
        if self._is_leaving() and (part is None or not part.started or part.end is not None):
            self._done = True  # the other agents miss this host
            return
        try:
            self._happen(state.Looked(self._own.read_stop_order(), None if part is None else part.progress))
        finally:
            while self._todo:  # an action that fails stays first, and is tried again at the next look
                action = self._todo[0]
                self._carry_out[type(action)](action)
                self._todo.popleft()

    def _is_leaving(self) -> bool:
        """Return whether systemd has asked the unit of the run to end. The ranks save first, on this agent's lease."""
        found = signal.sigtimedwait([UNIT_STOP], 0)
        if found is not None and shutdown.asks_to_end(SignalSender(found.si_pid, found.si_uid, found.si_signo)):
            notes.note("systemd stops the unit of the run: this host leaves the run")
            self._leaving = True
        return self._leaving

    def _tick(self) -> None:
        while not self._done:
            self._faults.survive(lambda: self._happen(state.Tick()))
            with self._lock:
                due = wakes_at(self._state) - notes.boottime()
            time.sleep(max(LEAST_PAUSE_S, min(DISK_LOOK_S, due)))

    def _happen(self, fact: Fact) -> Optional[Mapping[str, Any]]:
        """Take a step, and return the reply to the asking agent, if any.

        Raises: OSError: the disk refuses the ballot, so the step has not happened.
        """
        asks: List[state.Ask] = []
        reply: Optional[Mapping[str, Any]] = None
        with self._lock:
            event = Event(notes.boottime(), time.time(), random.random(), fact)
            after, actions = step(self._state, event)
            for action in actions:
                if isinstance(action, state.Save):  # comes first
                    self._own.keep(action.ballot.to_json())
            self._state = after
            for action in actions:
                if isinstance(action, state.Reply):
                    reply = action.answer
                elif isinstance(action, state.Renew):
                    self._renew(action)
                elif isinstance(action, state.Ask):
                    asks.append(action)
                elif not isinstance(action, state.Save):
                    self._todo.append(action)
                    self._woken.set()
        for ask in asks:
            self._ask(ask)
        return reply

    def _ask(self, action: state.Ask) -> None:
        """Send a question to each host; the answers become events later."""

        def ask(host: str) -> None:
            asked = notes.boottime()
            try:
                answer = self._line.ask(host, dict(action.question))
            except talk.Unanswered:
                return
            self._faults.survive(lambda: self._happen(state.PeerAnswered(host, action.question, answer, asked)))

        talk.at_once(ask, action.hosts, 0.0)

    def _answer(self, host: str, question: Dict[str, Any]) -> Dict[str, Any]:
        """Answer a question of another agent, in a thread of its own."""
        kind = question["k"]
        if kind in ANSWERED_HERE:
            reply = self._happen(state.PeerAsked(host, question))
            if reply is None:
                raise OSError(errno.EBUSY, "this agent cannot answer now")
            return dict(reply)
        if kind == "serves":
            return {"port": self._resume.port}
        if kind == "check":
            return {"found": links.look_from_here(self._line, question["hosts"])}
        if kind == "ports":
            return self._own_ports(question)
        return {}

    # --- actions, in the main thread

    def _collect(self, action: state.Collect) -> None:
        part = self._new_part(action.number)
        self._prepare(part, lambda: self._resume.collect(part, action.hosts))

    def _choose(self, action: state.Choose) -> None:
        part = self._part
        if part is not None and part.number == action.number:
            self._prepare(part, lambda: self._resume.choose(part, action.hosts, action.sources))

    def _restore(self, action: state.RestorePart) -> None:
        part = self._part
        if part is not None and part.number == action.number:
            self._prepare(part, lambda: self._resume.restore(part, action.hosts, action.choice))

    def _prepare(self, part: LocalPart, work: Callable[[], None]) -> None:
        """Do ``work`` in a thread of its own: a checkpoint may be large, and the run can be killed meanwhile."""

        def prepare() -> None:
            try:
                work()
            except CalledOff:
                return
            except Exception as error:
                notes.note("the checkpoints for attempt %d: %s" % (part.number, notes.trace(error)))
                part.failed("the checkpoint to resume from cannot be had: %s" % error)
            self._woken.set()

        try:
            threading.Thread(target=prepare, name="prepare", daemon=True).start()
        except RuntimeError as error:  # no more threads: the other hosts must not wait for this part
            part.failed("it could not be prepared: %s" % error)

    def _start(self, action: state.StartPart) -> None:
        part = self._part
        if part is None or part.number != action.number:
            part = self._new_part(action.number)
        with self._lock:
            attempt = self._state.document.last
        try:
            if attempt.number != part.number:
                raise OSError(errno.ECANCELED, "another attempt has begun")
            part.start(self._request, self._base, attempt.to_json(), self._umask, action.until)
        except Exception as error:
            notes.note("attempt %d: %s" % (part.number, notes.trace(error)))
            part.failed("it could not be started: %s" % error)
        with self._lock:  # the lease may have been renewed meanwhile
            part.renew(self._state.lease)

    def _new_part(self, number: int) -> LocalPart:
        part = LocalPart(self._own.paths.top, number)
        with self._lock:
            self._part = part
        return part

    def _renew(self, action: state.Renew) -> None:
        part = self._part
        if part is not None and part.number == action.number:
            part.renew(action.until)

    def _call_off(self, action: state.CallOff) -> None:
        if self._part is not None and self._part.number == action.number:
            self._part.call_off()

    def _drop(self, action: state.Drop) -> None:
        if self._part is not None and self._part.number == action.number:
            self._part.wanted = False
            with self._lock:
                self._part = None

    def _check_links(self, action: state.CheckLinks) -> None:
        def check() -> None:
            cut = links.find_cut_links(self._line, self._host, action.hosts)
            self._happen(state.LinksChecked(action.mark, cut))

        self._beside(check)

    def _find_ports(self, action: state.FindPorts) -> None:
        def find() -> None:
            own = {"base_dir": self._base, "host": self._host, "own": self._run["run"], "prefer": action.prefer}
            ports = links.find_ports(self._line, self._host, action.host, own)
            self._happen(state.PortsFound(action.mark, action.host, ports))

        self._beside(find)

    def _beside(self, work: Callable[[], None]) -> None:
        threading.Thread(target=lambda: self._faults.survive(work), name="search", daemon=True).start()

    def _own_ports(self, question: Mapping[str, Any]) -> Dict[str, Any]:
        wish = {"base_dir": self._base, "host": self._host, "own": self._run["run"], "prefer": question["prefer"]}
        try:
            return {"ports": links.own_ports(wish)["ports"]}
        except WorkerError as error:
            return {"why": error.message}

    def _announce(self, action: state.Announce) -> None:
        if self._notify is None:
            return
        try:
            event = dict(action.event)
            self._notifying.append(notifying.notify(self._own.paths, self._run, self._notify, event))
        except OSError as error:
            notes.note("notify: nobody was notified: %s" % error)

    def _end(self, action: state.EndRun) -> None:
        part = self._part
        if part is not None and part.end is None:
            part.stop(action.grace, "ddpctl")
        cause = None if action.cause is None else dict(action.cause)
        self._own.end(Outcome(action.state, cause), part)
        self._done = True
