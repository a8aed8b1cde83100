"""Put a data folder of this machine on every host, along the chain that environments take.

The steps: every host says which files it lacks; the lacking files travel as bundles, which the hosts unpack; then each
host makes the new version visible. A host that fails leaves the other hosts alone.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddpctl.code.datafolder import BundleSource, DataFolder
from ddpctl.environment.direct import as_provision_error
from ddpctl.environment.spread import bring_files
from ddpctl.errors import DdpctlError, ProvisionError, RemoteError
from ddpctl.spec.data import Bundle, DataNode, DataOutcome, group_missing, plan_bundles
from ddpctl.spec.event import Event, Note, Progress, StageEnded, StageStarted, Tell
from ddpctl.spec.inventory import Inventory
from ddpctl.spec.limits import BUNDLE_BYTES, SINGLE_BYTES
from ddpctl.spec.push import Delivery, Traffic
from ddpctl.stages.limits import DATA_BATCH, DATA_MISSING_S, DATA_PLACE_S
from ddpctl.transport.base import Fleet, FleetOutcome, Transport
from ddpctl_worker.rules.datafolder import as_ranges, from_ranges

STAGE = "data"


@dataclass
class _Push:
    """The progress of a push. ``missing``: the files that a host lacked at its start, by host."""

    data: DataFolder
    request: Mapping[str, Any]
    fleet: Fleet
    tell: Tell
    missing: dict[str, list[int]] = field(default_factory=dict)
    errors: dict[str, DdpctlError] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    arrived: dict[str, int] = field(default_factory=dict)  # bytes of complete batches, by host

    def going(self, hosts: Sequence[str]) -> list[str]:
        """Return the hosts without an error."""
        return [host for host in hosts if host not in self.errors]

    def size(self, indices: Sequence[int]) -> int:
        return sum(self.data.found[index].size for index in indices)


def push_data(
    data: DataFolder, name: str, link: str, inventory: Inventory, fleet: Fleet, tell: Tell, *, origin: str
) -> DataOutcome:
    """Put ``data`` on all hosts of the inventory, as ``name`` of its project.

    ``link``: the name under which a job's script finds the data. ``origin``: the folder and machine of the data, for
    the warning about a version from elsewhere. Every host finishes, then every host is reported.
    """
    begun = time.monotonic()
    request = {"project": inventory.project, "name": name, "version": data.version}
    push = _Push(data, request, fleet, tell)
    _ask(push, inventory.names)
    hosts = push.going(inventory.names)
    total = max((push.size(push.missing[host]) for host in hosts), default=0)
    tell(StageStarted(STAGE, total, "bytes"))
    for members, indices in group_missing({host: push.missing[host] for host in hosts}).items():
        _send(push, members, indices)
    _place(push, push.going(hosts), [], origin)
    reused = sum(data.size - push.size(push.missing[host]) for host in hosts)
    push.traffic += Traffic(reused, 0, 0, reused)
    tell(StageEnded(STAGE, not push.errors, _sentence(push.traffic)))
    return DataOutcome(
        cluster=inventory.cluster,
        name=name,
        version=data.version,
        files=len(data.found),
        size=data.size,
        link=_link(inventory, name, link),
        duration_s=time.monotonic() - begun,
        traffic=push.traffic,
        nodes=tuple(DataNode(host, push.paths.get(host), push.errors.get(host)) for host in inventory.names),
    )


def _link(inventory: Inventory, name: str, link: str) -> tuple[str, str] | None:
    """Return the entry for ``links``; ``None`` if the hosts keep their data at different places."""
    bases = {host.base_dir for host in inventory.hosts}
    return (link, f"{bases.pop()}/data/{inventory.project}/{name}") if len(bases) == 1 else None


def _sentence(traffic: Traffic) -> str:
    sent, relayed, reused = (part / 1e6 for part in (traffic.sent_by_controller, traffic.relayed, traffic.reused))
    return f"{sent:.0f} MB sent from here, {relayed:.0f} from node to node, {reused:.0f} already there"


# --- what the hosts lack ----------------------------------------------------------------------------------------------
def _ask(push: _Push, hosts: Sequence[str]) -> None:
    """Ask every host for the files that it lacks. A host without the listing gets it first."""
    answers = _ask_missing(push, hosts)
    unlisted = [host for host, answer in answers.results.items() if not answer["listed"]]
    errors = dict(answers.errors)
    results = dict(answers.results)
    if unlisted:
        sent = bring_files("list", [push.data.source], push.fleet, lambda event: None, unlisted)
        push.traffic += sent.traffic
        again = _ask_missing(push, sent.done)
        errors.update({**sent.errors, **again.errors})
        results.update(again.results)
    push.errors.update(errors)
    for host, answer in results.items():
        try:
            push.missing[host] = from_ranges(answer["missing"], len(push.data.found))
        except ValueError as error:
            push.errors[host] = ProvisionError(f"data_missing: {error}", host=host)


def _ask_missing(push: _Push, hosts: Sequence[str]) -> FleetOutcome[dict[str, Any]]:
    sizes = {"single": SINGLE_BYTES, "batch": DATA_BATCH * BUNDLE_BYTES}
    return _call(push, "data_missing", sizes, DATA_MISSING_S, hosts)


def _call(
    push: _Push, verb: str, more: Mapping[str, Any], timeout: float, hosts: Sequence[str]
) -> FleetOutcome[dict[str, Any]]:
    def work(transport: Transport) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = transport.call(verb, {**push.request, **more}, timeout=timeout)
        except RemoteError as error:
            raise as_provision_error(error, transport.host) from error
        return answer

    return push.fleet.map(work, hosts)


# --- bundles ----------------------------------------------------------------------------------------------------------
def _send(push: _Push, hosts: Sequence[str], indices: Sequence[int]) -> None:
    """Bring the files to hosts that lack exactly these, batch by batch: a host unpacks a batch before the next."""
    bundles = _plan(push.data, indices)
    while (batch := list(itertools.islice(bundles, DATA_BATCH))) and (going := push.going(hosts)):
        sources = [push.data.bundle(files) for files in batch]
        delivery = _bring(push, sources, going)
        push.errors.update(delivery.errors)
        push.traffic += delivery.traffic
        _place(push, delivery.done, [(s.sha256, files) for s, files in zip(sources, batch, strict=True)])
        for host in delivery.done:
            push.arrived[host] = push.arrived.get(host, 0) + sum(source.size for source in sources)


def _plan(data: DataFolder, indices: Sequence[int]) -> Iterator[Bundle]:
    """Yield the bundles of these files. A host makes further files of the same content by itself."""
    seen: set[str] = set()
    for files in plan_bundles([file.size for file in data.found], indices):
        sha256 = data.bundle(files).sha256
        if sha256 not in seen:
            yield files
        seen.add(sha256)


def _bring(push: _Push, sources: Sequence[BundleSource], hosts: Sequence[str]) -> Delivery:
    def tell(event: Event) -> None:
        """Pass an event on, with the batches before this one counted."""
        if isinstance(event, Progress) and event.host is not None:
            whole = push.size(push.missing[event.host])
            event = Progress(STAGE, push.arrived.get(event.host, 0) + event.done, whole, event.host)
        push.tell(event)

    return bring_files(STAGE, sources, push.fleet, tell, hosts)


def _place(push: _Push, hosts: Sequence[str], bundles: Sequence[tuple[str, Bundle]], origin: str | None = None) -> None:
    """Have the hosts unpack bundles; with ``origin`` also make the version visible."""
    rows = [[sha256, as_ranges(files)] for sha256, files in bundles]
    more = {"bundles": rows, "last": origin is not None, "origin": origin or ""}
    outcome = _call(push, "data_place", more, DATA_PLACE_S, hosts)
    push.errors.update(outcome.errors)
    if origin is None:
        return
    for host, answer in outcome.results.items():
        push.paths[host] = answer["path"]
        if answer["replaced"]:
            push.tell(Note(f"the version before came from {answer['replaced']}", "warning", host))
