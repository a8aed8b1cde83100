"""Measures round trips and bulk data to the nodes in turn; a stalled transfer does not delay the next node."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import termios
import threading
import time
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

from ddpctl_worker.mesh import wire
from ddpctl_worker.mesh.limits import (
    CHUNK,
    ECHOES,
    LEAST_PATIENCE_S,
    MAX_BULK_S,
    MAX_THREADS,
    MTU_BYTES,
    MTU_STALL_S,
    PATIENCE_S,
    PATIENCE_SHRINKS,
    THREADS_S,
    TRANSFER_TICK_S,
)
from ddpctl_worker.wire.channel import Channel
from ddpctl_worker.wire.contract import BROKEN, OK, SLOW, STALLED

WAYS = ("push", "pull")
# The packet sizes of Ethernet, PPPoE, cloud networks, VPNs and tunnels.
MTUS = (9000, 8900, 4000, 1500, 1492, 1460, 1450, 1440, 1420, 1400, 1380, 1350, 1300, 1280, 1200, 1000, 576)
_BLOCK = os.urandom(CHUNK)


class Measure(NamedTuple):
    """The settings of a measurement.

    ``size``: bytes each way; the best of ``repeat`` transfers counts. ``ways``: push, pull or both. A transfer without
    progress for ``stall_s`` seconds has stalled; then ``find_mtu`` looks for the largest packets that pass.
    """

    key: bytes
    size: int
    stall_s: float
    repeat: int
    find_mtu: bool
    ways: Tuple[str, ...]


def measure_all(links: Iterable[Dict[str, Any]], what: Measure, channel: Channel) -> List[Dict[str, Any]]:
    """Return the round trip in ms and the Mbit/s each way, for every link in order."""
    results: List[Dict[str, Any]] = []
    threads: List[threading.Thread] = []
    patience = PATIENCE_S
    for entry in links:
        if channel.closed.is_set():
            break
        result = {"peer": entry["peer"], "address": entry["address"], "port": entry["port"]}
        results.append(result)
        thread = threading.Thread(target=_measure, args=(result, what), daemon=True)
        thread.start()
        thread.join(patience)
        if thread.is_alive():
            threads.append(thread)
            patience = max(LEAST_PATIENCE_S, patience * PATIENCE_SHRINKS)  # many bad links must not add up
        while sum(t.is_alive() for t in threads) >= MAX_THREADS:
            time.sleep(THREADS_S)
    for thread in threads:  # each is bounded by its sockets' deadlines
        thread.join()
    return results


def _measure(result: Dict[str, Any], what: Measure) -> None:
    """Set the values of ``result``; never raises."""
    trips: List[float] = []
    for way in what.ways:
        rates: List[float] = []
        state = BROKEN
        for _ in range(what.repeat):
            try:
                with _Session(result["address"], result["port"], what.key, what.stall_s) as session:
                    trips += session.echo(ECHOES)
                    state, rate = session.transfer(way, what.size)
            except (OSError, ValueError) as error:
                state = BROKEN
                result[way + "_error"] = str(error) or type(error).__name__
                break
            if rate is not None:
                rates.append(rate)
            if state != OK:
                break
        result[way] = state
        result[way + "_mbit"] = round(max(rates), 1) if rates else None
        if state == STALLED and what.find_mtu:
            result["mtu"] = _largest_mtu(result, what, way)
    result["rtt_ms"] = round(min(trips) * 1000, 3) if trips else None


def _largest_mtu(result: Dict[str, Any], what: Measure, way: str) -> Optional[int]:
    """Return the largest of MTUS with which bulk data passes. All sizes are tried at the same time."""
    passed: List[int] = []

    def attempt(mtu: int) -> None:
        try:
            with _Session(result["address"], result["port"], what.key, MTU_STALL_S, mtu=mtu) as session:
                if session.transfer(way, MTU_BYTES)[0] == OK:
                    passed.append(mtu)
        except (OSError, ValueError):
            pass

    threads = [threading.Thread(target=attempt, args=(mtu,), daemon=True) for mtu in MTUS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(passed, default=None)


class _Session:
    """A connection to a listener, with the proof of both sides."""

    def __init__(self, address: str, port: int, key: bytes, stall_s: float, mtu: Optional[int] = None) -> None:
        self._stall_s = stall_s
        self._inbox = b""
        six = ":" in address
        self._sock = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._sock.settimeout(stall_s)
            if mtu is not None:  # before connecting: it limits both directions
                self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, mtu - (60 if six else 40))
            self._sock.connect((address, port))
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            challenge = wire.new_challenge()
            self._sock.sendall(wire.greeting(challenge))
            hello = wire.read_answer(key, self._line(), challenge)
            if hello is None:
                raise ValueError("the listener could not prove itself")
            self._sock.sendall(wire.dialer_auth(key, challenge, hello.challenge))
        except BaseException:
            self._sock.close()
            raise

    def __enter__(self) -> _Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def echo(self, times: int) -> List[float]:
        """Return the seconds of each round trip."""
        trips = []
        for _ in range(times):
            start = time.perf_counter()
            self._sock.sendall(b"echo\n")
            self._line()
            trips.append(time.perf_counter() - start)
        return trips

    def transfer(self, way: str, size: int) -> Tuple[str, Optional[float]]:
        """Send or receive ``size`` bytes. Return OK, SLOW or STALLED, and the Mbit/s of the bytes that arrived."""
        return self._push(size) if way == "push" else self._pull(size)

    def _push(self, size: int) -> Tuple[str, Optional[float]]:
        start = time.perf_counter()
        self._sock.sendall(b"push %d\n" % size)
        self._sock.settimeout(TRANSFER_TICK_S)
        sent, acked, moved = 0, 0, start
        while True:
            try:
                if sent < size:
                    sent += self._sock.send(_BLOCK[: min(CHUNK, size - sent)])
                else:
                    self._line()
                    return OK, _mbit(size, time.perf_counter() - start)
            except socket.timeout:
                pass
            now = time.perf_counter()
            arrived = sent - self._unacknowledged()
            if arrived > acked:
                acked, moved = arrived, now
            if now - moved > self._stall_s:
                return STALLED, None
            if now - start > MAX_BULK_S:
                return SLOW, _mbit(max(acked, 1), now - start)

    def _pull(self, size: int) -> Tuple[str, Optional[float]]:
        start = moved = time.perf_counter()
        self._sock.sendall(b"pull %d\n" % size)
        self._sock.settimeout(TRANSFER_TICK_S)
        left = size
        while left:
            try:
                data = self._sock.recv(min(left, CHUNK * 4))
                if not data:
                    raise ConnectionResetError("the listener closed the connection")
                left -= len(data)
                moved = time.perf_counter()
            except socket.timeout:
                pass
            now = time.perf_counter()
            if now - moved > self._stall_s:
                return STALLED, None
            if now - start > MAX_BULK_S:
                return SLOW, _mbit(max(size - left, 1), now - start)
        return OK, _mbit(size, time.perf_counter() - start)

    def _line(self) -> bytes:
        while b"\n" not in self._inbox:
            data = self._sock.recv(4096)
            if not data:
                raise ConnectionResetError("the listener closed the connection")
            self._inbox += data
        line, _, self._inbox = self._inbox.partition(b"\n")
        return line

    def _unacknowledged(self) -> int:
        """Return the bytes that the other side has not acknowledged yet (SIOCOUTQ)."""
        try:
            return int(struct.unpack("i", fcntl.ioctl(self._sock.fileno(), termios.TIOCOUTQ, b"\0" * 4))[0])
        except OSError:
            return 0


def _mbit(size: int, seconds: float) -> float:
    return size * 8 / max(seconds, 1e-6) / 1e6
