"""Watches the ranks' connections to other nodes for packets without an answer, and dials these nodes to make sure.

It has a thread of its own, since a dial takes seconds. The gang sends the findings to the hub, which decides (cuts.py).
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from ddpctl_worker.gang.limits import (
    CALM_S,
    DIAL_S,
    LOOK_LATE_S,
    LOOK_S,
    LOOK_SHARE,
    MAX_LOOK_S,
    SUSPECT_RETRANSMITS,
    SUSPECT_S,
    WAITING_LOOK_S,
)
from ddpctl_worker.machine import net, proc
from ddpctl_worker.machine.notes import note, trace
from ddpctl_worker.machine.system import CLOCK, HostClock
from ddpctl_worker.machine.tcpstate import COUNTERS, Row, Stuck, Table, Tracker, count_retransmissions

# No answer. Other errors are this node's own (no descriptor, no free port) and say nothing about the link.
SILENT = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN}
End = Tuple[str, int]  # address and port
OnFinding = Callable[[Dict[str, Any]], None]


class CutWatch:
    """Calls ``report`` with each finding about the link to another node. ``busy`` returns whether ranks run here.

    ``port``: a port on which another node may listen, beside the ports of the ranks.
    """

    def __init__(self, port: int, report: OnFinding, busy: Callable[[], bool], clock: HostClock = CLOCK) -> None:
        self._clock = clock
        self._port, self._report, self._busy = port, report, busy
        self.here = own_addresses()
        self.known: Dict[str, List[str]] = {}  # host -> its addresses
        self._table, self._met = Table({}), False
        self._tracker = Tracker()
        self._count: Optional[int] = None  # segments sent again, up to the last look
        self._asked: Dict[str, End] = {}  # dials for the hub: host -> address and port there
        self._event = threading.Event()
        self._over = False
        self._due = self._clock.now()  # when the next look should be
        self._calm: Dict[str, float] = {}  # host -> until when it is not dialled
        self._thread = clock.thread(self._loop, "cuts")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over = True
        self._event.set()

    def meet(self, host: str, addresses: List[str]) -> None:
        """Take in the addresses of another node, on all of its networks."""
        self.known[host] = addresses
        self._met = True

    def dial(self, host: str, end: End) -> None:
        """Dial that node soon: the hub asks whether it answers."""
        self._asked[host] = end
        self._event.set()

    def _loop(self) -> None:
        fault = ""
        while not self._over:
            try:
                pause = self._turn()
            except Exception as error:
                if repr(error) != fault:
                    note("the watch over the links between nodes: %s" % trace(error))
                fault, pause = repr(error), MAX_LOOK_S
            self._due = self._clock.now() + pause
            self._clock.wait(self._event, pause)
            self._event.clear()

    def _turn(self) -> float:
        """Look once, dial if necessary, and return the pause until the next look."""
        if not self._busy():
            self._tracker.forget()
            return LOOK_S
        cost = time.thread_time()
        stuck = self._look()
        cost = time.thread_time() - cost
        asked, self._asked = self._asked, {}
        # The same port number as on this end: hardly any program listens on it there, so no rank is disturbed.
        ends = {host: (suspect.row.remote, suspect.row.port) for host, suspect in self._suspects(stuck).items()}
        if ends or asked:
            self._ask({**asked, **ends})
        return max(WAITING_LOOK_S if stuck else LOOK_S, min(MAX_LOOK_S, LOOK_SHARE * cost))

    def _look(self) -> List[Stuck]:
        now = self._clock.now()
        if now - self._due > LOOK_LATE_S:
            self._tracker.forget()
        self._due = now
        return self._tracker.look(self._rows(), now)

    def _rows(self) -> Iterator[Row]:
        """Return the connections of this user with waiting data.

        The tables are read only if segments were sent again: the kernel walks all of its hash for them, which takes
        milliseconds.
        """
        before, self._count = self._count, None
        with contextlib.suppress(OSError), open(COUNTERS, "rb") as file:
            self._count = count_retransmissions(file.read())
        if self._count is not None and self._count == before and not self._tracker.waiting:
            return
        me = os.geteuid()
        if self._met:
            self._met = False
            self._table = Table(unique_addresses(self.here, dict(self.known)))
        for name in net.TCP_TABLES:
            with contextlib.suppress(FileNotFoundError), open(name, "rb") as file:  # a machine without IPv6
                yield from (row for row in self._table.rows(file.read()) if row.uid == me)

    def _suspects(self, stuck: List[Stuck]) -> Dict[str, Stuck]:
        """Return for each node that may be out of reach the connection that has waited longest."""
        found = [wait for wait in stuck if wait.seconds >= SUSPECT_S and wait.row.again >= SUSPECT_RETRANSMITS]
        found = [wait for wait in found if self._clock.now() >= self._calm.get(wait.row.host, 0.0)]
        if found:
            mine = sockets_below({wait.row.inode for wait in found})
            found = [wait for wait in found if wait.row.inode in mine]
        return {wait.row.host: wait for wait in sorted(found, key=lambda wait: wait.seconds)}

    def _ask(self, ends: Mapping[str, End]) -> None:
        """Dial these nodes, and report the results together with the data that still waits then."""
        targets = {host: [(address, port), (address, self._port)] for host, (address, port) in ends.items()}
        begun = self._clock.now()
        answered = hosts_that_answer(targets, DIAL_S)
        self._due = begun + DIAL_S
        late = self._clock.now() - self._due > LOOK_LATE_S  # after a sleep: the answers may have come meanwhile
        still = self._suspects(self._look())
        for host in [] if late else targets:
            if host in answered:
                self._calm[host] = self._clock.now() + CALM_S
            wait = still.get(host)
            found: Dict[str, Any] = {"to": host, "silent": host not in answered, "for": 0.0}
            if wait is not None:
                found.update({"for": wait.seconds, "end": [wait.row.local, wait.row.far], "opening": wait.row.opening})
            self._report(found)


def own_addresses() -> List[str]:
    """Return the addresses by which other nodes may reach this node."""
    found = [str(entry["address"]) for entry in net.addresses()]
    return [address for address in found if address != "::1" and not address.startswith("127.")]


def unique_addresses(here: List[str], known: Mapping[str, List[str]]) -> Dict[str, str]:
    """Return address -> host, for addresses of a single host: a bridge has the same address on every machine."""
    everywhere = here + [address for found in known.values() for address in found]
    return {address: host for host, found in known.items() for address in found if everywhere.count(address) == 1}


def sockets_below(inodes: Set[int]) -> Set[int]:
    """Return the sockets that processes below this process hold; all ``inodes`` if that cannot be read."""
    found: Set[int] = set()
    for pid in proc.descendants([os.getpid()], proc.snapshot()):
        try:
            found |= proc.sockets(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue  # the process has just ended
        except PermissionError:
            return inodes
    return found & inodes


def hosts_that_answer(targets: Mapping[str, Sequence[End]], seconds: float) -> Set[str]:
    """Return the hosts that answered on one of their ports within ``seconds``. A refusal counts: packets pass."""
    found: Set[str] = set()
    deadline = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for host, ends in targets.items():
            for end in ends:
                sock = socket.socket(socket.AF_INET6 if ":" in end[0] else socket.AF_INET)
                stack.callback(sock.close)
                sock.setblocking(False)
                code = sock.connect_ex(end)
                if code == errno.EINPROGRESS:
                    selector.register(sock, selectors.EVENT_WRITE, (sock, host))
                elif code not in SILENT:
                    found.add(host)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:  # the time is over; answers that came during a pause of this process have been read
                break
            for key, _ in ready:
                selector.unregister(key.fileobj)
                sock, host = key.data
                if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) not in SILENT:
                    found.add(host)
    return found
