"""Before an attempt: this host gets the newest complete checkpoints of the job from the other hosts of the run.

Each agent serves what its host has for as long as the run lasts. The first host of an attempt decides for all of them
(checkpoint/choice.py), so that none resumes from another checkpoint than the rest. It does so once each of them has
hashed what it had not hashed yet, and they change nothing before they have its word. A host that is not in the attempt
counts where all of them reach it.
"""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ddpctl_worker import net, notes
from ddpctl_worker.agent.part import LocalPart
from ddpctl_worker.agent.talk import PeerLine, Unanswered
from ddpctl_worker.channel import WorkerError
from ddpctl_worker.checkpoint.choice import restoring
from ddpctl_worker.checkpoint.copy import CheckpointClient
from ddpctl_worker.checkpoint.jobfolder import JobFolder
from ddpctl_worker.checkpoint.keeper import Keeper
from ddpctl_worker.checkpoint.restore import Order, bring, clients, kept
from ddpctl_worker.checkpoint.serve import CheckpointServer
from ddpctl_worker.checkpoint.throttle import Throttle
from ddpctl_worker.contract import TIMEOUT
from ddpctl_worker.paths import job_id
from ddpctl_worker.store.relay import PeerGone, context

TRIES, PAUSE_S = 3, 1.0  # to reach a host of the attempt
SILENT_S = 30.0  # the first host may be busy; if it is lost, the attempt is called off


class Resume:
    """``copying``: certificate and key of the run's transfers (PEM), as for the copies; None: the run has none."""

    def __init__(self, base: str, run: Mapping[str, Any], copying: Optional[Mapping[str, str]], line: PeerLine) -> None:
        self._line, self._host = line, str(run["host"])
        self._addresses = {one["host"]: one["address"] for one in run["restart"]["hosts"]}
        self._folder = JobFolder(base, job_id(run), self._host)
        self._pem = None if copying is None else (copying["certificate"], copying["key"], base)
        self._server: Optional[CheckpointServer] = None
        self._at_work = threading.Lock()  # on the job's folder: one attempt's preparation at a time
        self._deciding = threading.Lock()
        self._reaches: Dict[int, Dict[str, List[str]]] = {}  # by attempt: who is done hashing, and whom it reaches
        self._decided: Tuple[int, Dict[str, List[Order]]] = (0, {})  # for which attempt, and who has to do what

    @property
    def port(self) -> Optional[int]:
        """Where this host serves; None: it does not."""
        return self._server.port if self._server is not None else None

    def start(self) -> None:
        if self._pem is not None:
            self._server = CheckpointServer(self._folder, context(*self._pem, True), net.listen(0))
            self._server.orders = self._orders

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def bring(self, part: LocalPart, hosts: Sequence[str]) -> None:
        """Have in place what ``hosts``, those of the attempt, are to resume from.

        Raises:
            CalledOff: ``part`` is not wanted any more.
            WorkerError: it is somewhere, and cannot be had: no space, or the connection was lost again and again.
        """
        if self._pem is None:
            return
        while not self._at_work.acquire(timeout=PAUSE_S):  # an attempt that was called off may not have ended yet
            part.move(0)
        try:
            self._bring(part, hosts, context(*self._pem, False))
        finally:
            self._at_work.release()

    def _bring(self, part: LocalPart, hosts: Sequence[str], tls: ssl.SSLContext) -> None:
        # What was saved right before the end of the last attempt may have no manifest yet.
        own = self._folder.make(self._host)
        Keeper(own, self._host, since=time.time(), read_on=part.move).look(ended=False)
        peers = clients(self._serving(part, hosts), tls)
        try:
            reaches = _reached(part, {host: peer for host, peer in peers.items() if host not in hosts})
            first = hosts[0] == self._host
            orders = self._decide(part, hosts, peers, reaches) if first else _asked(part, peers[hosts[0]], reaches)
            count = bring(self._folder, peers, orders, Throttle(None, part.move))
        finally:
            for peer in peers.values():
                peer.close()
        if orders:
            names = ", ".join(order["entry"] for order in orders)
            notes.note("the attempt resumes from %s: %d bytes came from other hosts" % (names, count))

    def _decide(
        self, part: LocalPart, hosts: Sequence[str], peers: Dict[str, CheckpointClient], reaches: List[str]
    ) -> List[Order]:
        """As the first host: for all of them, once they can be asked."""
        with self._deciding:
            told = self._reaches.setdefault(part.number, {})
        told[self._host] = reaches
        while any(host not in told for host in hosts):
            part.move(0)
            part.waits_for = next(host for host in hosts if host not in told)
            time.sleep(PAUSE_S)
        part.waits_for = None
        used = {host: peer for host, peer in peers.items() if host in hosts or all(host in told[one] for one in hosts)}
        held, trouble = kept(self._folder, used)
        self._require(hosts, trouble)
        found = restoring(held, hosts)
        orders: Dict[str, List[Order]] = {host: [one.order() for one in found if host in one.hosts] for host in hosts}
        with self._deciding:
            self._reaches, self._decided = {}, (part.number, orders)
        return orders[self._host]

    def _orders(self, host: str, attempt: int, reaches: List[str]) -> Optional[List[Order]]:
        """A host of the attempt is done hashing, and asks what it has to do."""
        with self._deciding:
            if self._decided[0] == attempt:
                return self._decided[1].get(host)
            self._reaches.setdefault(attempt, {})[host] = reaches
            return None

    def _serving(self, part: LocalPart, hosts: Sequence[str]) -> Sequence[Dict[str, Any]]:
        """The other hosts that answer, as ``restore.clients`` wants them. Those of the attempt have to."""
        found: Dict[str, Dict[str, Any]] = {}
        trouble: Dict[str, str] = {}
        for again in range(TRIES):
            time.sleep(PAUSE_S if again else 0.0)
            for host in [one for one in self._line.peers if one != self._host and one not in found]:
                part.move()
                try:
                    port = self._line.ask(host, {"k": "serves"})["port"]
                except (Unanswered, KeyError) as error:
                    trouble[host] = str(error)
                    continue
                trouble.pop(host, None)
                found[host] = {"host": host, "addresses": [self._addresses[host]], "port": port}
            if not any(host in trouble for host in hosts):
                break
        self._require(hosts, trouble)
        return [one for one in found.values() if one["port"] is not None]

    def _require(self, hosts: Sequence[str], trouble: Mapping[str, str]) -> None:
        """All hosts of an attempt must resume from the same: one that cannot be asked may have the newest."""
        for host in hosts:
            if host in trouble:
                text = "%s could not ask %s what it has saved: %s" % (self._host, host, trouble[host])
                raise WorkerError(TIMEOUT, text, "the next attempt asks again")


def _reached(part: LocalPart, peers: Mapping[str, CheckpointClient]) -> List[str]:
    """Those of ``peers`` from which this one can get checkpoints."""
    found = []
    for host, peer in peers.items():
        part.move()
        with contextlib.suppress(PeerGone):
            peer.list()
            found.append(host)
        peer.close()  # a host has few places
    return found


def _asked(part: LocalPart, first: CheckpointClient, reaches: Sequence[str]) -> List[Order]:
    """What this host has to do, as the ``first`` one says."""
    heard = time.monotonic()
    part.waits_for = first.host
    while True:
        part.move(0)
        try:
            orders = first.orders(part.paths.host, part.number, reaches)
            heard = time.monotonic()
            if orders is not None:
                part.waits_for = None
                return list(orders)
        except PeerGone as gone:
            if time.monotonic() > heard + SILENT_S:
                text = "%s could not ask %s what to resume from: %s" % (part.paths.host, first.host, gone)
                raise WorkerError(TIMEOUT, text, "the next attempt asks again") from None
        first.close()
        time.sleep(PAUSE_S)
