"""The dialling half of the mesh: dials every port of every target at the same time, then measures one target at a time.

A target is ``{"peer", "address", "ports": [port]}``; a peer may have several targets with different addresses. The
answer:

    {"open": [[peer, address, local, interface, [port]]],    the ports with the right answer
     "links": [{"peer", "address", "port", "status", "errno", "detail", "local", "interface", "ms"}],    all other ports
     "speeds": [{"dialer", "peer", "address", "port", "rtt_ms", "push_mbit", "pull_mbit", "push", "pull"}],
     "neighbours": the neighbour table after the dials, "overflows" during the dials; None: unknown}

The words for ``status``, ``push`` and ``pull`` are in contract.py.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

from ddpctl_worker.machine.net import addresses, neighbour_table, silent_neighbour, source_address
from ddpctl_worker.mesh import wire
from ddpctl_worker.mesh.limits import ANSWER_S, CONNECT_S, IN_FLIGHT, LINE_LIMIT, SELECT_S, STALL_S
from ddpctl_worker.mesh.speed import WAYS, Measure, measure_all
from ddpctl_worker.mesh.wire import key_of
from ddpctl_worker.wire.channel import Channel
from ddpctl_worker.wire.contract import (
    CLOSED,
    DROPPED,
    ERROR,
    FOREIGN,
    NO_ROUTE,
    OK,
    REFUSED,
    REJECTED,
    SILENT,
    WRONG_HOST,
)

_ICMP = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.EPERM, errno.ENOPROTOOPT}


class _Attempt:
    """A connection to a port of a target."""

    def __init__(self, peer: str, address: str, port: int) -> None:
        self.peer, self.address, self.port = peer, address, port
        self.sock: Optional[socket.socket] = None
        self.challenge = wire.new_challenge()
        self.started = self.deadline = 0.0
        self.connected = False
        self.inbox = b""
        self.retried = False
        self.result: Dict[str, Any] = {"peer": peer, "address": address, "port": port}

    def end(self, status: str, number: Optional[int] = None, detail: Optional[str] = None) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None
        self.result.update(status=status, ms=round((time.monotonic() - self.started) * 1000, 2))
        if number:
            self.result.update(errno=errno.errorcode.get(number, str(number)))
            detail = detail or os.strerror(number)
        if detail:
            self.result["detail"] = detail


def dial(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """Answer the verb: dial every port of every target, then measure the first address of each peer that answered."""
    key = key_of(request)
    attempts = [
        _Attempt(str(target["peer"]), str(target["address"]), int(port))
        for target in request["targets"]
        for port in target["ports"]
    ]
    before = neighbour_table()
    Dialer(key).run(attempts, channel)
    neighbours = neighbour_table()
    if neighbours and before:
        neighbours["overflows"] -= before["overflows"]
    links = [attempt.result for attempt in attempts]
    _name_interfaces(links)
    speeds: List[Dict[str, Any]] = []
    size = int(request.get("bytes", 0))
    if size:
        chosen = _one_address_each(links)
        speeds = measure_all(
            chosen,
            Measure(
                key,
                size,
                STALL_S,
                int(request.get("repeat", 1)),
                bool(request.get("find_mtu")),
                tuple(request.get("ways") or WAYS),
            ),
            channel,
        )
    for speed in speeds:
        speed["dialer"] = request["host"]
    return {
        "open": _open(links),
        "links": [entry for entry in links if entry["status"] != OK],
        "speeds": speeds,
        "neighbours": neighbours,
    }


def _open(links: List[Dict[str, Any]]) -> List[List[Any]]:
    """Return the open ports as [peer, address, local, interface, [port]].

    A port takes few bytes in this form, since nearly all ports of a big mesh are open.
    """
    found: Dict[Tuple[Any, ...], List[int]] = {}
    for entry in links:
        if entry["status"] == OK:
            key = (entry["peer"], entry["address"], entry["local"], entry["interface"])
            found.setdefault(key, []).append(entry["port"])
    return [[*key, ports] for key, ports in found.items()]


def _one_address_each(links: List[Dict[str, Any]]) -> Iterator[Dict[str, Any]]:
    done = set()
    for entry in links:
        if entry["status"] == OK and entry["peer"] not in done:
            done.add(entry["peer"])
            yield entry


def _name_interfaces(links: List[Dict[str, Any]]) -> None:
    owner = {entry["address"]: entry["interface"] for entry in addresses()}
    for entry in links:
        entry["interface"] = owner.get(entry.get("local"))


class Dialer:
    """Makes the attempts in their order, at most IN_FLIGHT at a time."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._selector = selectors.DefaultSelector()
        self._waiting: List[_Attempt] = []
        self._running: List[_Attempt] = []

    def run(self, attempts: List[_Attempt], channel: Channel) -> None:
        """Set the result of every attempt. The time is bounded by the two deadlines times the number of rounds."""
        self._waiting = list(reversed(attempts))
        try:
            while (self._waiting or self._running) and not channel.closed.is_set():
                while self._waiting and len(self._running) < IN_FLIGHT:
                    self._start(self._waiting.pop())
                for key, _ in self._selector.select(SELECT_S):
                    self._turn(key.data)
                self._expire()
        finally:
            for attempt in self._running + self._waiting:
                attempt.started = attempt.started or time.monotonic()
                attempt.end(ERROR, None, "the preflight was interrupted")
            self._selector.close()

    def _start(self, attempt: _Attempt) -> None:
        attempt.started = time.monotonic()
        attempt.deadline = attempt.started + CONNECT_S
        attempt.connected, attempt.inbox = False, b""
        local = source_address(attempt.address)
        if local is None:
            attempt.end(NO_ROUTE, errno.ENETUNREACH, "no route to %s on this node" % attempt.address)
            return
        attempt.result["local"] = local
        family = socket.AF_INET6 if ":" in attempt.address else socket.AF_INET
        attempt.sock = socket.socket(family, socket.SOCK_STREAM)
        attempt.sock.setblocking(False)
        attempt.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        number = attempt.sock.connect_ex((attempt.address, attempt.port))
        if number not in (0, errno.EINPROGRESS):
            self._refused(attempt, number)
            return
        self._running.append(attempt)
        self._selector.register(attempt.sock, selectors.EVENT_WRITE, attempt)

    def _turn(self, attempt: _Attempt) -> None:
        sock = attempt.sock
        if sock is None:
            return
        if not attempt.connected:
            self._connected(attempt, sock)
            return
        try:
            data = sock.recv(4096)
        except BlockingIOError:
            return
        except OSError as error:
            self._hung_up(attempt, error.errno or errno.ECONNRESET)
            return
        if not data:
            self._hung_up(attempt, None)
            return
        attempt.inbox += data
        if b"\n" in attempt.inbox or len(attempt.inbox) > LINE_LIMIT:
            self._judge(attempt)

    def _connected(self, attempt: _Attempt, sock: socket.socket) -> None:
        number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            self._forget(attempt)
            self._refused(attempt, number)
            return
        attempt.connected = True
        attempt.deadline = time.monotonic() + ANSWER_S
        attempt.result["local"] = str(sock.getsockname()[0]).split("%")[0]
        attempt.result["connect_ms"] = round((time.monotonic() - attempt.started) * 1000, 2)
        try:
            sock.send(wire.greeting(attempt.challenge))
        except OSError as error:
            self._hung_up(attempt, error.errno or errno.ECONNRESET)
            return
        self._selector.modify(sock, selectors.EVENT_READ, attempt)

    def _judge(self, attempt: _Attempt) -> None:
        """Set the result by the host that answered."""
        line, _, _ = attempt.inbox.partition(b"\n")
        self._forget(attempt)
        try:
            hello = wire.read_answer(self._key, line, attempt.challenge)
        except ValueError:
            text = attempt.inbox[:60].decode("utf-8", "backslashreplace")
            attempt.end(FOREIGN, None, "it said %r" % text)
            return
        if hello is None:
            attempt.end(FOREIGN, None, "another preflight is running there")
        elif hello.host != attempt.peer:
            attempt.result["answered"] = hello.host
            attempt.end(WRONG_HOST, None, "%s answered" % hello.host)
        else:
            attempt.end(OK)

    def _refused(self, attempt: _Attempt, number: int) -> None:
        if number == errno.ECONNREFUSED:
            attempt.end(REFUSED, number)
        elif number == errno.ETIMEDOUT:
            attempt.end(DROPPED, number)
        elif number == errno.EHOSTUNREACH and silent_neighbour(attempt.address):
            attempt.end(NO_ROUTE, number, "no answer at %s on the local network" % attempt.address)
        elif number in _ICMP:
            attempt.end(REJECTED, number)
        else:
            attempt.end(ERROR, number)

    def _hung_up(self, attempt: _Attempt, number: Optional[int]) -> None:
        """Try once more after a connection that closed without an answer; then accept the result."""
        self._forget(attempt)
        if not attempt.retried:
            attempt.retried = True
            if attempt.sock is not None:
                attempt.sock.close()
            self._waiting.append(attempt)
        elif attempt.inbox:
            attempt.end(FOREIGN, None, "it said %r" % attempt.inbox[:60].decode("utf-8", "backslashreplace"))
        else:
            attempt.end(CLOSED, number)

    def _expire(self) -> None:
        now = time.monotonic()
        for attempt in [entry for entry in self._running if entry.deadline <= now]:
            self._forget(attempt)
            attempt.end(SILENT if attempt.connected else DROPPED)

    def _forget(self, attempt: _Attempt) -> None:
        self._running.remove(attempt)
        if attempt.sock is not None:
            self._selector.unregister(attempt.sock)
