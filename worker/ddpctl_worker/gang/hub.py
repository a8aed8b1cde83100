"""The hub of a gang: the supervisor of node rank 0, which decides on the verdict."""

from __future__ import annotations

import errno
import selectors
import socket
from typing import Any, Dict, List, Optional, Tuple

from ddpctl_worker.gang.base import Gang, Wake
from ddpctl_worker.gang.failures import FailureJudge
from ddpctl_worker.gang.limits import (
    ACCEPTS,
    BEAT_S,
    ENDING_LOOP_S,
    GOODBYE_S,
    LISTEN_S,
    LOOP_S,
    MAX_HELLO,
    MAX_OUT,
    MOST_LISTENS,
    UNDECIDED_LOOP_S,
)
from ddpctl_worker.gang.wire import HubWire, from_wire, to_wire
from ddpctl_worker.machine.acceptor import NoRoom, accept_connection, limit_by_descriptors
from ddpctl_worker.machine.clocks import Clock, Offset, Sample
from ddpctl_worker.machine.limits import BACKLOG, HELLO_S, MOST_STRANGERS, PROOF_S
from ddpctl_worker.machine.notes import note, now_iso
from ddpctl_worker.machine.strangers import TALLY, Places, Stranger
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.record.outcome import Outcome
from ddpctl_worker.record.runrecord import RunRecord
from ddpctl_worker.wire.contract import KILLED, SUCCEEDED, SUPERVISOR_LOST, UNSUCCESSFUL


class _Line:
    """An accepted connection."""

    def __init__(self, sock: socket.socket, wire: HubWire) -> None:
        self.sock, self.wire = sock, wire
        self.said = False
        self.out = b""


class HubGang(Gang):
    """Listens to the members, decides, and sends the verdict."""

    is_hub = True

    def __init__(self, run: RunRecord, key: bytes, wake: Wake, *system: Any) -> None:
        super().__init__(run, key, wake, *system)
        self._judge = FailureJudge(self.hosts, self.host)
        self._selector: selectors.BaseSelector
        self._listener: Optional[socket.socket] = None
        self._listen_at = 0.0
        self._failed_listens = 0  # in a row
        self._lines: List[_Line] = []
        self._places: Places[_Line] = Places(limit_by_descriptors(MOST_STRANGERS))
        self._addresses: Dict[_Line, str] = {}  # of connections without a proof of the key so far
        self._said_serves: Optional[int] = None
        self._clocks: Dict[str, Clock] = {host: Clock() for host in self.hosts}
        self._join_by = self._clock.now() + float(run["timeouts"]["start"])

    def missing(self) -> List[str]:
        return self._judge.missing()

    def quiet(self) -> float:
        return self._judge.quiet(self._clock.now())

    def candidates(self) -> List[Dict[str, Any]]:
        return self._judge.causes()

    def offset(self, host: str) -> Optional[Offset]:
        return super().offset(host) or self._clocks[host].offset(self._clock.wall())

    def _loop(self) -> None:
        self._selector = self._sockets.selector()
        self._selector.register(self._pipe, selectors.EVENT_READ)
        beat_at = 0.0
        leave_by: Optional[float] = None
        while True:
            now = self._clock.now()
            self._judge.slept(self._nap(now))
            if self._listener is None and now >= self._listen_at:
                self._listen(now)
            if self._judge.undecided and not self.asked:
                self._ask()
                beat_at = now
            if now >= beat_at:
                beat_at = now + BEAT_S
                kind = "ask" if self._judge.undecided else "beat"
                self._tell_all(dict(self._beat(), k=kind, now=self._clock.wall()))
            self._judge.heard(self.host, now, self._output_age(), self._living)
            self._judge.turned(self.host, self._loop_age(), now)
            for outcome, age in self._reports():
                self._judge.report(outcome, age, now)
            for link in self._found_links():
                self._judge.cuts.report(self.host, link, now)
            for word in self._said_words():
                self._tell_all({"k": "doctor", "word": word})
            if self._serves != self._said_serves:
                self._said_serves = self._serves
                self._tell_all(dict(self._here(), host=self.host))
            for question in self._judge.cuts.questions(now):
                self._ask_about_link(*question)
            self._decide(now)
            if self._leaving is not None:
                self._judge.goodbye(self.host, _done(self.host, self._leaving.state), now)
                leave_by = leave_by or self._leave_by(self._leaving, now)
                if self._judge.settled() and (now >= leave_by or not self._judge.missing()):
                    break
            came = False
            for key, events in self._selector.select(self._pause()):
                came = came or key.fileobj is self._listener
                self._serve(key, events)
            # Only now, because a new connection may displace an old connection, which should be read before.
            if came:
                self._accept(now)
            self._throw_out_strangers(now)
        self._tell_all({"k": "bye"})

    def _pause(self) -> float:
        if self._judge.verdict is not None:
            return ENDING_LOOP_S
        return UNDECIDED_LOOP_S if self._judge.undecided or self._leaving is not None else LOOP_S

    def _leave_by(self, outcome: Outcome, now: float) -> float:
        """Return until when a hub that has ended waits for nodes that have not joined: they may still be starting.

        After a kill it waits only for goodbyes: the kill went to every node separately.
        """
        return now + GOODBYE_S if outcome.state == KILLED else max(self._join_by, now + GOODBYE_S)

    def _decide(self, now: float) -> None:
        verdict = self._judge.tick(now)
        if verdict is None:
            return
        if self.verdict is None:
            self._decided(verdict)
        for line in list(self._lines):
            self._tell_verdict(line)

    def _tell_verdict(self, line: _Line) -> None:
        host = line.wire.peer
        if host is not None and self._judge.verdict is not None and not self._judge.nodes[host].has_verdict:
            self._judge.nodes[host].has_verdict = True
            self._send(line, line.wire.pack(dict(to_wire(self._judge.verdict, 0.0), k="verdict")))

    def _listen(self, now: float) -> None:
        self._listen_at = now + LISTEN_S
        try:
            listener = self._bound()
        except OSError as error:
            self._note_failed_listen(error, now)
            return
        listener.setblocking(False)
        self._listener, self.trouble, self._failed_listens = listener, "", 0
        self._selector.register(listener, selectors.EVENT_READ)

    def _note_failed_listen(self, error: OSError, now: float) -> None:
        """Keep the reason why no node can join; end the run if the port stays taken before all nodes have joined."""
        trouble = "cannot listen on %s port %d: %s" % (*self.address, error)
        if trouble != self.trouble:
            note("gang: %s" % trouble)
        self.trouble = trouble
        self._failed_listens += 1
        if self._failed_listens == MOST_LISTENS and self._judge.missing():
            text = "%s %s, so no node can join; see what listens there: ddpctl exec --host %s -- ss -ltnp"
            why = outcomes.cause(self.host, SUPERVISOR_LOST, text % (self.host, trouble, self.host))
            self._judge.report(outcomes.failed(why), 0.0, now)

    def _bound(self) -> socket.socket:
        port = self.address[1]
        try:
            if self.bind_address:
                return self._sockets.listen_at(self.bind_address, port, BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
        return self._sockets.listen(port, BACKLOG)  # with NAT the address is not the node's own

    def _serve(self, key: selectors.SelectorKey, events: int) -> None:
        if key.fileobj is self._pipe:
            self._pipe.clear()
        elif key.fileobj is not self._listener and key.data in self._lines:
            line: _Line = key.data
            if events & selectors.EVENT_WRITE:
                self._send(line, b"")
            if events & selectors.EVENT_READ:
                self._receive(line)

    def _accept(self, now: float) -> None:
        assert self._listener is not None
        others = [host for host in self.hosts if host != self.host]
        for _ in range(ACCEPTS):
            try:
                taken = accept_connection(self._listener)
            except NoRoom as error:
                self._rest(now, str(error))
                return
            if taken is None:
                return
            sock, address = taken
            line = _Line(sock, HubWire(self.key, self.run_id, others))
            self._lines.append(line)
            self._addresses[line] = address
            full = self._places.add(line, address, now)
            self._selector.register(sock, selectors.EVENT_READ, line)
            if full is not None:
                self._drop(full, "want of room: it had said nothing that proves who it is")

    def _rest(self, now: float, why: str) -> None:
        """Drop the worst stranger, or close the listener for a while.

        Without a free descriptor the listener would be ready all the time.
        """
        worst = self._places.first_to_close()
        if worst is not None:
            self._drop(worst, why)
            return
        note("gang: no connection can be taken: %s" % why)
        assert self._listener is not None
        self._selector.unregister(self._listener)
        self._listener.close()
        self._listener, self._listen_at = None, now + LISTEN_S

    def _receive(self, line: _Line) -> None:
        try:
            data = line.sock.recv(1 << 16 if line.wire.open else MAX_HELLO + 1)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(line, "the other side closed it")
            return
        known, line.said = line.wire.peer, True
        try:
            messages = line.wire.feed(data)
        except Stranger as error:
            self._drop(line, str(error))
            return
        if line.wire.reply:
            reply, line.wire.reply = line.wire.reply, b""
            self._send(line, reply)
        if known is None and line.wire.peer is not None:
            self._places.remove(line)
            self._addresses.pop(line, None)
            self._replace_older(line)
        for message in messages:
            self._hear(line, message)

    def _replace_older(self, line: _Line) -> None:
        for other in list(self._lines):
            if other is not line and other.wire.peer == line.wire.peer:
                self._drop(other)
        assert line.wire.peer is not None
        self._judge.nodes[line.wire.peer].has_verdict = False
        self._tell_verdict(line)

    def _hear(self, line: _Line, message: Dict[str, Any]) -> None:
        host, now = line.wire.peer, self._clock.now()
        assert host is not None
        age, living = message.get("out"), message.get("ranks")
        self._judge.heard(
            host,
            now,
            float(age) if isinstance(age, (int, float)) else None,
            living if isinstance(living, int) else None,
        )
        loop = message.get("loop")
        if isinstance(loop, (int, float)):
            self._judge.turned(host, float(loop), now)
        if message.get("clock"):
            t0, t1, t2 = message["clock"]
            self._clocks[host].add(Sample(float(t0), float(t1), float(t2), self._clock.wall()))
        if message.get("k") == "down":
            self._judge.report(from_wire(message), float(message.get("age") or 0.0), now)
        elif message.get("k") == "link":
            self._judge.cuts.report(host, message, now)
        elif message.get("k") == "doctor":
            self._hear_word(host, message["word"])
        elif message.get("k") == "here":
            serves = message.get("serves")
            self._introduce(
                line, host, [str(address) for address in message["at"]], None if serves is None else int(serves)
            )
        elif message.get("k") == "bye":
            self._judge.goodbye(host, _done(host, str(message.get("state"))), now)
            if str(message.get("state")) in UNSUCCESSFUL:
                self._judge.report(from_wire(message), 0.0, now)  # it decided alone, without a message of the hub
            self._send(line, line.wire.pack({"k": "bye"}))

    def _ask_about_link(self, host: str, other: str, end: Tuple[str, int]) -> None:
        if host == self.host:
            self._cuts.dial(other, end)
        for line in [line for line in self._lines if line.wire.peer == host]:
            self._send(line, line.wire.pack({"k": "dial", "to": other, "end": end}))

    def _introduce(self, line: _Line, host: str, addresses: List[str], serves: Optional[int]) -> None:
        """Pass the addresses of a node on to the other nodes, and their addresses to it."""
        self._meet(host, addresses, serves)
        for other in [other for other in self._lines if other.wire.peer not in (None, host)]:
            self._send(other, other.wire.pack({"k": "here", "host": host, "at": addresses, "serves": serves}))
        for name, known in self._cuts.known.items():
            if name != host:
                there = self.servers.get(name)
                news = {"k": "here", "host": name, "at": known, "serves": None if there is None else there[1]}
                self._send(line, line.wire.pack(news))
        self._send(line, line.wire.pack(dict(self._here(), host=self.host)))

    def _tell_all(self, message: Dict[str, Any]) -> None:
        for line in list(self._lines):
            if line.wire.peer is not None:
                self._send(line, line.wire.pack(message))

    def _send(self, line: _Line, data: bytes) -> None:
        line.out += data
        try:
            while line.out:
                line.out = line.out[line.sock.send(line.out) :]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(line)
            return
        if len(line.out) > MAX_OUT:
            self._drop(line)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.out else 0)
        self._selector.modify(line.sock, wanted, line)

    def _throw_out_strangers(self, now: float) -> None:
        """Drop strangers that are late.

        ``now``: before the last read of the connections, so that all data that came in time has been read.
        """
        for line in self._places.list_late(now - HELLO_S):
            if not line.said:
                self._drop(line, "not a word within %g s" % HELLO_S)
        for line in self._places.list_late(now - PROOF_S):
            self._drop(line, "no proof within %g s" % PROOF_S)

    def _drop(self, line: _Line, why: str = "") -> None:
        """Close a connection. ``why``: for the count of strangers."""
        if line not in self._lines:
            return
        self._lines.remove(line)
        self._places.remove(line)
        address = self._addresses.pop(line, None)
        if address is not None:
            TALLY.add(address, why)
        self._selector.unregister(line.sock)
        line.sock.close()
        host = line.wire.peer
        if host is not None and not any(other.wire.peer == host for other in self._lines):
            self._judge.closed(host, self._clock.now())

    def _close_all(self) -> None:
        for line in list(self._lines):
            self._drop(line)
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._selector.close()


def _done(host: str, state: str) -> Optional[Outcome]:
    """Return the outcome of a node that ends in ``state``, in case its early end made all other nodes victims."""
    if state != SUCCEEDED:
        return None
    return outcomes.failed(outcomes.ended_early(host, None, now_iso(), 0.0), suspect=True)
