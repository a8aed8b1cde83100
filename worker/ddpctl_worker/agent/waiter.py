"""The waiter: a process that keeps the place of a run in the line of this host, until the run has slots on all hosts.

It outlives the login. A run claims its hosts one after the other, in an order that is the same for all runs: so two
waiting runs never hold each other up (rules/slots.py). Each waiter asks the waiters of the other hosts whether they
have their slots. Once all have them, each starts the run on its host as a start without a line would, and gives the
slots to the run's own processes.

    start -> waiter -> guardian (or agent) -> supervisor ...
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ddpctl_worker.agent.limits import (
    HOSTS_A_POLL,
    LINE_BEGIN_S,
    LINE_GONE_S,
    LINE_LOOK_S,
    LINE_NEWS_S,
    LINE_POLL_S,
    LINE_REFUSED_S,
    LINE_STARTED_S,
    MOST_NAMED,
)
from ddpctl_worker.agent.links import own_ports
from ddpctl_worker.agent.talk import AnswerServer, PeerLine, Unanswered, at_once, key_of
from ddpctl_worker.machine import child, fs, notes, proc, processes
from ddpctl_worker.machine.strangers import TALLY
from ddpctl_worker.machine.wakeup import end_with_unit
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.record import record
from ddpctl_worker.record.outcome import Outcome
from ddpctl_worker.record.paths import RunPaths
from ddpctl_worker.record.runrecord import RunRecord, require_restart
from ddpctl_worker.rules.slots import list_before
from ddpctl_worker.run import launcher, notifying
from ddpctl_worker.run.order import NotifyOrder
from ddpctl_worker.run.ports import move_ports, reserved_ports
from ddpctl_worker.run.scope import enter_scope
from ddpctl_worker.run.start import choices, launch_run, notifiers
from ddpctl_worker.run.stop import stop_here
from ddpctl_worker.slots import claims
from ddpctl_worker.slots.line import Ticket
from ddpctl_worker.wire.channel import WorkerError
from ddpctl_worker.wire.contract import FAILED, KILLED, NODE_LOST, QUEUED, SPAWN_FAILED, STARTING

Peer = Dict[str, Any]  # the answer of another waiter: see Waiter._answer


def main(reply_fd: str, *_: str) -> None:
    """Run the waiter's process."""
    reply = int(reply_fd)
    order = child.read_order()
    paths = RunPaths(order["top"])
    child.detach(paths.debug_log)
    processes.set_name("ddpctl-waiter")
    request = order["request"]
    refused = enter_scope(request["run"], bool(request.get("outlive")))
    port: Optional[int] = None
    end_with_unit()  # the place in line is free then
    TALLY.start(paths.strangers("agent"))
    claims.keep_private(request["slots"])
    try:
        server = _server(order, paths.host)
        if refused is None:
            port = server.port
            waiter = Waiter(order, paths, server)
    except OSError as error:
        refused = str(error)
    child.reply_to_starter(reply, {"refused": refused, "port": port})
    if refused is None:
        waiter.work()


def _server(order: Mapping[str, Any], host: str) -> AnswerServer:
    request = order["request"]
    run = request["run"]
    avoid = reserved_ports(str(order["base"]), host)
    return AnswerServer(_key(request), run["run"], host, run["hosts"], str(request["line"]["address"]), avoid)


def _key(request: Mapping[str, Any]) -> bytes:
    return key_of(str(request["gang_key"]))


class Waiter:
    """The waiter of this host. The main thread decides; threads of the server answer the other waiters."""

    def __init__(self, order: Mapping[str, Any], paths: RunPaths, server: AnswerServer) -> None:
        self._request: Dict[str, Any] = dict(order["request"])
        self._base, self._umask = str(order["base"]), int(order["umask"])
        self._paths, self._server, self._host = paths, server, paths.host
        self._run: RunRecord = self._request["run"]
        self._ticket = Ticket(self._run, choices(self._request), self._request["slots"])
        self._peers: Dict[str, Peer] = {}
        self._heard: Dict[str, float] = {}  # host -> when it answered last
        self._silence: Dict[str, str] = {}  # host -> why it does not answer
        self._ports: Optional[List[int]] = None  # of the first host, for torch and for the gang
        self._agent_port: Optional[int] = None
        self._started = False
        self._over: Optional[Dict[str, Any]] = None  # state and cause of the end, for the other hosts
        self._note = ""
        self._in_line = False  # slots of a host are in use
        self._save(QUEUED)

    def work(self) -> None:
        """Wait in line, start the run, and answer until every other waiter has seen that."""
        self._server.start(self._answer)
        line = self._wait_for_line()
        if line is not None:
            peers = {host: (str(at[0]), int(at[1])) for host, at in line["peers"].items() if host != self._host}
            self._heard = dict.fromkeys(peers, time.monotonic())
            talk = PeerLine(_key(self._request), self._run["run"], self._host, peers)
            faults = notes.Faults(float("inf"))
            while not self._started and self._over is None:
                faults.survive(lambda: self._look(talk, line["order"]))
            self._stay(talk)
        else:
            time.sleep(LINE_NEWS_S)

    def _wait_for_line(self) -> Optional[Dict[str, Any]]:
        """Return the addresses and the order of the hosts; ``None`` if the run ended before it was in line."""
        until = time.monotonic() + LINE_BEGIN_S
        while not self._is_ended():
            line = fs.read_json(self._paths.line)
            if line is not None:
                return line
            if time.monotonic() > until:
                text = "the start was interrupted before the hosts knew of each other; start it again"
                self._end(outcomes.failed(outcomes.cause(self._host, SPAWN_FAILED, text)))
                return None
            time.sleep(LINE_LOOK_S)
        return None

    # --- in line

    def _look(self, talk: PeerLine, order: Sequence[str]) -> None:
        """Ask the other waiters, and take this host's slots or start the run if that is due."""
        self._ask(talk)
        if self._is_ended() or self._is_ended_elsewhere():
            return
        held = {host for host, peer in self._answers().items() if peer.get("held")}
        if not self._ticket.held:
            before = list_before(self._host, order, held)
            note = self._ticket.look(ready=not before)
            if before:
                note = "; ".join([*([note] if note else []), "its turn comes after %s" % _named(before)])
            self._say(note, in_line=bool(note) and not before)
        elif len(held) == len(self._run["hosts"]) - 1:
            self._start_if_ports_are_known()
        else:
            missing = [host for host in order if host != self._host and host not in held]
            self._say("it has its slots, and waits for %s" % _named(missing))
        if not self._started:
            time.sleep(max(LINE_LOOK_S, len(self._heard) / HOSTS_A_POLL))

    def _ask(self, talk: PeerLine) -> None:
        """Ask every other waiter for its state. The answers of the last seconds count, too."""

        def ask(host: str) -> None:
            try:
                answer = talk.ask(host, {"k": "line"})
            except Unanswered as error:
                self._silence[host] = str(error)
                return
            self._peers[host], self._heard[host] = answer, time.monotonic()

        at_once(ask, sorted(self._heard), LINE_POLL_S)

    def _answers(self) -> Dict[str, Peer]:
        """Return the newest answers. A late answer may come at any moment, so this is a copy."""
        return dict(self._peers)

    def _answer(self, host: str, question: Dict[str, Any]) -> Peer:
        """Answer the waiter of ``host``.

        held     this host's slots are taken
        in_line  the slots of a host are in use
        ports    free ports of the first host, once all have their slots
        started  the run has been started here; ``agent``: the port of its agent, for a run with restarts
        over     state and cause, if the run has ended here
        """
        return {
            "held": self._ticket.held,
            "in_line": self._in_line,
            "ports": self._ports,
            "started": self._started,
            "agent": self._agent_port,
            "over": self._over,
        }

    def _is_ended(self) -> bool:
        """Return whether a stop has ended the run here; give its place and its slots to other runs then."""
        if self._over is not None:
            return True
        end = fs.read_optional(self._paths.exit)
        if not end and os.path.lexists(self._paths.stop):
            stop = fs.read_optional(self._paths.stop)
            self._end(outcomes.killed(self._host, str(stop.get("by") or "")))
        elif end:
            self._leave({"state": end["state"], "cause": end["cause"]})
        return self._over is not None

    def _is_ended_elsewhere(self) -> bool:
        """End the run here if it has ended on another host, or if another host is gone."""
        for peer in self._answers().values():
            over = peer.get("over")
            if over:
                self._end(Outcome(KILLED if over.get("state") == KILLED else FAILED, over.get("cause")))
                return True
        for host, at in self._heard.items():
            why = self._silence.get(host, "no answer")
            silent = time.monotonic() - at
            if silent > (LINE_REFUSED_S if why == os.strerror(errno.ECONNREFUSED) else LINE_GONE_S):
                text = "%s left the line: nothing was heard from it for %d s (%s); start it again" % (host, silent, why)
                self._end(outcomes.failed(outcomes.cause(host, NODE_LOST, text)))
                return True
        return False

    def _end(self, outcome: Outcome) -> None:
        """Record the end of the run on this host, which never started here."""
        with contextlib.suppress(OSError):
            record.write(self._paths, outcome)
        self._leave({"state": outcome.state, "cause": outcome.cause})

    def _leave(self, over: Dict[str, Any]) -> None:
        """Leave the line, and tell of the end."""
        self._over = over
        self._ticket.leave()
        notifying.at_end(self._paths, self._notifiers())

    # --- the start

    def _start_if_ports_are_known(self) -> None:
        """Start the run here. The ports of `up` may be taken by now, so the first host chooses them again."""
        first = self._run["hosts"][0]
        if first == self._host:
            self._ports = self._ports or self._choose_ports()
        else:
            self._ports = self._peers[first].get("ports")
        if self._ports is None or self._over is not None:
            time.sleep(LINE_LOOK_S)
            return
        request = dict(move_ports(self._request, *self._ports), slots=self._ticket.hold.to_json())
        if request["run"] != self._run:
            fs.write_json(self._paths.run, request["run"])
        self._save(STARTING)
        try:
            said = launch_run(request, self._base, self._paths, self._umask)
        except (WorkerError, OSError) as error:
            self._end(
                outcomes.failed(outcomes.cause(self._host, SPAWN_FAILED, "the run cannot be started: %s" % error))
            )
            return
        self._ticket.hand_over()
        self._agent_port = said.get("port")
        self._started = True
        if said["refused"] is not None:
            end = fs.read_optional(self._paths.exit)
            self._over = {"state": end.get("state", FAILED), "cause": end.get("cause")}
        elif first == self._host:
            self._notify_start()

    def _choose_ports(self) -> Optional[List[int]]:
        wish = {"base_dir": self._base, "host": self._host, "own": self._run["run"], "prefer": self._run["master_port"]}
        try:
            return list(own_ports(wish)["ports"])
        except WorkerError as error:
            self._end(outcomes.failed(outcomes.cause(self._host, SPAWN_FAILED, error.message)))
            return None

    def _stay(self, talk: PeerLine) -> None:
        """Answer until the run is started on every host, or has ended here and the other hosts know it."""
        until = time.monotonic() + (LINE_NEWS_S if self._over is not None else LINE_STARTED_S)
        while time.monotonic() < until:
            self._ask(talk)
            if self._started and self._over is None and any(peer.get("over") for peer in self._answers().values()):
                stop_here(self._paths, None, "ddpctl")
                return
            self._meet_agents()
            if self._started and all(peer.get("started") for peer in self._answers().values()):
                until = min(until, time.monotonic() + LINE_NEWS_S)
            time.sleep(LINE_LOOK_S)

    def _meet_agents(self) -> None:
        """Give the agent here the addresses of the other agents, once all are known: for a run with restarts."""
        if self._agent_port is None or fs.read_json(self._paths.peers) is not None:
            return
        ports = {self._host: self._agent_port, **{host: peer.get("agent") for host, peer in self._answers().items()}}
        if len(ports) == len(self._run["hosts"]) and all(ports.values()):
            addresses = {member["host"]: member["address"] for member in require_restart(self._run)["hosts"]}
            peers = {host: [addresses[host], port] for host, port in ports.items()}
            fs.write_json(self._paths.peers, {"peers": peers})

    # --- the record, and the notifiers

    def _say(self, note: str, *, in_line: bool = False) -> None:
        """Set the note in this host's status. ``in_line``: slots of this host are in use."""
        in_line = in_line or any(peer.get("in_line") for peer in self._answers().values())
        if (note, in_line) != (self._note, self._in_line):
            self._note, self._in_line = note, in_line
            self._save(QUEUED)

    def _save(self, state: str) -> None:
        me = processes.identify(os.getpid())
        starter = {"state": state, "starter": me.to_json() if me else None, "in_line": self._in_line}
        if state == QUEUED:
            starter["note"] = self._note or None
        where = {"boot": proc.boot_id(), "machine": proc.machine(), "claim": self._request["slots"]["path"]}
        with contextlib.suppress(OSError):  # a full disk: the state before stays
            fs.write_json(self._paths.state, {**starter, **where})

    def _notifiers(self) -> Optional[NotifyOrder]:
        cwd = launcher.working_folder(self._request.get("cwd"), self._paths)
        return notifiers(self._request, cwd if os.path.isdir(cwd) else self._paths.node, self._umask)

    def _notify_start(self) -> None:
        how = self._notifiers()
        if how is not None:
            event = {"event": notifying.STARTED, "state": STARTING, "attempt": record.attempt_of(self._run)}
            with contextlib.suppress(OSError):
                notifying.notify(self._paths, self._run, how, dict(event, started=notes.now_iso()))


def _named(hosts: Sequence[str]) -> str:
    return ", ".join([*hosts[:MOST_NAMED], *(["..."] if len(hosts) > MOST_NAMED else [])])
