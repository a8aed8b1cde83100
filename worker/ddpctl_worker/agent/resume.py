"""Fetches the newest complete checkpoints of the job from the other hosts before an attempt.

Each agent serves the checkpoints of its host while the run lasts. The steps (following.py says when each is due):

- ``collect``: every host of the attempt hashes its new checkpoints, and lists the hosts outside the attempt from which
  it can fetch checkpoints. This changes no file of the job.
- ``choose``: the first host of the attempt chooses for all of its hosts (rules/choice.py). All agents agree on the
  digest of the choice, so all hosts resume from the same checkpoint.
- ``restore``: every host asks the first host for its share of this choice, and puts the files in place.

Once a newer run of the job has begun here, each step fails, as the start of the attempt would: the files that change
now belong to that run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import ssl
import threading
import time
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ddpctl_worker.agent.limits import PAUSE_S, SILENT_S, TRIES
from ddpctl_worker.agent.part import LocalPart
from ddpctl_worker.agent.talk import PeerLine, Unanswered
from ddpctl_worker.checkpoint.client import CheckpointClient
from ddpctl_worker.checkpoint.fencing import require_newest
from ddpctl_worker.checkpoint.jobfolder import JobFolder
from ddpctl_worker.checkpoint.keeper import Keeper
from ddpctl_worker.checkpoint.restore import Order, clients, list_kept, restore_entries
from ddpctl_worker.checkpoint.serve import CheckpointServer
from ddpctl_worker.checkpoint.throttle import Throttle
from ddpctl_worker.machine import net, notes
from ddpctl_worker.record.document import CheckpointChoice
from ddpctl_worker.record.paths import job_id
from ddpctl_worker.record.runrecord import RunRecord, require_restart
from ddpctl_worker.rules.attempts import AttemptId
from ddpctl_worker.rules.choice import plan_restore
from ddpctl_worker.store.relay import PeerGone, context
from ddpctl_worker.wire.channel import WorkerError
from ddpctl_worker.wire.contract import TIMEOUT

NEXT = "the next attempt asks again"


class Resume:
    """The steps before an attempt, and the server of this host's checkpoints.

    ``copying``: certificate and key of the run's transfers (PEM). Without them no step is ever due.
    """

    def __init__(self, base: str, run: RunRecord, copying: Optional[Mapping[str, str]], line: PeerLine) -> None:
        self._line, self._host = line, str(run["host"])
        self._addresses = {member["host"]: member["address"] for member in require_restart(run)["hosts"]}
        self._serial, self._run = int(run["serial"]), run["run"]
        self._folder = JobFolder(base, job_id(run), self._host)
        self._pem = None if copying is None else (copying["certificate"], copying["key"], base)
        self._server: Optional[CheckpointServer] = None
        self._at_work = threading.Lock()  # one step at a time works on the job's folder
        self._chosen: Tuple[str, Dict[str, List[Order]]] = ("", {})  # digest, and the orders of each host

    @property
    def port(self) -> Optional[int]:
        """Return the port at which this host serves; ``None`` if it does not."""
        return self._server.port if self._server is not None else None

    def start(self) -> None:
        if self._pem is not None:
            listener = net.listen_on(str(self._addresses[self._host] or ""))
            self._server = CheckpointServer(self._folder, context(*self._pem, True), listener)
            self._server.orders = self._orders

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    # Each step raises CalledOff: ``part`` is not wanted any more; WorkerError: a checkpoint or a host is missing, or a
    # newer run of the job has begun.

    def collect(self, part: LocalPart, hosts: Sequence[str]) -> None:
        """Hash this host's checkpoints, and set ``part.reaches``. ``hosts``: the hosts of the attempt."""
        with self._alone(part):
            # A checkpoint from right before the end of the last attempt may have no manifest yet.
            own = self._folder.make(self._host)
            Keeper(own, self._host, since=time.time(), read_on=part.move).look(ended=False)
            others = [host for host in self._line.peers if host not in hosts and host != self._host]
            with self._peers(part, others, needed=()) as peers:
                part.reaches = tuple(_reached(part, peers))

    def choose(self, part: LocalPart, hosts: Sequence[str], sources: Sequence[str]) -> None:
        """Choose from the checkpoints of ``sources`` for all ``hosts`` of the attempt. Sets ``part.choice``."""
        with self._alone(part):
            others = [host for host in sources if host != self._host]
            with self._peers(part, others, needed=hosts) as peers:
                part.move()
                held, trouble = list_kept(self._folder, peers)
            _require(self._host, hosts, trouble)
            restores = plan_restore(held, hosts)
            orders: Dict[str, List[Order]] = {
                host: [restore.order() for restore in restores if host in restore.hosts] for host in hosts
            }
            text = json.dumps([part.number, orders], sort_keys=True)
            digest = hashlib.sha256(text.encode("utf-8")).hexdigest()
            self._chosen = digest, orders
            part.choice = CheckpointChoice(digest, tuple(sorted({restore.chosen.entry for restore in restores})))

    def restore(self, part: LocalPart, hosts: Sequence[str], choice: CheckpointChoice) -> None:
        """Put the files of ``choice`` in place. Sets ``part.restored``."""

        def fence(entry: str) -> bool:
            self._require_newest(part)  # a newer run may begin during a transfer
            return False

        with self._alone(part):
            first = hosts[0]
            others = [host for host in self._line.peers if host != self._host]
            with self._peers(part, others, needed=[first]) as peers:
                orders = self._orders(self._host, choice.digest)
                if first != self._host:
                    orders = _ask_for_orders(part, peers[first], choice)
                if orders is None:
                    text = "%s does not know any more what attempt %d resumes from" % (first, part.number)
                    raise WorkerError(TIMEOUT, text, NEXT)
                count = restore_entries(self._folder, peers, orders, Throttle(None, part.move), fence)
            if orders:
                names = ", ".join(order["entry"] for order in orders)
                notes.note("the attempt resumes from %s: %d bytes came from other hosts" % (names, count))
            part.restored = True

    def _orders(self, host: str, digest: str) -> Optional[List[Order]]:
        """Return the orders of ``host`` for the choice with that digest; ``None`` if another host chose."""
        chosen, orders = self._chosen
        return orders.get(host) if chosen == digest else None

    def _require_newest(self, part: LocalPart) -> None:
        require_newest(self._folder.of(self._host), AttemptId(self._serial, self._run, part.number))

    @contextlib.contextmanager
    def _alone(self, part: LocalPart) -> Iterator[None]:
        while not self._at_work.acquire(timeout=PAUSE_S):  # an attempt that was called off may not have ended yet
            part.move(0)
        try:
            part.move(0)
            self._require_newest(part)
            yield
        finally:
            self._at_work.release()

    @contextlib.contextmanager
    def _peers(
        self, part: LocalPart, hosts: Sequence[str], needed: Sequence[str]
    ) -> Iterator[Dict[str, CheckpointClient]]:
        """Connect to the ``hosts`` that serve checkpoints. The ``needed`` hosts have to answer."""
        assert self._pem is not None
        peers = clients(self._serving(part, hosts, needed), self._tls(self._pem))
        try:
            yield peers
        finally:
            for peer in peers.values():
                peer.close()

    @staticmethod
    def _tls(pem: Tuple[str, str, str]) -> ssl.SSLContext:
        return context(*pem, False)

    def _serving(self, part: LocalPart, hosts: Sequence[str], needed: Sequence[str]) -> List[Dict[str, Any]]:
        """Return the hosts that answer, in the form that ``restore.clients`` takes."""
        found: Dict[str, Dict[str, Any]] = {}
        trouble: Dict[str, str] = {}
        for again in range(TRIES):
            time.sleep(PAUSE_S if again else 0.0)
            for host in [name for name in hosts if name not in found]:
                part.move()
                try:
                    port = self._line.ask(host, {"k": "serves"})["port"]
                except (Unanswered, KeyError) as error:
                    trouble[host] = str(error)
                    continue
                trouble.pop(host, None)
                found[host] = {"host": host, "addresses": [self._addresses[host]], "port": port}
            if not any(host in trouble for host in needed):
                break
        _require(self._host, needed, trouble)
        return [name for name in found.values() if name["port"] is not None]


def _require(me: str, hosts: Sequence[str], trouble: Mapping[str, str]) -> None:
    """Raise WorkerError if a host does not answer.

    All hosts of an attempt resume from the newest checkpoint, and a silent host may have it.
    """
    for host in hosts:
        if host in trouble:
            text = "%s could not ask %s what it has saved: %s" % (me, host, trouble[host])
            raise WorkerError(TIMEOUT, text, NEXT)


def _reached(part: LocalPart, peers: Mapping[str, CheckpointClient]) -> List[str]:
    """Return the hosts of ``peers`` that list their checkpoints to this host."""
    found = []
    for host, peer in peers.items():
        part.move()
        with contextlib.suppress(PeerGone):
            peer.list()
            found.append(host)
        peer.close()  # a host serves few connections at a time
    return found


def _ask_for_orders(part: LocalPart, first: CheckpointClient, choice: CheckpointChoice) -> Optional[List[Order]]:
    """Return this host's share of ``choice`` from the attempt's ``first`` host; ``None`` if that host has lost it."""
    until = time.monotonic() + SILENT_S
    while True:
        part.move(0)
        try:
            return first.orders(part.paths.host, choice.digest)
        except PeerGone as gone:
            if time.monotonic() > until:
                text = "%s could not ask %s what to resume from: %s" % (part.paths.host, first.host, gone)
                raise WorkerError(TIMEOUT, text, NEXT) from None
        first.close()
        time.sleep(PAUSE_S)
