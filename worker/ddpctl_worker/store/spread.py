"""Sends files to many nodes: the controller sends each file once, and each node receives from the node before it.

A node passes a file on while it still receives it. The protocol with the controller, on this verb's stdin and stdout:

1. Node: ``{"listening": port, "addresses": [...], "have": [sha256], "done": bytes}``.
2. Controller: ``{"cmd": "go", "peers": [...]}``, nearest first.
3. Node, if no peer has the files: ``{"want": [[sha256, offset], ...]}``. The controller answers with lines
   ``{"cmd": "data", "hash", "offset", "size"}``, each followed by that many bytes.
4. Node: ``{"progress": bytes}`` every PROGRESS_S; ``{"left": host, "why": text}`` when it gives up a peer;
   ``{"complete": true}`` once all files are here and verified. The node goes on serving.
5. Controller: ``{"cmd": "lost", "host"}`` for a node that it cannot reach any more; ``{"cmd": "end"}`` once every node
   has all files.
"""

from __future__ import annotations

import json
import threading
from typing import Any, Dict, List, Optional

from ddpctl_worker.machine.fs import own_folder
from ddpctl_worker.machine.net import addresses, ssh_address
from ddpctl_worker.store.incoming import Incoming
from ddpctl_worker.store.limits import PIECE_BYTES, PROGRESS_S
from ddpctl_worker.store.pull import Peer, Pieces, Puller
from ddpctl_worker.store.relay import Relay, context
from ddpctl_worker.wire.channel import Channel, WorkerError
from ddpctl_worker.wire.contract import BAD_REQUEST


class Orders:
    """Orders of the controller on stdin, read by a thread of its own."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.pieces = Pieces()
        self.go = threading.Event()
        self.end = threading.Event()
        self.peers: List[Peer] = []
        self.puller: Optional[Puller] = None
        self._lost: List[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def attach(self, puller: Puller) -> None:
        """Report lost nodes to the puller, past and future."""
        self.puller = puller
        for host in self._lost:
            puller.lost(host)

    def _read(self) -> None:
        try:
            while True:
                line = self._channel.read_line()
                if not line:
                    break
                self._obey(json.loads(line))
        except (OSError, ValueError, KeyError, WorkerError):
            pass  # a broken stream counts as its end
        self._channel.closed.set()
        self.pieces.closed.set()
        self.go.set()
        self.end.set()

    def _obey(self, order: Dict[str, Any]) -> None:
        cmd = order["cmd"]
        if cmd == "go":
            self.peers = [Peer(peer) for peer in order["peers"]]
            self.go.set()
        elif cmd == "data":
            size = int(order["size"])
            if size > PIECE_BYTES:
                raise ValueError("a piece of %d bytes" % size)
            self.pieces.put(order["hash"], int(order["offset"]), b"".join(self._channel.body(size)))
        elif cmd == "lost":
            self._lost.append(order["host"])
            if self.puller is not None:
                self.puller.lost(order["host"])
        elif cmd == "end":
            self.end.set()


def spread(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """``{"files": [{"hash", "size", "name"}], "certificate", "key", "ports": [int]}``

    Returns ``{"found", "relayed", "fed", "served": bytes, "suspects": [[host, sha256]]}``: bytes that were here before,
    came from peers, came from the controller, and went to peers; and the peers that sent damaged files.

    Raises:
        WorkerError: no_space, unsafe_path, no_port, corrupt, or the controller went away.
    """
    if not request.get("files"):
        raise WorkerError(BAD_REQUEST, "spread needs files")
    base_dir = request["base_dir"]
    incoming = Incoming(base_dir, request["files"])
    relay: Optional[Relay] = None
    try:
        folder = own_folder(base_dir)
        certificate, key = request["certificate"], request["key"]
        relay = Relay(incoming, context(certificate, key, folder, True), request["host"], request.get("ports") or [0])
        orders = Orders(channel)
        channel.send(
            {
                "listening": relay.port,
                "addresses": own_addresses(),
                "have": [item.sha256 for item in incoming.items.values() if item.complete],
                "done": incoming.done,
            }
        )
        orders.go.wait()
        puller = Puller(incoming, context(certificate, key, folder, False), orders.peers, channel, orders.pieces)
        orders.attach(puller)
        _pull(puller, incoming, channel)
        channel.send({"progress": incoming.done})
        channel.send({"complete": True})
        orders.end.wait()
        return {
            "found": incoming.found,
            "relayed": puller.relayed,
            "fed": puller.fed,
            "served": relay.sent,
            "suspects": puller.suspects,
        }
    finally:
        incoming.close()
        if relay is not None:
            relay.close()


def _pull(puller: Puller, incoming: Incoming, channel: Channel) -> None:
    """Receive all files, and report the progress from a second thread."""
    over = threading.Event()

    def report() -> None:
        last = -1
        while not over.wait(PROGRESS_S):
            if incoming.done != last:
                last = incoming.done
                channel.send({"progress": last})

    reporter = threading.Thread(target=report, daemon=True)
    reporter.start()
    try:
        puller.run()
    finally:
        over.set()
        reporter.join()


def own_addresses() -> List[str]:
    """Return this node's addresses for other nodes, the likeliest first: the address of this SSH connection, then all
    others."""
    found = [ssh_address()] + [entry["address"] for entry in addresses() if entry.get("up", True)]
    usable = [address for address in found if address and not _is_local(address)]
    return list(dict.fromkeys(usable))


def _is_local(address: str) -> bool:
    return address.startswith(("127.", "fe80")) or address == "::1"
