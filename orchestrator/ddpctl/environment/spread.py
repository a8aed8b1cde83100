"""Sends files to many nodes in a chain: controller -> first node -> next node, while the files still arrive.

Every node runs the worker's ``spread`` verb and gets its missing files from the node before it. The first node, and any
node that can reach no other node, asks the controller. The controller starts the verbs, orders the chain, feeds the
nodes that ask, announces lost nodes, and ends the verbs when every node is complete.
"""

from __future__ import annotations

import datetime
import json
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddpctl.environment.direct import Source, as_provision_error, ask_holdings, deliver, missing_files
from ddpctl.environment.limits import SEND_S, SPREAD_LEAST_BYTES, SPREAD_START_S, WANTS
from ddpctl.errors import RemoteError
from ddpctl.spec.event import Note, Progress, Tell
from ddpctl.spec.push import Delivery, Traffic
from ddpctl.spec.resuming import Holdings
from ddpctl.transport.base import Fleet, FleetOutcome, Frame, Transport
from ddpctl.transport.pipe import garbled
from ddpctl.transport.progress_clock import ProgressClock


@dataclass(frozen=True)
class Credentials:
    """PEM texts. They travel over SSH to the nodes of a spread, and are not written to a disk."""

    certificate: str
    key: str = field(repr=False)


def new_credentials() -> Credentials:
    """Return a new key and its self-signed certificate.

    The certificate has no real time limit. It is dropped with the run, and a node with a wrong clock must not be shut
    out.
    """
    # Imported here, because most commands never need it and these imports take a twentieth of the start of a command.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ddpctl spread")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime(2000, 1, 1))
        .not_valid_after(datetime.datetime(2100, 1, 1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Credentials(
        certificate.public_bytes(serialization.Encoding.PEM).decode("ascii"),
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode("ascii"),
    )


class Feed:
    """The body of a node's ``spread`` call: an iterator that waits for orders and wanted files until ``close``.

    ``sent``: bytes of files that were passed to the connection.
    """

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self._sources, self.sent = sources, 0
        self._orders: deque[bytes] = deque()
        self._wants: deque[tuple[str, int]] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def order(self, **order: Any) -> None:
        """Send an order right after the current piece."""
        with self._changed:
            self._orders.append(json.dumps(order).encode("ascii") + b"\n")
            self._changed.notify()

    def want(self, files: Sequence[tuple[str, int]]) -> None:
        """Queue files that the node asks for, each from an offset: (sha256, offset).

        Raises:
            RemoteError: the node asks for a file that was not offered, or for too many files.
        """
        offered = all(name in self._sources and offset <= self._sources[name].size for name, offset in files)
        if not offered or len(self._wants) + len(files) > WANTS + len(self._sources):
            raise garbled("it asks for files that it was not offered")
        with self._changed:
            self._wants.extend(files)
            self._changed.notify()

    def close(self) -> None:
        """End the body."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def __iter__(self) -> Iterator[bytes]:
        pieces: Iterator[bytes] = iter(())
        while True:
            with self._changed:
                order = self._orders.popleft() if self._orders else None
            say = order or next(pieces, None)
            if say is not None:
                yield say
                continue
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._orders or self._wants)
                if self._closed and not self._orders:
                    return
                if self._wants and not self._orders:
                    pieces = self._pieces(*self._wants.popleft())

    def _pieces(self, sha256: str, offset: int) -> Iterator[bytes]:
        for data in self._sources[sha256].chunks(offset):
            line = {"cmd": "data", "hash": sha256, "offset": offset, "size": len(data)}
            yield json.dumps(line).encode("ascii") + b"\n" + data
            offset += len(data)
            self.sent += len(data)


@dataclass
class _Node:
    """A node of a spread, from the controller's view."""

    host: str
    feed: Feed
    listening: Mapping[str, Any] | None = None
    started: threading.Event = field(default_factory=threading.Event)
    progress: int = 0  # bytes that the node says it has
    clock: ProgressClock = field(default_factory=ProgressClock)
    complete: bool = False
    ended: bool = False


@dataclass(frozen=True)
class Addresses:
    """The nodes' addresses for each other: by host, addresses to try first (fabric), and ports known to be open."""

    preferred: Mapping[str, Sequence[str]] = field(default_factory=dict)
    ports: Mapping[str, Sequence[int]] = field(default_factory=dict)


def bring_files(
    stage: str,
    sources: Sequence[Source],
    fleet: Fleet,
    tell: Tell,
    hosts: Sequence[str],
    addresses: Addresses | None = None,
    known: FleetOutcome[Holdings] | None = None,
) -> Delivery:
    """Bring every file to every host. A host that has all files is only asked, or not even that with ``known``.

    The Delivery names each host as done (complete and verified there) or with its error.
    """
    hashes = [source.sha256 for source in sources]
    known = known or fleet.map(lambda transport: ask_holdings(transport, hashes), hosts)
    total = sum(source.size for source in sources)
    lacking = [host for host in hosts if host in known.results and missing_files(known.results[host], sources)]
    having = [host for host in hosts if host in known.results and host not in lacking]
    for host in having:
        tell(Progress(stage, total, total, host))
    there = Delivery(Traffic(total * len(having), 0, 0, total * len(having)), tuple(having), dict(known.errors))
    if not lacking:
        return there
    files = [source for host in lacking for source in missing_files(known.results[host], sources)]
    if sum(source.size for source in files) <= SPREAD_LEAST_BYTES:
        return _joined(hosts, there, deliver(stage, sources, fleet, tell, lacking))
    # A node that already has everything relieves the controller.
    given = Spread(stage, sources, lacking, tell, addresses or Addresses(), helpers=having[:1]).run(fleet)
    return _joined(hosts, there, given)


def _joined(hosts: Sequence[str], first: Delivery, second: Delivery) -> Delivery:
    done = {*first.done, *second.done}
    return Delivery(
        first.traffic + second.traffic,
        tuple(host for host in hosts if host in done),
        {**first.errors, **second.errors},
    )


class Spread:
    """A spread to ``hosts`` (at least one host); ``helpers`` have all files and only give. Used once."""

    def __init__(
        self,
        stage: str,
        sources: Sequence[Source],
        hosts: Sequence[str],
        tell: Tell,
        addresses: Addresses,
        helpers: Sequence[str] = (),
    ) -> None:
        self._helpers = frozenset(helpers)
        self._stage, self._sources, self._tell, self._addresses = stage, list(sources), tell, addresses
        self._total = sum(source.size for source in sources)
        by_hash = {source.sha256: source for source in sources}
        self._lock = threading.Lock()
        self._nodes = {host: _Node(host, Feed(by_hash)) for host in (*helpers, *hosts)}
        self._credentials = new_credentials()
        self._going = False
        self._fault: Exception | None = None

    def run(self, fleet: Fleet) -> Delivery:
        """Run the whole spread. Every host finishes, then every host is reported."""
        starter = threading.Thread(target=self._start_chain, name="ddpctl-spread", daemon=True)
        starter.start()
        outcome = fleet.together(self._work, list(self._nodes))
        starter.join()
        if self._fault is not None:
            raise self._fault
        traffic = Traffic()
        for host, result in outcome.results.items():
            if host not in self._helpers:
                traffic += Traffic(self._total, self._nodes[host].feed.sent, result["relayed"], result["found"])
        for host in outcome.errors:
            # The bytes of an unfinished transfer were sent too.
            traffic += Traffic(0, self._nodes[host].feed.sent, 0, 0)
        return Delivery(
            traffic,
            tuple(host for host in outcome.results if host not in self._helpers),
            {host: error for host, error in outcome.errors.items() if host not in self._helpers},
        )

    # --- one node -----------------------------------------------------------------------------------------------------
    def _work(self, transport: Transport) -> Any:
        """Run the verb on one host, from start to end."""
        node = self._nodes[transport.host]
        request = {
            "files": [{"hash": source.sha256, "size": source.size, "name": source.name} for source in self._sources],
            "certificate": self._credentials.certificate,
            "key": self._credentials.key,
            "ports": [*self._addresses.ports.get(node.host, ()), 0],
        }
        try:
            return transport.call(
                "spread",
                request,
                body=node.feed,
                on_frame=lambda frame: self._heard(node, frame),
                timeout=SEND_S,
                clock=node.clock,
                cancel=lambda: self._fault is not None,
            )
        except RemoteError as error:
            raise as_provision_error(error, node.host) from error
        finally:
            node.feed.close()
            self._over(node)

    def _heard(self, node: _Node, frame: Frame) -> None:
        data = frame.data
        if "listening" in data:
            node.listening = data
            node.started.set()
            self._join_late(node)
        elif "progress" in data:
            more = min(data["progress"], self._total) - node.progress  # a node cannot say that for ever
            node.clock.moved(max(more, 0))
            node.progress += max(more, 0)
            self._tell(Progress(self._stage, data["progress"], self._total, node.host))
        elif "want" in data:
            node.feed.want(data["want"])
        elif "left" in data:
            self._tell(Note(f"cannot get files from {data['left']}: {data['why']}", "warning", node.host))
        elif "complete" in data:
            self._tell(Progress(self._stage, self._total, self._total, node.host))
            node.clock.pause()  # it serves the other nodes
            with self._lock:
                node.complete = True
            self._end_when_all_are_through()

    def _over(self, node: _Node) -> None:
        """Note that a node's call has ended, and tell the other nodes not to wait for it."""
        with self._lock:
            node.ended = True
            others = [other for other in self._nodes.values() if not other.ended]
        node.started.set()
        if not node.complete:
            for other in others:
                other.feed.order(cmd="lost", host=node.host)
        self._end_when_all_are_through()

    def _end_when_all_are_through(self) -> None:
        with self._lock:
            if not all(node.complete or node.ended for node in self._nodes.values()):
                return
            waiting = [node for node in self._nodes.values() if not node.ended]
        for node in waiting:
            node.clock.resume()
            node.feed.order(cmd="end")
            node.feed.close()

    # --- the chain ----------------------------------------------------------------------------------------------------
    def _start_chain(self) -> None:
        """Run in a thread of its own. After a failure end all calls: a node without a start order waits for ever."""
        try:
            self._order()
        except Exception as error:  # ends every call; ``run`` raises it
            self._fault = error
            for node in self._nodes.values():
                node.feed.close()

    def _order(self) -> None:
        """Wait until all nodes listen, or the deadline; then tell each node its peers, in the order of the chain."""
        for node in self._nodes.values():
            node.started.wait(SPREAD_START_S)
        with self._lock:
            self._going = True
            chain = self._chain()
        for node in chain:
            node.feed.order(cmd="go", peers=self._peers(chain, node))

    def _join_late(self, node: _Node) -> None:
        """Append a node that began to listen after the chain had started."""
        with self._lock:
            if not self._going:
                return
            chain = [other for other in self._chain() if other is not node]
        node.feed.order(cmd="go", peers=self._peers([*chain, node], node))

    def _chain(self) -> list[_Node]:
        """Return the listening nodes, the node with the most bytes first, otherwise in the order of the hosts."""
        there = [node for node in self._nodes.values() if node.listening and not node.ended]
        return sorted(there, key=lambda node: -(node.listening or {"done": 0})["done"])

    def _peers(self, chain: Sequence[_Node], node: _Node) -> list[dict[str, Any]]:
        """Return all other nodes in the order to try: nodes before it in the chain, nearest first, then the rest."""
        place = chain.index(node)
        before = [self._peer(other, before=True) for other in reversed(chain[:place])]
        return before + [self._peer(other, before=False) for other in chain[place + 1 :]]

    def _peer(self, node: _Node, *, before: bool) -> dict[str, Any]:
        listening = node.listening or {}
        known = [*self._addresses.preferred.get(node.host, ()), *listening["addresses"]]
        return {
            "host": node.host,
            "addresses": list(dict.fromkeys(known)),
            "port": listening["listening"],
            "have": listening["have"],
            "before": before,
        }
