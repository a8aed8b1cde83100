"""The clocks, threads and sockets of the parts that wait for other hosts. The simulator replaces them."""

from __future__ import annotations

import select
import selectors
import socket
import threading
import time
from typing import Any, Callable, List, Sequence, Tuple

from ddpctl_worker.machine import net
from ddpctl_worker.machine.wakeup import WakePipe


class HostClock:
    """The clocks of this host, and the threads that wait for them."""

    def now(self) -> float:
        """Return monotonic seconds, without the time in which the machine was suspended."""
        return time.monotonic()

    def boot(self) -> float:
        """Return seconds since boot. They count during suspend, and do not jump when a user sets the clock."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall(self) -> float:
        """Return Unix seconds."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait for ``event`` for at most ``seconds``; return whether it is set."""
        return event.wait(seconds)

    def thread(self, work: Callable[..., None], name: str, *args: Any) -> threading.Thread:
        """Return a thread that ends with the process, not started yet."""
        return threading.Thread(target=work, name=name, args=args, daemon=True)


class Sockets:
    """Opens sockets and waits for them."""

    def connect(self, address: Tuple[str, int], seconds: float) -> socket.socket:
        return socket.create_connection(address, seconds)

    def listen(self, port: int, backlog: int) -> socket.socket:
        """Return a socket that listens on all addresses."""
        return net.listen(port, backlog)

    def listen_at(self, address: str, port: int, backlog: int) -> socket.socket:
        return net.listen_at(address, port, backlog)

    def selector(self) -> selectors.BaseSelector:
        return selectors.DefaultSelector()

    def pipe(self) -> WakePipe:
        """Return a pipe that wakes a thread which waits for sockets."""
        return WakePipe()

    def readable(self, waiting: Sequence[Any], seconds: float) -> List[Any]:
        """Wait up to ``seconds`` until some of ``waiting`` are readable; return them."""
        return select.select(waiting, [], [], seconds)[0]


CLOCK, SOCKETS = HostClock(), Sockets()
