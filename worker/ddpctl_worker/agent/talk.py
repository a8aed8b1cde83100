"""Asks and answers questions between the agents of a run, over connections that both sides prove with the run's key.

The handshake is the gang's (gang/wire.py), under a key of the agents' own. The answering agent names its host, because
an address may belong to another host by now.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import random
import socket
import threading
import time
from collections import deque
from typing import Any, Callable, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

from ddpctl_worker.agent.limits import ASK_S, AT_ONCE, KEPT_S, MOST_OPEN, PORT_TRIES, SERVE_S
from ddpctl_worker.gang.limits import MAX_HELLO
from ddpctl_worker.gang.wire import HubWire, MemberWire, Wire
from ddpctl_worker.machine import net
from ddpctl_worker.machine.acceptor import Acceptor, Session
from ddpctl_worker.machine.limits import BACKLOG
from ddpctl_worker.machine.notes import note, trace
from ddpctl_worker.machine.strangers import Stranger
from ddpctl_worker.wire.contract import AGENT_PORTS

Answer = Callable[[str, Dict[str, Any]], Dict[str, Any]]  # from the asking host and its question


class Unanswered(Exception):
    """The other agent did not answer, or not in time; the text says why."""


def key_of(run_key: str) -> bytes:
    """Return the agents' key, made from the run's key (hex)."""
    return hmac.new(bytes.fromhex(run_key), b"ddpctl-agents/1", hashlib.sha256).digest()


class _Connection:
    """An open connection to an agent that has answered on it."""

    def __init__(self, sock: socket.socket, wire: MemberWire) -> None:
        self.sock, self.wire, self.used = sock, wire, 0.0


class PeerLine:
    """Asks the other agents. ``peers``: address and port by host."""

    def __init__(
        self,
        key: bytes,
        run: str,
        host: str,
        peers: Mapping[str, Tuple[str, int]],
    ) -> None:
        self._key, self._run, self._host, self.peers = key, run, host, dict(peers)
        self._open: Dict[str, _Connection] = {}  # by host, for the next question
        self._found: Dict[str, str] = {}  # addresses by name: a name server that hangs must not cost a lease
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close all connections; no question may follow."""
        with self._lock:
            kept, self._open = list(self._open.values()), {}
        for connection in kept:
            connection.sock.close()

    def ask(self, host: str, question: Dict[str, Any], seconds: float = ASK_S) -> Dict[str, Any]:
        """Return the answer of the agent on ``host``, over the open connection if there is one.

        Raises: Unanswered: no answer came within ``seconds``.
        """
        until = time.monotonic() + seconds
        try:
            answer = self._ask_on_open(host, question, until) or self._ask_on_new(host, question, until)
        except (OSError, Stranger) as error:
            raise Unanswered(getattr(error, "strerror", None) or str(error) or repr(error)) from None
        if answer.get("from") != host:
            raise Unanswered("%s answers at the address of %s" % (answer.get("from"), host))
        return answer

    def _ask_on_open(self, host: str, question: Dict[str, Any], until: float) -> Optional[Dict[str, Any]]:
        """Ask on an open connection; ``None`` if there is none, or the other side has closed it."""
        with self._lock:
            kept = self._open.pop(host, None)
        if kept is None:
            return None
        if time.monotonic() - kept.used > KEPT_S:
            kept.sock.close()
            return None
        try:
            return self._exchange(host, kept, question, until)
        except socket.timeout:
            raise
        except (OSError, Stranger):
            return None

    def _ask_on_new(self, host: str, question: Dict[str, Any], until: float) -> Dict[str, Any]:
        wire = MemberWire(self._key, self._run, self._host, host)
        name, port = self.peers[host]
        sock = socket.create_connection((self._found.get(name, name), port), max(0.001, until - time.monotonic()))
        kept = _Connection(sock, wire)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.sendall(wire.hello())
            while not wire.open:
                wire.feed(_some(sock, until - time.monotonic()))
            self._found[name] = sock.getpeername()[0]
        except BaseException:
            sock.close()
            raise
        return self._exchange(host, kept, question, until)

    def _exchange(self, host: str, kept: _Connection, question: Dict[str, Any], until: float) -> Dict[str, Any]:
        """Send the question and return the answer. Of several connections to a host, the last one is kept."""
        try:
            kept.sock.settimeout(max(0.001, until - time.monotonic()))
            kept.sock.sendall(kept.wire.pack(question))
            answer = _message(kept.wire, kept.sock, until)
        except BaseException:
            kept.sock.close()
            raise
        kept.used = time.monotonic()
        with self._lock:
            closing = self._open.pop(host, None)
            self._open[host] = kept
            if closing is None and len(self._open) > MOST_OPEN:
                closing = self._open.pop(next(iter(self._open)))
        if closing is not None:
            closing.sock.close()
        return answer


class AnswerServer:
    """Answers the other agents.

    Their connections stay open, so a lease needs no new connection, whatever strangers do to this port. ``avoid``:
    ports that must stay free, because a run will listen on them.
    """

    def __init__(
        self,
        key: bytes,
        run: str,
        host: str,
        hosts: Sequence[str],
        bind: str,
        avoid: Collection[int] = (),
    ) -> None:
        self._key, self._run, self._host = key, run, host
        self._answer: Answer
        self._others = [name for name in hosts if name != host]
        self._socket = _bound(bind, avoid)
        self._acceptor = Acceptor(self._socket, self._meet, "agent")

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def start(self, answer: Answer) -> None:
        self._answer = answer
        self._acceptor.start()

    def close(self) -> None:
        self._acceptor.close()

    def _meet(self, sock: socket.socket) -> Session:
        return _Asked(sock, HubWire(self._key, self._run, self._others), self._reply)

    def _reply(self, host: str, question: Dict[str, Any]) -> Dict[str, Any]:
        return dict(self._answer(host, question), **{"from": self._host})


class _Asked(Session):
    """A connection of another agent, which asks its questions in turn."""

    def __init__(self, sock: socket.socket, wire: HubWire, reply: Answer) -> None:
        super().__init__(sock)
        self._wire, self._reply = wire, reply
        self._questions: List[Dict[str, Any]] = []

    def read(self) -> bool:
        try:
            data = self.sock.recv(1 << 16 if self._wire.open else MAX_HELLO + 1)
        except BlockingIOError:
            return False
        if not data:
            raise OSError(errno.ECONNRESET, "the connection was closed")
        self.spoken = True
        self._questions += self._wire.feed(data)
        if self._wire.reply:
            self.sock.sendall(self._wire.reply)  # the first bytes on this connection: the kernel has room for them
            self._wire.reply = b""
        self.proved = self._wire.peer is not None
        return bool(self._questions)

    def work(self) -> bool:
        assert self._wire.peer is not None
        questions, self._questions = self._questions, []
        try:
            self.sock.settimeout(SERVE_S)
            for question in questions:
                self.sock.sendall(self._wire.pack(self._reply(self._wire.peer, question)))
        except OSError:
            return False  # the connection is lost: the agent asks again
        except Exception as error:
            note("agent: a question was not answered: %s" % trace(error))
            return False
        return True


def _bound(address: str, avoid: Collection[int]) -> socket.socket:
    """Return a socket on a free port of this address, preferably from the range that preflight has tried.

    If the node does not have this address (NAT), the socket listens on all addresses.
    """
    first, last = AGENT_PORTS
    ports = [port for port in range(first, last + 1) if port not in avoid]
    for port in random.sample(ports, min(PORT_TRIES, len(ports))):
        try:
            return net.listen_on(address, port, BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    return net.listen_on(address, 0, BACKLOG)


def _message(wire: Wire, sock: socket.socket, until: float) -> Dict[str, Any]:
    while True:
        found = wire.feed(_some(sock, until - time.monotonic()))
        if found:
            return found[0]


def _some(sock: socket.socket, seconds: float) -> bytes:
    """Return the bytes that have come. Raises OSError: nothing came in time, or the other side has closed."""
    sock.settimeout(max(0.001, seconds))
    data = sock.recv(1 << 16)
    if not data:
        raise OSError(errno.ECONNRESET, "the connection was closed")
    return data


def at_once(
    work: Callable[[str], None],
    hosts: Sequence[str],
    seconds: float,
    enough: Optional[threading.Event] = None,
) -> None:
    """Do ``work`` for every host, in threads.

    Returns when all are done, or ``enough`` is set, or after ``seconds``; slower threads continue.
    """
    enough = enough or threading.Event()
    waiting = deque(hosts)
    done: List[str] = []

    def some() -> None:
        while True:
            try:
                host = waiting.popleft()
            except IndexError:
                return
            try:
                work(host)
            except Exception as error:
                note("agent: %s" % trace(error))
            done.append(host)
            if len(done) == len(hosts):
                enough.set()

    started = 0
    with contextlib.suppress(RuntimeError):  # no more threads: the threads so far do the work
        for _ in range(min(len(waiting), AT_ONCE)):
            threading.Thread(target=some, name="at-once", daemon=True).start()
            started += 1
    if started:
        enough.wait(seconds)
    elif hosts:
        some()


def reachable(line: PeerLine, hosts: Sequence[str], seconds: float = ASK_S) -> Dict[str, Optional[str]]:
    """Return for each of ``hosts`` why it does not answer from here; ``None`` if it does. All are asked at once."""
    found: Dict[str, Optional[str]] = dict.fromkeys(hosts, "no answer within %g s" % seconds)

    def look(host: str) -> None:
        try:
            line.ask(host, {"k": "here"}, seconds)
            found[host] = None
        except Unanswered as error:
            found[host] = str(error)

    at_once(look, hosts, seconds + 1.0)
    return dict(found)
