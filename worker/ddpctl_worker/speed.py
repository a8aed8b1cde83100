"""Latency and bulk data to one node after the other; a transfer that stalls waits beside the rest, not before it."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import termios
import threading
import time
from typing import Any, Dict, Iterable, List, Tuple

from ddpctl_worker import meshwire
from ddpctl_worker.link import Link

ECHOES = 5
PATIENCE_S = 0.5  # how long the next target waits for this one
MAX_THREADS = 32
MAX_BULK_S = 12.0
_CHUNK = 1 << 16
_BLOCK = os.urandom(_CHUNK)


def measure_all(
    links: Iterable[Dict[str, Any]], key: bytes, size: int, stall_s: float, repeat: int, link: Link
) -> List[Dict[str, Any]]:
    """Round trip in ms, and ``size`` bytes each way in Mbit/s, to every link in order; the best of ``repeat``."""
    results: List[Dict[str, Any]] = []
    threads: List[threading.Thread] = []
    patience = PATIENCE_S
    for entry in links:
        if link.closed.is_set():
            break
        result = {"peer": entry["peer"], "address": entry["address"], "port": entry["port"]}
        results.append(result)
        thread = threading.Thread(target=_measure, args=(result, key, size, stall_s, repeat), daemon=True)
        thread.start()
        thread.join(patience)
        if thread.is_alive():
            threads.append(thread)
            patience = max(0.05, patience * 0.8)  # many bad links must not add up
        while sum(t.is_alive() for t in threads) >= MAX_THREADS:
            time.sleep(0.05)
    for thread in threads:  # each is bounded by its sockets' deadlines
        thread.join()
    return results


def _measure(result: Dict[str, Any], key: bytes, size: int, stall_s: float, repeat: int) -> None:
    """Fill ``result`` in; never raises."""
    trips: List[float] = []
    for way in ("push", "pull"):
        rates, state, error = [], "failed", None
        for _ in range(repeat):
            try:
                with _Session(result["address"], result["port"], key, stall_s) as session:
                    trips += session.echo(ECHOES)
                    state, rate = session.push(size) if way == "push" else session.pull(size)
            except (OSError, ValueError) as exc:
                error = str(exc) or type(exc).__name__
                break
            if rate is not None:
                rates.append(rate)
            if state != "ok":
                break
        result[way] = state
        result[way + "_mbit"] = round(max(rates), 1) if rates else None
        if error:
            result[way + "_error"] = error
    result["rtt_ms"] = round(min(trips) * 1000, 3) if trips else None


class _Session:
    """An authenticated connection to a listener."""

    def __init__(self, address: str, port: int, key: bytes, stall_s: float) -> None:
        self._stall_s = stall_s
        self._inbox = b""
        self._sock = socket.create_connection((address, port), timeout=stall_s)
        try:
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            challenge = meshwire.new_challenge()
            self._sock.sendall(meshwire.greeting(challenge))
            hello = meshwire.read_answer(key, self._line(), challenge)
            if hello is None:
                raise ValueError("the listener could not prove itself")
            self._sock.sendall(meshwire.dialer_auth(key, challenge, hello.challenge))
        except BaseException:
            self._sock.close()
            raise

    def __enter__(self) -> _Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def echo(self, times: int) -> List[float]:
        """Seconds of each round trip."""
        trips = []
        for _ in range(times):
            start = time.perf_counter()
            self._sock.sendall(b"echo\n")
            self._line()
            trips.append(time.perf_counter() - start)
        return trips

    def push(self, size: int) -> Tuple[str, Any]:
        """``size`` bytes to the listener: ("ok" | "stalled", Mbit/s so far)."""
        start = time.perf_counter()
        self._sock.sendall(b"push %d\n" % size)
        self._sock.settimeout(0.2)
        sent, acked, moved = 0, 0, start
        while True:
            try:
                if sent < size:
                    sent += self._sock.send(_BLOCK[: min(_CHUNK, size - sent)])
                else:
                    self._line()
                    return "ok", _mbit(size, time.perf_counter() - start)
            except socket.timeout:
                pass
            now = time.perf_counter()
            arrived = sent - self._unacknowledged()
            if arrived > acked:
                acked, moved = arrived, now
            if now - moved > self._stall_s:
                # Some data got through before: a slow or broken link, not one that swallows every big packet.
                return "stalled", None
            if now - start > MAX_BULK_S:
                return "slow", _mbit(max(acked, 1), now - start)

    def pull(self, size: int) -> Tuple[str, Any]:
        """``size`` bytes from the listener: ("ok" | "stalled", Mbit/s so far)."""
        start = moved = time.perf_counter()
        self._sock.sendall(b"pull %d\n" % size)
        self._sock.settimeout(0.2)
        left = size
        while left:
            try:
                data = self._sock.recv(min(left, _CHUNK * 4))
                if not data:
                    raise ConnectionResetError("the listener hung up")
                left -= len(data)
                moved = time.perf_counter()
            except socket.timeout:
                pass
            now = time.perf_counter()
            if now - moved > self._stall_s:
                return "stalled", None
            if now - start > MAX_BULK_S:
                return "slow", _mbit(max(size - left, 1), now - start)
        return "ok", _mbit(size, time.perf_counter() - start)

    def _line(self) -> bytes:
        while b"\n" not in self._inbox:
            data = self._sock.recv(4096)
            if not data:
                raise ConnectionResetError("the listener hung up")
            self._inbox += data
        line, _, self._inbox = self._inbox.partition(b"\n")
        return line

    def _unacknowledged(self) -> int:
        """Bytes that the other side has not acknowledged yet (SIOCOUTQ)."""
        try:
            return int(struct.unpack("i", fcntl.ioctl(self._sock.fileno(), termios.TIOCOUTQ, b"\0" * 4))[0])
        except OSError:
            return 0


def _mbit(size: int, seconds: float) -> float:
    return size * 8 / max(seconds, 1e-6) / 1e6
