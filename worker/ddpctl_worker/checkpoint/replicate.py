"""The replication of checkpoints during a run: each host copies what the hosts before it in a ring have written.

The ring is the order of the node ranks. With ``replicas: 2`` each host asks the two hosts before it every few seconds
for their manifests, and fetches the entries that it lacks. The question also lists its own copies, so the writer knows
which copies there are.

- A copy is removed once its writer says that the original is removed, never because the writer is silent.
- Hosts that share base_dir copy nothing.
- Only entries of the running attempt are copied. Every host has the newest checkpoint when an attempt begins.
- The training must not notice the copies. A receiver takes at most LINK_SHARE of its link and MOST_RATE; a sender gives
  all its receivers together at most as much.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Set, Tuple

from ddpctl_worker.checkpoint import manifest
from ddpctl_worker.checkpoint.client import CheckpointClient
from ddpctl_worker.checkpoint.copy import (
    Fetching,
    fetch_entry,
    put_copy,
    remove_abandoned_transfers,
    remove_path,
)
from ddpctl_worker.checkpoint.fencing import find_newer_attempt
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
from ddpctl_worker.rules.complete import Manifest, SavedFile, sort_by_time
from ddpctl_worker.rules.order import moment_of
from ddpctl_worker.store.relay import PeerGone, context
from ddpctl_worker.wire.channel import WorkerError

Servers = Dict[str, Tuple[List[str], int]]  # host -> its addresses, and the port of its server


def ring_before(hosts: Sequence[str], host: str, replicas: int) -> List[str]:
    """Return the hosts whose checkpoints ``host`` copies."""
    at = hosts.index(host)
    return [hosts[at - step] for step in range(1, min(replicas, len(hosts) - 1) + 1)]


def ring_after(hosts: Sequence[str], host: str, replicas: int) -> List[str]:
    """Return the hosts that copy the checkpoints of ``host``."""
    at = hosts.index(host)
    return [hosts[(at + step) % len(hosts)] for step in range(1, min(replicas, len(hosts) - 1) + 1)]


class Replication:
    """The copies of a run on this host, made by a thread of its own.

    The TLS contexts ``client`` and ``server`` accept only peers with the run's certificate.
    """

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
        self.holders = 1 + len(self._after)  # the number of hosts that each file is kept on
        self._server = CheckpointServer(folder, server, listener, sending_rate())
        self._peers: Dict[str, CheckpointClient] = {}
        self._places: Dict[str, Tuple[Tuple[str, int], ...]] = {}
        self._throttle = Throttle(None)
        self._pauses: Dict[str, float] = {}
        self._due: Dict[str, float] = {}
        self._trouble: Dict[str, str] = {}
        self._manifests: Dict[Tuple[str, str, str], Manifest] = {}  # by writer, entry and version
        self._moved = time.monotonic()
        self._event = threading.Event()
        self._over = False
        self._finished: Set[str] = set()  # hosts that write nothing more, and whose entries are all here
        self._read_by = 0.0  # until then this host waits for the last checkpoints of other hosts (monotonic)
        self._answer_by = 0.0  # until then a host that does not answer counts as busy, not as gone (monotonic)
        self._thread = threading.Thread(target=self._run, name="replication", daemon=True)

    @classmethod
    def of(cls, folder: JobFolder, copying: Dict[str, Any], listener: socket.socket) -> "Replication":
        """Create the replication that ``copying`` describes. It serves the connections of ``listener``.

        ``copying``: ``{"hosts", "replicas", "certificate", "key", "base", "serial", "run", "attempt"}``.

        Raises:
            OSError: the certificate cannot be loaded.
        """
        pem = copying["certificate"], copying["key"], copying["base"]
        contexts = context(*pem, False), context(*pem, True)
        return cls(folder, copying["hosts"], copying["replicas"], *contexts, listener, attempt_of(copying))

    def start(self) -> None:
        self._thread.start()

    def meet(self, servers: Servers) -> None:
        """Set where the other hosts of the run serve. May be called from any thread; the last call counts."""
        for host, (addresses, port) in servers.items():
            self._places[host] = tuple((address, port) for address in addresses)
            self._due.pop(host, None)
        self._event.set()

    def copies_elsewhere(self) -> Dict[str, List[Manifest]]:
        """Return the manifests of every other host of the run that can be reached."""
        manifests: Dict[str, List[Manifest]] = {}
        for host, places in list(self._places.items()):  # ``meet`` may add to it meanwhile
            peer = CheckpointClient(host, places, self._client)
            with contextlib.suppress(PeerGone, OSError):
                rows = peer.list()["entries"]
                manifests[host] = [self._manifest(peer, row) for row in rows]
            peer.close()
        return manifests

    def _manifest(self, peer: CheckpointClient, row: Dict[str, Any]) -> Manifest:
        if len(self._manifests) > MOST_MANIFESTS:
            self._manifests.clear()
        key = (row["writer"], row["entry"], row["version"])
        found = self._manifests.get(key)  # two threads use this: the other thread may clear it at any time
        if found is None:
            found = self._manifests[key] = peer.manifest(row["writer"], row["entry"])
        return found

    def copied(self, entry: str, version: str) -> bool:
        """Return whether all copies of this version of an own entry have been made."""
        return not self._without(entry, version)

    def copying(self, entry: str, version: str) -> bool:
        """Return whether a host that lacks this version is about to copy it: the version must not be removed yet."""
        lacking = self._without(entry, version)
        if not lacking:
            return False
        asked = [self._server.copies[host][1] for host in lacking if host in self._server.copies]
        return time.monotonic() - max([self._server.moved, *asked]) < HOLD_S

    def _without(self, entry: str, version: str) -> List[str]:
        reports = self._server.copies.copy()  # the server's threads add to it meanwhile
        return [host for host in self._after if host not in reports or reports[host][0].get(entry) != version]

    def removed(self, entries: List[str]) -> None:
        """Record own entries that were removed for good. Call this after every look, also with an empty list."""
        self._folder.note_removed(entries)

    def close(self) -> None:
        self._over = True
        self._event.set()
        if self._thread.is_alive():
            self._thread.join(THREAD_END_S)
        for peer in self._peers.values():
            peer.close()
        self._server.close()

    def finish(self, patience: float, succeeded: bool) -> None:
        """After the run: wait for the last copies, at most ``patience`` seconds and while there is progress.

        After a success each host stays until the other hosts have read its last files, so a host that does not answer
        is only busy: it has FINAL_READ_S. After a failure such a host is gone.
        """
        now = time.monotonic()
        self._read_by, self._answer_by = now + FINAL_READ_S, now + (FINAL_READ_S if succeeded else 0.0)
        self._moved, self._server.final = now, True
        until = now + patience
        while time.monotonic() < until and time.monotonic() - self._last_moved() < IDLE_S and not self.is_done():
            time.sleep(DONE_LOOK_S)
        self.close()

    def _last_moved(self) -> float:
        """Return when a file was begun, or bytes were received or sent (monotonic)."""
        return max(self._moved, self._throttle.moved, self._server.moved)

    def is_done(self) -> bool:
        """Return whether the copies of this attempt are complete.

        - The hosts after this host have copies of all its entries, and know that it writes nothing more.
        - The hosts before this host write nothing more, and this host has copies of all their entries.

        Neither is required of a host that is gone. A host that may still write has FINAL_READ_S.
        """
        manifests = self._folder.manifests(self._folder.host)
        own = {entry: made["version"] for entry, made in manifests.items() if attempt_of(made) == self._attempt}
        after = {host for host in self._after if not self._server.has_told(host, own)}
        before = {host for host in self._before if host not in self._finished}
        waiting_for = [host for host in sorted(after | before) if not self._is_done_with(host, own)]
        return not waiting_for

    def _is_done_with(self, host: str, own: Mapping[str, str]) -> bool:
        """Ask a host, and return whether this host need not wait for it. ``own``: the own entries and versions."""
        peer = CheckpointClient(host, self._places.get(host, ()), self._client)
        try:
            answer = self._ask(peer)
        except (PeerGone, OSError):
            return not self._wait_until(self._answer_by if host in self._places else 0.0)
        finally:
            peer.close()
        if host in self._after and not answer.shared:
            copies = {row["entry"]: row["version"] for row in answer.entries if row["writer"] == self._folder.host}
            if not own.items() <= copies.items():
                return False
        if host in self._before and answer.lacking:
            return False
        read = host not in self._after or self._server.has_told(host, own)
        written = host not in self._before or host in self._finished
        return (read and written) or not self._wait_until(self._read_by)

    def _wait_until(self, end: float) -> bool:
        """Return whether ``end`` is still to come (monotonic). Until then the wait counts as progress."""
        waiting = time.monotonic() < end
        if waiting:
            self._moved = time.monotonic()
        return waiting

    # --- the thread --------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        with contextlib.suppress(OSError):
            remove_abandoned_transfers(self._folder)
        while not self._over:
            newer = find_newer_attempt(self._folder.of(self._folder.host), self._attempt)
            if newer is not None:
                notes.note("nothing is copied any more for %s: %s has begun" % (self._attempt, newer))
                return
            again = [self._follow(host) for host in self._before]
            if not any(again):
                self._event.wait(REPLICATION_LOOK_S)
                self._event.clear()

    def _follow(self, host: str) -> bool:
        """Look at a host once and make at most one copy. Return whether there may be more to copy."""
        if host not in self._places or time.monotonic() < self._due.get(host, 0.0):
            return False
        try:
            copied = self._copy_from(host)
        except (PeerGone, OSError) as error:
            self._failed(host, str(error))
        except WorkerError as error:
            self._failed(host, error.message)
        except Exception as error:  # a bug, or a disk that is away: the run goes on, and the error may pass
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
        """Copy the newest entry that is missing here. Return whether there was such an entry."""
        peer = self._peer(host)
        answer = self._ask(peer)
        if answer.shared:
            return False
        self._drop(host, answer)
        for row in answer.lacking:
            found = self._manifest(peer, row)
            self._copy(peer, found)
            notes.note("copied the checkpoint %s of %s (%d bytes)" % (found["entry"], host, found["size"]))
            self._moved = time.monotonic()
            return True
        return False

    def _copy(self, peer: CheckpointClient, found: Manifest) -> None:
        writer, entry = found["host"], found["entry"]
        fetching = Fetching(self._folder, writer, {peer.host: peer}, self._throttle)

        def get(path: str, file: SavedFile) -> str:
            self._moved = time.monotonic()
            return fetching.get(entry, path, file, [(peer.host, writer)])

        put_copy(self._folder, found, fetch_entry(self._folder, writer, found["files"], get))

    def _drop(self, host: str, answer: "_Answer") -> None:
        """Remove the copies of entries that their writer has removed. The newest copy always stays."""
        present = {row["entry"] for row in answer.entries if row["writer"] == host}
        have = self._folder.manifests(host)
        newest = sort_by_time(list(have.values()))[-1:]
        for entry in [name for name in answer.removed if name in have and name not in present]:
            if have[entry] not in newest:
                folder = self._folder.of(host)
                manifest.discard(folder, entry)
                remove_path(os.path.join(folder, entry))
                notes.note("removed the copy of the checkpoint %s: %s has removed the original" % (entry, host))

    # --- other hosts ------------------------------------------------------------------------------------------------
    def _peer(self, host: str) -> CheckpointClient:
        """Return the client of a host; a new client if the host serves at another place now."""
        places = self._places[host]
        peer = self._peers.get(host)
        if peer is None or peer.addresses != places:
            if peer is not None:
                peer.close()
            peer = self._peers[host] = CheckpointClient(host, places, self._client)
            self._throttle = Throttle(rate_to(places[0][0]) if places else MOST_RATE)
        return peer

    def _ask(self, peer: CheckpointClient) -> "_Answer":
        """Ask a host for its entries, and report which copies of its own entries are here.

        Raises:
            PeerGone, OSError: it cannot be reached.
        """
        host = peer.host
        have = {entry: copy["version"] for entry, copy in self._folder.manifests(host).items()}
        found = peer.list(self._folder.host, have)
        own = [row for row in found["entries"] if row["writer"] == host and attempt_of(row) == self._attempt]
        shared = self._folder.sees(host, found["mark"])
        lacking = [] if shared else [row for row in own if have.get(row["entry"]) != row["version"]]
        if found["final"] and not lacking:
            self._finished.add(host)
        lacking.sort(key=lambda row: moment_of(row["time"]), reverse=True)
        return _Answer(found["entries"], found["removed"], shared, lacking)


class _Answer(NamedTuple):
    """A host's answer. ``shared``: this host sees the same disk. ``lacking``: the host's own entries of this attempt
    that this host has no copy of, newest first."""

    entries: List[Dict[str, Any]]
    removed: List[str]
    shared: bool
    lacking: List[Dict[str, Any]]


def sending_rate() -> float:
    """Return the rate at which this host may send (bytes/s): LINK_SHARE of its fastest link."""
    speeds = [address["speed"] for address in net.addresses() if address.get("speed")]  # Mbit/s
    return min(MOST_RATE, max(speeds) * 125e3 * LINK_SHARE) if speeds else MOST_RATE


def rate_to(address: str) -> float:
    """Return the rate of transfers with a host (bytes/s): LINK_SHARE of the link that leads there."""
    own = net.source_address(address)
    speeds = [link.get("speed") for link in net.addresses() if link["address"] == own]  # Mbit/s
    known = [speed for speed in speeds if speed]
    return min(MOST_RATE, known[0] * 125e3 * LINK_SHARE) if known else MOST_RATE
