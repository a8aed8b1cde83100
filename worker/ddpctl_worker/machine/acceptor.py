"""Accepts the connections of a listening socket, in a thread that no peer can delay.

This thread reads each connection until the peer has proved that it belongs to the run. Only then the connection gets a
thread of its own. A stranger costs a descriptor and a few hundred bytes, for PROOF_S at most (strangers.py). A lack of
descriptors, memory or threads ends no listener: the acceptor waits until it is over.
"""

from __future__ import annotations

import contextlib
import errno
import resource
import selectors
import socket
import threading
import time
from collections import deque
from typing import Callable, Deque, Dict, Optional, Set, Tuple

from ddpctl_worker.machine.limits import (
    ACCEPTS_AT_ONCE,
    HELLO_S,
    IDLE_LOOP_S,
    IDLE_S,
    MOST_AT_WORK,
    MOST_IDLE,
    MOST_STRANGERS,
    NO_DESCRIPTOR_PAUSE_S,
    PROOF_S,
)
from ddpctl_worker.machine.notes import note, trace
from ddpctl_worker.machine.strangers import TALLY, Places, Stranger
from ddpctl_worker.machine.wakeup import WakePipe

_NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Session:
    """A connection. The acceptor's thread calls ``read``, which must not wait; a thread of its own calls ``work``."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.spoken = False  # whether the peer has sent any byte
        self.proved = False
        self.ready = False  # ``work`` can begin without a ``read``

    def read(self) -> bool:
        """Read the bytes that have arrived; return whether ``work`` can begin.

        Raises:
            OSError, Stranger: the connection is over.
        """
        raise NotImplementedError

    def work(self) -> bool:
        """Answer; return whether the connection stays open for the next question."""
        raise NotImplementedError


def limit_by_descriptors(wanted: int, share: int = 8) -> int:
    """Return ``wanted``, or less if this process may have few descriptors: at most 1/``share`` of its limit."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return wanted if soft == resource.RLIM_INFINITY else max(4, min(wanted, soft // share))


class NoRoom(Exception):
    """There is no descriptor or memory for another connection now."""


def accept_connection(listener: socket.socket) -> Optional[Tuple[socket.socket, str]]:
    """Return a new connection and its address, or ``None`` if no connection waits. The socket does not block.

    Raises:
        NoRoom: there is no descriptor or memory for it now.
    """
    try:
        sock, address = listener.accept()
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise NoRoom(str(error)) from None
        return None
    sock.setblocking(False)
    with contextlib.suppress(OSError):  # a Unix socket has no such option
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock, str(address[0]) if address else ""


class Acceptor:
    """Accepts connections. ``meet`` makes the session of a new connection. ``most``: threads at the same time."""

    def __init__(
        self,
        listener: socket.socket,
        meet: Callable[[socket.socket], Session],
        name: str,
        most: int = MOST_AT_WORK,
    ) -> None:
        self._listener, self._meet, self._name, self._most = listener, meet, name, most
        self._places: Places[Session] = Places(limit_by_descriptors(MOST_STRANGERS))
        self._most_idle = limit_by_descriptors(MOST_IDLE, 4)
        self._addresses: Dict[Session, str] = {}  # of the connections without proof
        self._idle: Dict[Session, float] = {}  # start of idling, the oldest first
        self._working: Set[Session] = set()
        self._back: Deque[Tuple[Session, bool]] = deque()  # returned by threads; whether it stays open
        self._closed = threading.Event()
        self._pipe = WakePipe()
        self._selector = selectors.DefaultSelector()
        self._listens_at: Optional[float] = 0.0  # when to watch the listener again; None: it is watched
        self._trouble = ""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._listener.setblocking(False)
        self._selector.register(self._pipe, selectors.EVENT_READ)
        self._thread.start()

    def close(self) -> None:
        """Close the listener and all connections. A thread at work finds its connection closed."""
        self._closed.set()
        self._pipe.wake()
        for session in list(self._working):
            with contextlib.suppress(OSError):
                # Below TLS, so the thread that uses the connection sees its end in any state.
                socket.socket.shutdown(session.sock, socket.SHUT_RDWR)
        self._thread.join(PROOF_S)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        fault = ""
        while not self._closed.is_set():
            try:
                self._turn()
            except Exception as error:  # a fault of this code: the listener stays
                if repr(error) != fault:
                    note("%s: %s" % (self._name, trace(error)))
                fault = repr(error)
                time.sleep(NO_DESCRIPTOR_PAUSE_S)
        for session in [*self._places, *self._idle, *(session for session, _ in self._back)]:
            session.sock.close()
        self._listener.close()
        self._selector.close()

    def _turn(self) -> None:
        now = time.monotonic()
        self._take_back(now)
        self._listen(now)
        came = False
        for key, _ in self._selector.select(self._pause(now)):
            if key.fileobj is self._pipe:
                self._pipe.clear()
            elif key.fileobj is self._listener:
                came = True
            else:
                self._read(key.data)
        # Existing connections are read first: a proof that has arrived counts before a connection has to go.
        if came:
            self._take_some()
        self._drop_late(now)

    def _pause(self, now: float) -> float:
        due = [HELLO_S / 4 if len(self._places) else IDLE_LOOP_S]
        due += [since + IDLE_S - now for since in list(self._idle.values())[:1]]
        if self._listens_at is not None:
            due.append(self._listens_at - now)
        return max(0.01, min(due))

    def _listen(self, now: float) -> None:
        if self._listens_at is not None and now >= self._listens_at:
            self._listens_at = None
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _take_some(self) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                taken = accept_connection(self._listener)
            except NoRoom as error:
                self._wait_for_room(str(error))
                return
            if taken is None:
                return
            self._welcome(*taken)

    def _wait_for_room(self, why: str) -> None:
        """Stop watching the listener for a while: without descriptors it would be readable all the time."""
        if why != self._trouble:
            note("%s: no connection can be taken: %s" % (self._name, why))
        self._trouble = why
        worst = self._places.first_to_close()
        if worst is not None:
            self._drop(worst, why)
        self._selector.unregister(self._listener)
        self._listens_at = time.monotonic() + NO_DESCRIPTOR_PAUSE_S

    def _welcome(self, sock: socket.socket, address: str) -> None:
        try:
            session = self._meet(sock)
        except (OSError, Stranger) as error:
            TALLY.add(address, str(error))
            sock.close()
            return
        if session.ready:
            self._begin(session)
            return
        self._addresses[session] = address
        full = self._places.add(session, address, time.monotonic())
        self._selector.register(session.sock, selectors.EVENT_READ, session)
        if full is not None:
            self._drop(full, "want of room: it had said nothing that proves who it is")

    def _read(self, session: Session) -> None:
        if session not in self._places and session not in self._idle:
            return  # dropped a moment ago
        try:
            work = session.read()
        except (OSError, Stranger) as error:
            self._drop(session, getattr(error, "strerror", None) or str(error) or repr(error))
            return
        if session.proved and session in self._addresses:
            self._places.remove(session)
            del self._addresses[session]
            self._idle[session] = time.monotonic()
        if work:
            self._idle.pop(session, None)
            self._selector.unregister(session.sock)
            self._begin(session)

    def _begin(self, session: Session) -> None:
        """Start a thread for ``session``. With too many threads close it: the peer asks again, or asks another host."""
        if len(self._working) >= self._most:
            session.sock.close()
            return
        self._working.add(session)
        if self._closed.is_set():  # ``close`` may have missed this session
            session.sock.close()
            return
        try:
            threading.Thread(target=self._work, name=self._name + "-answer", args=(session,), daemon=True).start()
        except RuntimeError as error:
            note("%s: %s" % (self._name, error))
            self._working.discard(session)
            session.sock.close()

    def _work(self, session: Session) -> None:
        stays = False
        try:
            stays = session.work()
        except Exception as error:
            note("%s: %s" % (self._name, trace(error)))
        self._back.append((session, stays))
        if not stays or self._closed.is_set():
            session.sock.close()
        self._pipe.wake()

    def _take_back(self, now: float) -> None:
        while self._back:
            session, stays = self._back.popleft()
            self._working.discard(session)
            if stays and not self._closed.is_set():
                session.sock.setblocking(False)
                self._idle[session] = now
                self._selector.register(session.sock, selectors.EVENT_READ, session)
        while len(self._idle) > self._most_idle:
            self._drop(next(iter(self._idle)), "")

    def _drop_late(self, now: float) -> None:
        """Close connections that are too late. ``now`` was taken before the last read, so all bytes until it count."""
        for session in self._places.list_late(now - HELLO_S):
            if not session.spoken:
                self._drop(session, "not a word within %g s" % HELLO_S)
        for session in self._places.list_late(now - PROOF_S):
            self._drop(session, "no proof within %g s" % PROOF_S)
        while self._idle and next(iter(self._idle.values())) < now - IDLE_S:
            self._drop(next(iter(self._idle)), "")

    def _drop(self, session: Session, why: str) -> None:
        """Close a connection that has no thread."""
        self._places.remove(session)
        self._idle.pop(session, None)
        address = self._addresses.pop(session, None)
        if address is not None:
            TALLY.add(address, why)
        with contextlib.suppress(KeyError, ValueError):  # it is not registered, or is closed
            self._selector.unregister(session.sock)
        session.sock.close()


class UnprovedSession(Session):
    """A session of a protocol without proof. ``answer`` is called once."""

    def __init__(self, sock: socket.socket, answer: Callable[[socket.socket], None]) -> None:
        super().__init__(sock)
        self._answer = answer
        self.proved = self.ready = True

    def work(self) -> bool:
        self._answer(self.sock)
        return False
