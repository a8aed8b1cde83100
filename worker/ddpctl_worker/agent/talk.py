"""Questions from one agent of a run to another, and their answers: one connection each, proved with the run's key.

The handshake is the gang's (gang/wire.py), under a key of the agents' own. The one that answers says who it is: an
address may be another host's by now.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import random
import socket
import threading
from collections import deque
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ddpctl_worker.contract import AGENT_PORTS
from ddpctl_worker.gang.wire import MAX_HELLO, HubWire, MemberWire, Stranger, Wire
from ddpctl_worker.notes import note, trace
from ddpctl_worker.system import CLOCK, SOCKETS, HostClock, Sockets

ASK_S = 2.0
SERVE_S = 5.0  # one connection, whatever comes on it
MOST_AT_ONCE = 128  # connections
BACKLOG = 128
AT_ONCE = 64  # hosts that are asked at one time
Answer = Callable[[str, Dict[str, Any]], Dict[str, Any]]  # who asks, and what


class Unanswered(Exception):
    """The other agent did not answer, in time or at all; its text says why."""


def key_of(run_key: str) -> bytes:
    """The agents' key, from the run's (hex)."""
    return hmac.new(bytes.fromhex(run_key), b"ddpctl-agents/1", hashlib.sha256).digest()


class PeerLine:
    """How to reach the others; ``peers``: address and port by host."""

    def __init__(
        self,
        key: bytes,
        run: str,
        host: str,
        peers: Mapping[str, Tuple[str, int]],
        clock: HostClock = CLOCK,
        sockets: Sockets = SOCKETS,
    ) -> None:
        self.clock, self._sockets = clock, sockets
        self._key, self._run, self._host, self.peers = key, run, host, dict(peers)
        self._found: Dict[str, str] = {}  # what a name resolved to: a name server that hangs must not cost a lease

    def ask(self, host: str, question: Dict[str, Any], seconds: float = ASK_S) -> Dict[str, Any]:
        """The answer of the agent on ``host``.

        Raises:
            Unanswered: there is none within ``seconds``.
        """
        until = self.clock.now() + seconds
        wire = MemberWire(self._key, self._run, self._host, host)
        try:
            name, port = self.peers[host]
            with self._sockets.connect((self._found.get(name, name), port), seconds) as sock:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.sendall(wire.hello())
                while not wire.open:
                    wire.feed(_some(sock, until - self.clock.now()))
                self._found[name] = sock.getpeername()[0]
                sock.sendall(wire.pack(question))
                answer = _message(wire, sock, until, self.clock)
        except (OSError, Stranger) as error:
            raise Unanswered(getattr(error, "strerror", None) or str(error) or repr(error)) from None
        if answer.get("from") != host:
            raise Unanswered("%s answers at the address of %s" % (answer.get("from"), host))
        return answer


class AnswerDesk:
    """Where the others ask. A thread for each connection: there is one a second and host, and each is over at once."""

    def __init__(
        self,
        key: bytes,
        run: str,
        host: str,
        hosts: Sequence[str],
        bind: str,
        clock: HostClock = CLOCK,
        sockets: Sockets = SOCKETS,
    ) -> None:
        self._clock = clock
        self._key, self._run, self._host = key, run, host
        self._answer: Answer
        self._others = [one for one in hosts if one != host]
        self._room = threading.Semaphore(MOST_AT_ONCE)
        self._socket = _bound(bind, sockets)

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def start(self, answer: Answer) -> None:
        self._answer = answer
        self._clock.thread(self._accept, "desk").start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._socket.accept()
            except OSError as error:  # no descriptors, say: it may pass
                note("agent: no connection can be taken: %s" % error)
                self._clock.sleep(0.5)
                continue
            self._room.acquire()
            try:
                self._clock.thread(self._serve, "answer", sock).start()
            except RuntimeError as error:
                note("agent: %s" % error)
                sock.close()
                self._room.release()

    def _serve(self, sock: socket.socket) -> None:
        until = self._clock.now() + SERVE_S
        try:
            with sock:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                wire = HubWire(self._key, self._run, self._others)
                while not wire.open:
                    wire.feed(_some(sock, until - self._clock.now(), MAX_HELLO + 1))
                sock.sendall(wire.reply)
                question = _message(wire, sock, until, self._clock)
                assert wire.peer is not None
                answer = dict(self._answer(wire.peer, question), **{"from": self._host})
                sock.sendall(wire.pack(answer))
        except (OSError, Stranger):
            pass  # gone, or not one of us: it asks again, or has no business here
        except Exception as error:
            note("agent: a question was not answered: %s" % trace(error))
        finally:
            self._room.release()


def _bound(address: str, sockets: Sockets) -> socket.socket:
    """A socket on a free port of this address: of a range that preflight has tried, if one of that is free. On all
    addresses where the node does not have this one (NAT)."""
    first, last = AGENT_PORTS
    usual = random.sample(range(first, last + 1), 50)
    for port in (*usual, 0):
        try:
            return sockets.listen_at(address or "::", port, BACKLOG)
        except OSError as error:
            if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                break
            if error.errno != errno.EADDRINUSE:
                raise
    return sockets.listen(0, BACKLOG)


def _message(wire: Wire, sock: socket.socket, until: float, clock: HostClock) -> Dict[str, Any]:
    while True:
        found = wire.feed(_some(sock, until - clock.now()))
        if found:
            return found[0]


def _some(sock: socket.socket, seconds: float, most: int = 1 << 16) -> bytes:
    """What has come. Raises OSError: nothing within these seconds, or the other side has closed."""
    sock.settimeout(max(0.001, seconds))
    data = sock.recv(most)
    if not data:
        raise OSError(errno.ECONNRESET, "the connection was closed")
    return data


def at_once(
    work: Callable[[str], None],
    hosts: Sequence[str],
    seconds: float,
    enough: Optional[threading.Event] = None,
    clock: HostClock = CLOCK,
) -> None:
    """``work`` for every host, in threads. Waits until all have done it, or ``enough`` is set, or for ``seconds``; who
    takes longer continues."""
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
    with contextlib.suppress(RuntimeError):  # no more threads: those that there are do the work
        for _ in range(min(len(waiting), AT_ONCE)):
            clock.thread(some, "at-once").start()
            started += 1
    if started:
        clock.wait(enough, seconds)
    elif hosts:
        some()


def reachable(line: PeerLine, hosts: Sequence[str], seconds: float = ASK_S) -> Dict[str, Optional[str]]:
    """For each of ``hosts`` why it does not answer from here; None: it does. All at once."""
    found: Dict[str, Optional[str]] = dict.fromkeys(hosts, "no answer within %g s" % seconds)

    def look(host: str) -> None:
        try:
            line.ask(host, {"k": "here"}, seconds)
            found[host] = None
        except Unanswered as error:
            found[host] = str(error)

    at_once(look, hosts, seconds + 1.0, clock=line.clock)
    return dict(found)
