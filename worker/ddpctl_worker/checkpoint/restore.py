"""Before a start: every host of the run gets the newest complete checkpoints into its own folder, from other hosts.

``rules/choice.py`` decides which host gets which file: on the controller before ``up`` starts the job, on the nodes
before another attempt. The conversation of this verb with the controller:

* worker: ``{"moved": bytes}`` about once a second while it hashes or fetches, so that the controller sees progress;
* worker: ``{"manifest": {...}}`` for each manifest that holds here, then ``{"listening": port, "addresses": [...]}``;
* controller: ``{"cmd": "go", "peers": [{"host", "addresses", "port"}], "orders": [...]}`` (``Restore.order``). A host
  outside the run gets null for orders: it only serves, and nothing changes there;
* worker: ``{"complete": true}`` when every file is in place; it keeps serving;
* controller: ``{"cmd": "end"}`` when every host is complete.
"""

from __future__ import annotations

import json
import os
import re
import ssl
import time
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from ddpctl_worker.checkpoint.client import CheckpointClient
from ddpctl_worker.checkpoint.copy import (
    Fetching,
    Stays,
    put_back,
    put_own,
    remove_abandoned_transfers,
    set_newer_aside,
)
from ddpctl_worker.checkpoint.jobfolder import JobFolder
from ddpctl_worker.checkpoint.keeper import Keeper
from ddpctl_worker.checkpoint.limits import PROGRESS_S
from ddpctl_worker.checkpoint.serve import CheckpointServer
from ddpctl_worker.checkpoint.throttle import Throttle
from ddpctl_worker.machine import notes
from ddpctl_worker.record import paths
from ddpctl_worker.record.status import runs_at_work
from ddpctl_worker.rules.choice import Kept
from ddpctl_worker.rules.complete import Chosen, SavedFile
from ddpctl_worker.store.relay import PeerGone, context, listen_on
from ddpctl_worker.store.spread import own_addresses
from ddpctl_worker.wire.channel import Channel, WorkerError
from ddpctl_worker.wire.contract import INTERRUPTED

_ASIDE = re.compile(r"\.(.+)\.aside-\d{8}T\d{6}Z(?:\.\d+)?$")
Order = Mapping[str, Any]  # of Restore.order


def restore(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """``{"job_id", "certificate", "key", "ports": [int]}`` -> ``{"bytes": from other hosts, "aside": [{"entry",
    "name"}], "left": [entry]}``.

    ``aside``: the entries that were set aside, with their new names. ``left``: the entries that were left as they are,
    since a live run of the job may be writing them.
    """
    base = paths.base_of(request)
    folder = JobFolder(base, request["job_id"], request["host"])
    own, progress = folder.make(folder.host), _Progress(channel)
    # A checkpoint from right before a power cut has no manifest yet. A live run has a keeper of its own, and a second
    # keeper would remove the versions that the first pins.
    if not _is_live(folder):
        Keeper(own, folder.host, since=time.time(), read_on=progress.add).look(ended=False)
    for one in list_kept(folder, {})[0]:
        channel.send({"manifest": one.manifest})
    pem = request["certificate"], request["key"], base
    server = CheckpointServer(folder, context(*pem, True), listen_on([*request["ports"], 0]))
    try:
        channel.send({"listening": server.port, "addresses": own_addresses()})
        go = _said(channel, "go")
        peers = clients(go["peers"], context(*pem, False))
        count, writing = 0, _Writing(folder)
        before = find_set_aside(own)
        try:
            if go["orders"] is not None:
                throttle = Throttle(None, progress.add)
                count = restore_entries(folder, peers, go["orders"], throttle, writing.stays)
        finally:
            for peer in peers.values():
                peer.close()
        channel.send({"complete": True})
        _said(channel, "end")
        aside = {name: entry for name, entry in find_set_aside(own).items() if name not in before}
        moved = [{"entry": aside[name], "name": name} for name in sorted(aside)]
        return {"bytes": count, "aside": moved, "left": sorted(writing.left)}
    finally:
        server.close()


class _Progress:
    """Reports how many bytes have been hashed or fetched so far."""

    def __init__(self, channel: Channel) -> None:
        self._channel, self._bytes, self._at = channel, 0, time.monotonic()

    def add(self, count: int) -> None:
        self._bytes += count
        if time.monotonic() - self._at >= PROGRESS_S:
            self._at = time.monotonic()
            self._channel.send({"moved": self._bytes})


class _Writing:
    """Which own entries stay as they are, since a live run of the job may be writing them; ``left``: their names."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self.left: Set[str] = set()

    def stays(self, entry: str) -> bool:
        if not _is_live(self._folder):  # asked for each entry: a run may begin during a transfer
            return False
        if entry not in self.left:
            notes.note("left %s as it is: a live run of the job may be writing it" % entry)
        self.left.add(entry)
        return True


def _is_live(folder: JobFolder) -> bool:
    return bool(runs_at_work(folder.base, folder.host, folder.job))


def find_set_aside(own: str) -> Dict[str, str]:
    """Return the paths that were set aside in a folder: present name -> earlier name, both below ``own``."""
    found = {}
    for at, folders, names in os.walk(own):
        for name in (*folders, *names):
            was = _ASIDE.match(name)
            if was is not None:
                place = os.path.relpath(at, own)
                found[os.path.normpath(os.path.join(place, name))] = os.path.normpath(os.path.join(place, was.group(1)))
        folders[:] = [name for name in folders if not name.startswith(".")]
    return found


def clients(peers: Iterable[Mapping[str, Any]], tls: ssl.SSLContext) -> Dict[str, CheckpointClient]:
    """Return a client for each other host, by host."""
    return {
        peer["host"]: CheckpointClient(peer["host"], [(one, int(peer["port"])) for one in peer["addresses"]], tls)
        for peer in peers
    }


def restore_entries(
    folder: JobFolder,
    peers: Dict[str, CheckpointClient],
    orders: Sequence[Order],
    throttle: Optional[Throttle] = None,
    stays: Stays = lambda entry: False,
) -> int:
    """Put missing files in place, and set newer incomplete checkpoints aside; return the bytes that came from other
    hosts. ``throttle`` is called at every step, and may end the work there with an exception.

    ``stays`` is asked right before an entry that is not a complete checkpoint is renamed.

    Raises:
        WorkerError: no_space; corrupt, a file cannot be had; unsafe_path.
    """
    throttle = throttle or Throttle(None)
    remove_abandoned_transfers(folder)
    for entry in put_back(folder, stays):
        notes.note("%s is the version that was kept: the file that had replaced it is not complete" % entry)
    fetching = Fetching(folder, folder.host, peers, throttle)
    for order in orders:
        chosen = Chosen(**{name: order[name] for name in Chosen._fields})
        sources = order["sources"]

        def get(path: str, file: SavedFile, entry: str = chosen.entry, known: Mapping[str, Any] = sources) -> str:
            throttle.count(0)
            return fetching.get(entry, path, file, _in_turn(known[path], folder.host))

        put_own(folder, chosen, get, stays)
    throttle.count(0)
    for entry in set_newer_aside(folder, stays):
        notes.note("set aside %s: it is newer than the checkpoint to resume from, and not complete" % entry)
    return fetching.bytes


def list_kept(folder: JobFolder, peers: Dict[str, CheckpointClient]) -> Tuple[List[Kept], Dict[str, str]]:
    """Return the manifests of this host and of other hosts, for ``choice.plan_restore``, and host -> why it did not
    answer."""
    found = [Kept(folder.host, one) for writer in folder.writers() for one in folder.manifests(writer).values()]
    trouble = {}
    for host, peer in peers.items():
        try:
            rows = peer.list()["entries"]
            found += [Kept(host, peer.manifest(row["writer"], row["entry"])) for row in rows]
        except PeerGone as gone:
            trouble[host] = str(gone)
    return found, trouble


def _in_turn(sources: Iterable[Sequence[str]], host: str) -> List[Tuple[str, str]]:
    """Return the sources of a file in the order to ask: the own disk first, then hosts in an order of each host."""
    found = sorted((one, writer) for one, writer in sources)
    after = [one for one in found if one[0] > host]
    return [one for one in found if one[0] == host] + after + [one for one in found if one[0] < host]


def _said(channel: Channel, cmd: str) -> Dict[str, Any]:
    line = channel.read_line()
    if not line:
        raise WorkerError(INTERRUPTED, "the controller disconnected", "run the same command again")
    order: Dict[str, Any] = json.loads(line)
    if order.get("cmd") != cmd:
        raise WorkerError(INTERRUPTED, "the controller has given up", "run the same command again")
    return order
