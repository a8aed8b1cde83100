"""Before an attempt: this host gets the newest complete checkpoints of the job from the other hosts of the run.

Each agent serves what its host has for as long as the run lasts. Every host decides for itself, by the same rules and
from what all hosts that answer have (checkpoint/choice.py), and so comes to the same checkpoints.
"""

from __future__ import annotations

import ssl
import threading
import time
from typing import Any, Dict, Mapping, Optional, Sequence

from ddpctl_worker import net, notes
from ddpctl_worker.agent.part import LocalPart
from ddpctl_worker.agent.talk import PeerLine, Unanswered
from ddpctl_worker.channel import WorkerError
from ddpctl_worker.checkpoint.choice import restoring
from ddpctl_worker.checkpoint.jobfolder import JobFolder
from ddpctl_worker.checkpoint.keeper import Keeper
from ddpctl_worker.checkpoint.restore import bring, clients, kept
from ddpctl_worker.checkpoint.serve import CheckpointServer
from ddpctl_worker.checkpoint.throttle import Throttle
from ddpctl_worker.contract import TIMEOUT
from ddpctl_worker.store.relay import context

TRIES, PAUSE_S = 3, 1.0  # to reach a host of the attempt


class Resume:
    """``copying``: certificate and key of the run's transfers (PEM), as for the copies; None: the run has none."""

    def __init__(self, base: str, run: Mapping[str, Any], copying: Optional[Mapping[str, str]], line: PeerLine) -> None:
        self._line, self._host = line, str(run["host"])
        self._addresses = {one["host"]: one["address"] for one in run["restart"]["hosts"]}
        self._folder = JobFolder(base, run["job"], self._host)
        self._pem = None if copying is None else (copying["certificate"], copying["key"], base)
        self._server: Optional[CheckpointServer] = None
        self._at_work = threading.Lock()  # on the job's folder: one attempt's preparation at a time

    @property
    def port(self) -> Optional[int]:
        """Where this host serves; None: it does not."""
        return self._server.port if self._server is not None else None

    def start(self) -> None:
        if self._pem is not None:
            self._server = CheckpointServer(self._folder, context(*self._pem, True), net.listen(0))

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
            held, trouble = kept(self._folder, peers)
            self._require(hosts, trouble)
            orders = [one.order() for one in restoring(held, hosts) if self._host in one.hosts]
            able = {host: peer for host, peer in peers.items() if host not in trouble}
            count = bring(self._folder, able, orders, Throttle(None, part.move))
        finally:
            for peer in peers.values():
                peer.close()
        if orders:
            names = ", ".join(order["entry"] for order in orders)
            notes.note("the attempt resumes from %s: %d bytes came from other hosts" % (names, count))

    def _serving(self, part: LocalPart, hosts: Sequence[str]) -> Sequence[Dict[str, Any]]:
        """The other hosts that answer, as ``restore.clients`` wants them. Those of the attempt have to."""
        found: Dict[str, Dict[str, Any]] = {}
        trouble: Dict[str, str] = {}
        for again in range(TRIES):
            time.sleep(PAUSE_S if again else 0.0)
            part.move()
            for host in [one for one in self._line.peers if one != self._host and one not in found]:
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
