"""Time, threads and the network, as the parts that wait for other hosts see them. A simulator puts its own in."""

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
        """Monotonic seconds, without the time in which the machine was suspended."""
        return time.monotonic()

    def boot(self) -> float:
        """Seconds since boot: they count during suspend too, and never jump when somebody sets the clock."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall(self) -> float:
        """Unix seconds."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Until ``event`` is set, for this many seconds at most; whether it is set."""
        return event.wait(seconds)

    def thread(self, work: Callable[..., None], name: str, *args: Any) -> threading.Thread:
        """A thread that ends with the process; not started yet."""
        return threading.Thread(target=work, name=name, args=args, daemon=True)


class Sockets:
    """Where sockets are opened and waited for."""

    def connect(self, address: Tuple[str, int], seconds: float) -> socket.socket:
        return socket.create_connection(address, seconds)

    def listen(self, port: int, backlog: int) -> socket.socket:
        """On all addresses."""
        return net.listen(port, backlog)

    def listen_at(self, address: str, port: int, backlog: int) -> socket.socket:
        return net.listen_at(address, port, backlog)

    def selector(self) -> selectors.BaseSelector:
        return selectors.DefaultSelector()

    def pipe(self) -> WakePipe:
        """What a thread waits for beside its sockets."""
        return WakePipe()

    def readable(self, waiting: Sequence[Any], seconds: float) -> List[Any]:
        """Those of ``waiting`` that have something to read, as soon as there are any."""
        return select.select(waiting, [], [], seconds)[0]


CLOCK, SOCKETS = HostClock(), Sockets()
