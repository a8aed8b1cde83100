"""While a run is live: each host keeps copies of what the hosts before it wrote.

The hosts of a run are a ring, in the order of their node ranks; with ``replicas: 2`` each asks the two before it every
few seconds what they have, and gets what it lacks. With the question a host says what it has, so the writer knows which
copies there are. A copy is removed once its writer says that it removed the original, never because that host is
silent. Where all hosts see the same base_dir nothing is copied. Only what the attempt itself writes is copied: an
attempt begins with the newest checkpoint on every host, and from an older one nothing is accepted.

It must not be felt by the training: a quarter of the link at most, and never more than 100 MB/s. A receiver keeps to
that for what it gets, and a sender for what all receivers get from it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ddpctl_worker.checkpoint import manifest
from ddpctl_worker.checkpoint.copy import CheckpointClient, Fetching, gather, put_copy, remove, sweep
from ddpctl_worker.checkpoint.fencing import fence
from ddpctl_worker.checkpoint.jobfolder import JobFolder
from ddpctl_worker.checkpoint.limits import (
    DONE_LOOK_S,
    FINAL_READ_S,
    HOLD_S,
    IDLE_S,
    LINK_SHARE,
    MOST_MANIFESTS,
    MOST_PAUSE_S,
    MOST_RATE,
    REPLICATION_LOOK_S,
    THREAD_END_S,
)
from ddpctl_worker.checkpoint.serve import CheckpointServer
from ddpctl_worker.checkpoint.throttle import Throttle
from ddpctl_worker.machine import net, notes
from ddpctl_worker.rules.attempts import AttemptId, attempt_of
from ddpctl_worker.rules.complete import Manifest, newest_last
from ddpctl_worker.rules.order import moment
from ddpctl_worker.store.relay import PeerGone, context
from ddpctl_worker.wire.channel import WorkerError

Servers = Dict[str, Tuple[List[str], int]]  # host -> its addresses, and where it serves


def ring_before(hosts: Sequence[str], host: str, replicas: int) -> List[str]:
    """The hosts whose checkpoints ``host`` keeps copies of."""
    at = hosts.index(host)
    return [hosts[at - step] for step in range(1, min(replicas, len(hosts) - 1) + 1)]


def ring_after(hosts: Sequence[str], host: str, replicas: int) -> List[str]:
    """The hosts that keep copies of its own."""
    at = hosts.index(host)
    return [hosts[(at + step) % len(hosts)] for step in range(1, min(replicas, len(hosts) - 1) + 1)]


class Replication:
    """The copies of one run on one host, kept by a thread of its own. ``client`` and ``server`` accept who holds the
    run's certificate."""

    def __init__(
        self,
        folder: JobFolder,
        hosts: Sequence[str],
        replicas: int,
        client: ssl.SSLContext,
        server: ssl.SSLContext,
        listener: socket.socket,
        attempt: AttemptId,
    ) -> None:
        self._folder, self._client, self._attempt = folder, client, attempt
        self._before = ring_before(hosts, folder.host, replicas)
        self._after = ring_after(hosts, folder.host, replicas)
        self.holders = 1 + len(self._after)  # on how many hosts each file is to lie
        self._server = CheckpointServer(folder, server, listener, sending_rate())
        self._peers: Dict[str, CheckpointClient] = {}
        self._places: Dict[str, Tuple[Tuple[str, int], ...]] = {}
        self._throttle = Throttle(None)
        self._pauses: Dict[str, float] = {}
        self._due: Dict[str, float] = {}
        self._trouble: Dict[str, str] = {}
        self._read: Dict[Tuple[str, str, str], Manifest] = {}  # by writer, entry and version
        self._moved = time.monotonic()
        self._event = threading.Event()
        self._over = False
        self._read_by = 0.0  # until then the other hosts may read what they saved last
        self._thread = threading.Thread(target=self._run, name="replication", daemon=True)

    @classmethod
    def of(cls, folder: JobFolder, copying: Dict[str, Any], address: str) -> "Replication":
        """``copying``: ``{"hosts", "replicas", "certificate", "key", "base", "serial", "run", "attempt"}``.
        ``address``: where it serves; empty: on every address.

        Raises:
            OSError: it cannot listen.
        """
        pem = copying["certificate"], copying["key"], copying["base"]
        contexts = context(*pem, False), context(*pem, True)
        return cls(
            folder, copying["hosts"], copying["replicas"], *contexts, net.listen_on(address), attempt_of(copying)
        )

    @property
    def port(self) -> int:
        return self._server.port

    def start(self) -> None:
        self._thread.start()

    def meet(self, servers: Servers) -> None:
        """Where the other hosts of the run serve. From any thread; the newest word counts."""
        for host, (addresses, port) in servers.items():
            self._places[host] = tuple((address, port) for address in addresses)
            self._due.pop(host, None)
        self._event.set()

    def elsewhere(self) -> Dict[str, List[Manifest]]:
        """What all other hosts of the run have, as far as they can be reached."""
        found: Dict[str, List[Manifest]] = {}
        for host in self._places:
            peer = CheckpointClient(host, self._places[host], self._client)
            with contextlib.suppress(PeerGone, OSError):
                rows = peer.list()["entries"]
                found[host] = [self._manifest(peer, row) for row in rows]
            peer.close()
        return found

    def _manifest(self, peer: CheckpointClient, row: Dict[str, Any]) -> Manifest:
        """Asked for once."""
        if len(self._read) > MOST_MANIFESTS:
            self._read.clear()
        key = (row["writer"], row["entry"], row["version"])
        if key not in self._read:
            self._read[key] = peer.manifest(row["writer"], row["entry"])
        return self._read[key]

    def copied(self, entry: str, version: str) -> bool:
        """Whether every host that is to have a copy of this version of an own entry has one."""
        return not self._without(entry, version)

    def copying(self, entry: str, version: str) -> bool:
        """Whether a host that lacks it asks for copies, or gets some: the version is to stay until that is done."""
        lacking = self._without(entry, version)
        if not lacking:
            return False
        asked = [self._server.copies[host][1] for host in lacking if host in self._server.copies]
        return time.monotonic() - max([self._server.moved, *asked]) < HOLD_S

    def _without(self, entry: str, version: str) -> List[str]:
        have = {host: told for host, (told, _) in self._server.copies.items()}
        return [host for host in self._after if have.get(host, {}).get(entry) != version]

    def removed(self, entries: List[str]) -> None:
        """Own entries that are gone for good; for every look, also with none."""
        self._folder.note_removed(entries)

    def close(self) -> None:
        self._over = True
        self._event.set()
        if self._thread.is_alive():
            self._thread.join(THREAD_END_S)
        for peer in self._peers.values():
            peer.close()
        self._server.close()

    def finish(self, patience: float) -> None:
        """The run is over, and nothing new will come: wait until the last copies are made, as long as that moves on."""
        until = time.monotonic() + patience
        self._read_by, self._server.final = time.monotonic() + FINAL_READ_S, True
        self._moved = time.monotonic()
        while time.monotonic() < until and time.monotonic() - self._last_moved() < IDLE_S and not self.done():
            time.sleep(DONE_LOOK_S)
        self.close()

    def _last_moved(self) -> float:
        """When a file was begun, or bytes of one came or went: a large one takes long."""
        return max(self._moved, self._throttle.moved, self._server.moved)

    def done(self) -> bool:
        """Whether the hosts before have nothing that lacks here, and will not, and those after lack nothing of this
        host's own; who cannot be reached is not waited for."""
        mine = {
            (entry, one["version"])
            for entry, one in self._folder.manifests(self._folder.host).items()
            if attempt_of(one) == self._attempt
        }
        for host in self._after:
            told = self._told(host)
            rows = told["entries"] if told is not None else ()
            there = {(row["entry"], row["version"]) for row in rows if row["writer"] == self._folder.host}
            if told is not None and not mine <= there:
                return False
        before = [(host, told) for host in self._before for told in [self._told(host)] if told is not None]
        if not all(told["final"] for _, told in before) and time.monotonic() < self._read_by:
            self._moved = time.monotonic()
            return False
        return not any(self._lacking(host, told["entries"]) for host, told in before)

    # --- the thread --------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        with contextlib.suppress(OSError):
            sweep(self._folder)
        while not self._over:
            newer = fence(self._folder.of(self._folder.host), self._attempt)
            if newer is not None:
                notes.note("nothing is copied any more for %s: %s has begun" % (self._attempt, newer))
                return
            again = [self._follow(host) for host in self._before]
            if not any(again):
                self._event.wait(REPLICATION_LOOK_S)
                self._event.clear()

    def _follow(self, host: str) -> bool:
        """One look at a host, and one copy of what it has; whether there may be more."""
        if host not in self._places or time.monotonic() < self._due.get(host, 0.0):
            return False
        try:
            copied = self._copy_from(host)
        except (PeerGone, OSError) as error:
            self._failed(host, str(error))
        except WorkerError as error:
            self._failed(host, error.message)
        except Exception as error:  # a fault of ours, or a disk that is away: the run is not harmed, and it may pass
            self._failed(host, notes.trace(error))
        else:
            self._pauses.pop(host, None)
            self._trouble.pop(host, None)
            return copied
        return False

    def _failed(self, host: str, why: str) -> None:
        if self._trouble.get(host) != why:
            notes.note("checkpoints of %s are not copied for now: %s" % (host, why))
        self._trouble[host] = why
        self._pauses[host] = min(MOST_PAUSE_S, 2 * self._pauses.get(host, REPLICATION_LOOK_S / 2))
        self._due[host] = time.monotonic() + self._pauses[host]

    def _copy_from(self, host: str) -> bool:
        """Copy the newest that lacks here; True when there was one."""
        peer = self._peer(host)
        have = {entry: one["version"] for entry, one in self._folder.manifests(host).items()}
        told = peer.list(self._folder.host, have)
        if self._folder.sees(host, told["mark"]):
            return False  # a shared disk
        self._drop(host, told)
        for row in self._lacking(host, told["entries"]):
            found = self._manifest(peer, row)
            self._copy(peer, found)
            notes.note("copied the checkpoint %s of %s (%d bytes)" % (found["entry"], host, found["size"]))
            self._moved = time.monotonic()
            return True
        return False

    def _lacking(self, host: str, rows: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
        """What that host has of its own and this one lacks, newest first."""
        own = [row for row in rows if row["writer"] == host and attempt_of(row) == self._attempt]
        have = {(entry, one["version"]) for entry, one in self._folder.manifests(host).items()}
        lacking = [row for row in own if (row["entry"], row["version"]) not in have]
        return sorted(lacking, key=lambda row: moment(row["time"]), reverse=True)

    def _copy(self, peer: CheckpointClient, found: Manifest) -> None:
        writer, entry = found["host"], found["entry"]
        fetching = Fetching(self._folder, writer, {peer.host: peer}, self._throttle)

        def get(path: str, file: Dict[str, Any]) -> str:
            self._moved = time.monotonic()
            return fetching.get(entry, path, file, [(peer.host, writer)])

        put_copy(self._folder, found, gather(self._folder, writer, found["files"], get))

    def _drop(self, host: str, told: Dict[str, Any]) -> None:
        """Remove copies of what their writer says it has removed. Its newest one stays, whatever it says."""
        there = {row["entry"] for row in told["entries"] if row["writer"] == host}
        have = self._folder.manifests(host)
        newest = newest_last(list(have.values()))[-1:]
        for entry in [one for one in told["removed"] if one in have and one not in there]:
            if have[entry] not in newest:
                folder = self._folder.of(host)
                manifest.discard(folder, entry)
                remove(os.path.join(folder, entry))
                notes.note("removed the copy of the checkpoint %s: %s has removed the original" % (entry, host))

    # --- the others --------------------------------------------------------------------------------------------------
    def _peer(self, host: str) -> CheckpointClient:
        """One connection for all looks; a new one if the host serves at another place now."""
        places = self._places[host]
        known = self._peers.get(host)
        if known is None or known.addresses != places:
            if known is not None:
                known.close()
            known = self._peers[host] = CheckpointClient(host, places, self._client)
            self._throttle = Throttle(rate_to(places[0][0]) if places else MOST_RATE)
        return known

    def _told(self, host: str) -> Optional[Dict[str, Any]]:
        """What a host has, for ``done``; None when it cannot be reached."""
        peer = CheckpointClient(host, self._places.get(host, ()), self._client)
        try:
            found = peer.list()
            return None if self._folder.sees(host, found["mark"]) else found
        except (PeerGone, OSError):
            return None
        finally:
            peer.close()


def sending_rate() -> float:
    """Bytes/s that may leave this host: a share of its fastest link, since nobody has said yet where to."""
    speeds = [one["speed"] for one in net.addresses() if one.get("speed")]  # Mbit/s
    return min(MOST_RATE, max(speeds) * 125e3 * LINK_SHARE) if speeds else MOST_RATE


def rate_to(address: str) -> float:
    """Bytes/s that may go to that host: a share of the link that leads there."""
    own = net.source_address(address)
    speeds = [one.get("speed") for one in net.addresses() if one["address"] == own]  # Mbit/s
    known = [speed for speed in speeds if speed]
    return min(MOST_RATE, known[0] * 125e3 * LINK_SHARE) if known else MOST_RATE
