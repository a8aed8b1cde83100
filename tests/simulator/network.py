"""Connections between simulated machines: late, lost and sent again, cut in one direction or in both.

Like TCP: what was sent comes in order and once, or not at all; a part that is lost is sent again after 0.3 s and then
after twice as long each time. A process that ends closes its connections; a machine that loses power does not.
"""

from __future__ import annotations

import errno
import selectors
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from ddpctl_worker.machine.system import Sockets
from ddpctl_worker.machine.wakeup import WakePipe
from tests.simulator.schedule import Killed, Machine, Process, Scheduler, SimThread

AGAIN_S = 0.3  # a part that was lost is sent again; twice as late each time
SYN_AGAIN_S = 1.0  # the same for the first packet of a connection
GIVES_UP_S = 64.0
FOREVER_S = 1e9


class Network:
    """Which host reaches which host, and with which delay. ``cut`` holds pairs of names: nothing comes from the first
    to the second.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.machines: dict[str, Machine] = {}
        self.cut: set[tuple[str, str]] = set()
        self.delay, self.loss, self.late = 0.002, 0.0, 0.0  # mean seconds; shares of what is lost, and of what is late
        self.listeners: dict[tuple[str, int], Listener] = {}
        self._port = 20000

    def passes(self, source: str, to: str) -> bool:
        """Whether a packet that is sent now arrives."""
        if (source, to) in self.cut or not (self.machines[source].powered and self.machines[to].powered):
            return False
        return not self.loss or self.scheduler.random.random() >= self.loss

    def lag(self) -> float:
        choose = self.scheduler.random
        if self.late and choose.random() < self.late:
            return choose.uniform(0.0, 2.5)
        return choose.expovariate(1.0 / self.delay)

    def free_port(self) -> int:
        self._port += 1
        return self._port

    def deliver(self, source: str, to: str, arrive: Callable[[], None], again: float = AGAIN_S) -> None:
        """Call ``arrive`` when the packet comes. A lost packet is sent again, with doubled pauses."""
        if self.passes(source, to):
            self.scheduler.at(self.lag(), arrive)
        elif self.machines[source].powered and again < GIVES_UP_S:
            self.scheduler.at(again, lambda: self.deliver(source, to, arrive, again * 2))


class Waitable:
    """What a thread may wait for."""

    def __init__(self) -> None:
        self.waiter: SimThread | None = None

    @property
    def ready(self) -> bool:
        raise NotImplementedError

    def signal(self) -> None:
        if self.waiter is not None:
            thread, self.waiter = self.waiter, None
            thread.process.scheduler.wake(thread)


class End(Waitable):
    """An end of a connection, as a socket."""

    def __init__(self, sockets: SimSockets) -> None:
        super().__init__()
        self._sockets, self._network = sockets, sockets.network
        self.process, self.machine = sockets.process, sockets.process.machine
        self._boots = self.machine.boots
        self.peer: End | None = None
        self.open = self.refused = False  # as the side that connects
        self._came = bytearray()
        self._over = self._reset = self._closed = False
        self._seconds: float | None = None
        self._flight: deque[list[Any]] = deque()  # what is on its way: whether it has come, and its effect there
        sockets.ends.append(self)

    @property
    def ready(self) -> bool:
        return bool(self._came) or self._over or self._reset or self.refused

    def send(self, data: bytes) -> int:
        if not self.process.alive:
            raise Killed
        if self._closed or self._reset:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        self._post(lambda peer: peer.take(data))
        return len(data)

    def sendall(self, data: bytes) -> None:
        self.send(data)

    def recv(self, most: int) -> bytes:
        if not self.ready:
            if self._seconds == 0.0:
                raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
            self._sockets.wait([self], FOREVER_S if self._seconds is None else self._seconds)
            if not self.ready:
                raise TimeoutError("timed out")
        if self._came:
            data = bytes(self._came[:most])
            del self._came[:most]
            return data
        if self._reset:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        return b""

    def close(self) -> None:
        """The kernel does it for a process that ends."""
        if not self._closed:
            self._closed = True
            self._sockets.ends.remove(self)
            if self.machine.powered:
                self._post(End.take_end)

    # --- packets from the other end

    @property
    def gone(self) -> bool:
        """Whether no object here knows of the connection any more."""
        return self._closed or self.machine.boots != self._boots

    def take(self, data: bytes) -> None:
        self._came += data
        self.signal()

    def take_end(self) -> None:
        self._over = True
        self.signal()

    def take_reset(self) -> None:
        self._reset = True
        self.signal()

    def take_answer(self) -> None:
        """To the first packet of the connection."""
        if self.gone and self.peer is not None:
            self.reset_peer()
        self.open = self.peer is not None
        self.refused = not self.open
        self.signal()

    def reset_peer(self) -> None:
        assert self.peer is not None
        peer = self.peer
        self._network.deliver(self.machine.name, peer.machine.name, peer.take_reset)

    def _post(self, arrive: Callable[[End], None]) -> None:
        if self.peer is not None:
            part = [False, arrive]
            self._flight.append(part)
            there = self.peer.machine.name
            self._network.deliver(self.machine.name, there, lambda: self._landed(part))

    def _landed(self, part: list[Any]) -> None:
        part[0] = True
        assert self.peer is not None
        while self._flight and self._flight[0][0]:
            arrive = self._flight.popleft()[1]
            if not self.peer.gone:
                arrive(self.peer)
            elif arrive is not End.take_end:
                self.peer.reset_peer()

    # --- what a socket has besides

    def setblocking(self, blocking: bool) -> None:
        self._seconds = None if blocking else 0.0

    def settimeout(self, seconds: float | None) -> None:
        self._seconds = seconds

    def setsockopt(self, *_: Any) -> None:
        pass

    def getpeername(self) -> tuple[str, int]:
        assert self.peer is not None
        return self.peer.machine.name, 0

    def __enter__(self) -> End:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Listener(Waitable):
    """A port of a machine where connections are taken, also while its process is stopped."""

    def __init__(self, sockets: SimSockets, port: int) -> None:
        super().__init__()
        self.sockets, self.port = sockets, port
        self._came: deque[End] = deque()
        self._blocks = True

    @property
    def ready(self) -> bool:
        return bool(self._came)

    def called(self, end: End) -> None:
        self._came.append(end)
        self.signal()

    def accept(self) -> tuple[End, tuple[str, int]]:
        while not self._came:
            if not self._blocks:
                raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
            self.sockets.wait([self], FOREVER_S)
        end = self._came.popleft()
        return end, end.getpeername()

    def setblocking(self, blocking: bool) -> None:
        self._blocks = blocking

    def getsockname(self) -> tuple[str, int]:
        return self.sockets.process.machine.name, self.port

    def close(self) -> None:
        place = self.getsockname()
        if self.sockets.network.listeners.get(place) is self:
            del self.sockets.network.listeners[place]
        while self._came:
            self._came.popleft().close()


class Pipe(Waitable):
    """A WakePipe."""

    def __init__(self) -> None:
        super().__init__()
        self._full = False

    @property
    def ready(self) -> bool:
        return self._full

    def wake(self) -> None:
        self._full = True
        self.signal()

    def clear(self) -> None:
        self._full = False


class Selector:
    """As far as the gang needs it."""

    def __init__(self, sockets: SimSockets) -> None:
        self._sockets = sockets
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, thing: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        self._keys[thing] = key = selectors.SelectorKey(thing, 0, events, data)
        return key

    modify = register

    def unregister(self, thing: Any) -> selectors.SelectorKey:
        return self._keys.pop(thing)

    def select(self, seconds: float) -> list[tuple[selectors.SelectorKey, int]]:
        found = self._sockets.readable(list(self._keys), seconds)
        return [(self._keys[one], selectors.EVENT_READ) for one in found if one in self._keys]

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def close(self) -> None:
        self._keys = {}


class SimSockets(Sockets):
    """The network as one process sees it. ``own_ports``: it listens where there is room, wherever it wants to."""

    def __init__(self, process: Process, network: Network, own_ports: bool = False) -> None:
        self.process, self.network, self._own_ports = process, network, own_ports
        self.ends: list[End] = []
        self._listeners: list[Listener] = []
        process.at_end.append(self._close)

    def connect(self, address: tuple[str, int], seconds: float) -> Any:
        here, (there, port) = self.process.machine, address
        end, boots = End(self), here.boots

        def called() -> None:
            listener = self.network.listeners.get((there, port))
            if listener is not None:
                other = End(listener.sockets)
                end.peer, other.peer = other, end
                listener.called(other)
            if here.boots == boots:
                self.network.deliver(there, here.name, end.take_answer)

        self.network.deliver(here.name, there, called, SYN_AGAIN_S)
        self.wait([end], seconds, lambda: end.open)
        if end.open:
            return end
        end.close()
        if end.refused:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        raise TimeoutError("timed out")

    def listen(self, port: int, backlog: int) -> Any:
        return self.listen_at("", port, backlog)

    def listen_at(self, address: str, port: int, backlog: int) -> Any:
        listener = Listener(self, self.network.free_port() if self._own_ports else port)
        place = listener.getsockname()
        if place in self.network.listeners:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        self.network.listeners[place] = listener
        self._listeners.append(listener)
        return listener

    def selector(self) -> selectors.BaseSelector:
        return cast(selectors.BaseSelector, Selector(self))

    def pipe(self) -> WakePipe:
        return cast(WakePipe, Pipe())

    def readable(self, waiting: Sequence[Any], seconds: float) -> list[Any]:
        if not any(one.ready for one in waiting):
            self.wait(waiting, seconds)
        return [one for one in waiting if one.ready]

    def wait(self, waiting: Sequence[Waitable], seconds: float, enough: Callable[[], bool] = lambda: False) -> None:
        """Wait until any of these has something to read, or for so many seconds."""
        if enough():
            return
        scheduler = self.process.scheduler
        for one in waiting:
            one.waiter = scheduler.running()
        try:
            scheduler.pause(seconds / self.process.machine.rate)
        finally:
            for one in waiting:
                one.waiter = None

    def _close(self) -> None:
        for listener in self._listeners:
            listener.close()
        for end in list(self.ends):
            end.close()
