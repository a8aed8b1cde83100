"""What a push put on the nodes, and what a gc takes off them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ddpctl.errors import DdpctlError, HostsFailed
from ddpctl.spec.values import plural
from ddpctl_worker.wire import contract


@dataclass(frozen=True)
class Traffic:
    """Bytes of a push, added up over all nodes.

    ``needed``: what the nodes need to have; ``reused``: what of that lay there already; ``sent_by_controller`` and
    ``relayed``: what went over the wire from the controller and from node to node.
    """

    needed: int = 0
    sent_by_controller: int = 0
    relayed: int = 0
    reused: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.needed + other.needed,
            self.sent_by_controller + other.sent_by_controller,
            self.relayed + other.relayed,
            self.reused + other.reused,
        )

    @staticmethod
    def total(parts: Iterable[Traffic]) -> Traffic:
        return sum(parts, Traffic())


@dataclass(frozen=True)
class Delivery:
    """Files were brought to hosts: every host is in ``done`` (complete and verified there) or in ``errors``."""

    traffic: Traffic = field(default_factory=Traffic)
    done: tuple[str, ...] = ()
    errors: Mapping[str, DdpctlError] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.errors


@dataclass(frozen=True)
class NodeEnvironment:
    """The environment of one node: its interpreter, what is in it, and how long it took to put it there."""

    host: str
    python: str
    versions: Mapping[str, str] = field(default_factory=dict)
    env_hash: str | None = None  # None in existing mode
    install_s: float = 0.0


@dataclass(frozen=True)
class EnvironmentOutcome:
    """What ``provision`` did: every job host is in ``nodes`` or in ``errors``; ``lock`` holds a pylock a platform."""

    mode: str
    nodes: Mapping[str, NodeEnvironment] = field(default_factory=dict)
    errors: Mapping[str, DdpctlError] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    lock: Mapping[str, str] = field(default_factory=dict)

    def python(self, host: str) -> str | None:
        """The interpreter that the launch uses on ``host`` instead of the inventory's; None: that one stays."""
        node = self.nodes.get(host)
        return node.python if node and node.env_hash else None


@dataclass(frozen=True)
class PushedNode:
    """One node after a push."""

    host: str
    python: str
    environment: str | None = None
    code: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    install_s: float = 0.0
    error: DdpctlError | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "host": self.host,
            "ok": self.error is None,
            "environment": self.environment,
            "code": self.code,
            "python": self.python,
            "versions": dict(self.versions),
            "install_s": round(self.install_s, 3),
            "error": str(self.error) if self.error else None,
        }


@dataclass(frozen=True)
class PushOutcome:
    """Environment and code on every node, nothing started."""

    cluster: str
    duration_s: float
    traffic: Traffic
    nodes: tuple[PushedNode, ...]

    @property
    def ok(self) -> bool:
        return all(node.error is None for node in self.nodes)

    def raise_for_errors(self) -> None:
        """Raises HostsFailed when a host did not get everything."""
        errors = {node.host: node.error for node in self.nodes if node.error is not None}
        if errors:
            raise HostsFailed(f"{len(errors)} of {len(self.nodes)} hosts did not get everything", errors)

    def to_json(self) -> dict[str, Any]:
        """As the contract fixes it."""
        return {
            "schema": contract.SCHEMA,
            "cluster": self.cluster,
            "ok": self.ok,
            "duration_s": round(self.duration_s, 3),
            "bytes": asdict(self.traffic),
            "nodes": [node.to_json() for node in self.nodes],
        }


# --- gc ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Garbage:
    """One thing on a node: ``kind`` is run, environment, wheel, file, cache or part; ``bytes`` its removal frees."""

    kind: str
    name: str
    bytes: int
    age_s: float


@dataclass(frozen=True)
class GcOutcome:
    """Every host is in ``hosts`` or in ``errors``. ``dry_run``: nothing was removed yet."""

    cluster: str
    dry_run: bool
    hosts: Mapping[str, tuple[Garbage, ...]] = field(default_factory=dict)
    errors: Mapping[str, DdpctlError] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(item.bytes for items in self.hosts.values() for item in items)

    def raise_for_errors(self) -> None:
        """Raises HostsFailed when a host could not be cleaned."""
        if self.errors:
            raise HostsFailed(f"{plural(len(self.errors), 'host')} could not be cleaned", self.errors)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": contract.SCHEMA,
            "cluster": self.cluster,
            "dry_run": self.dry_run,
            "bytes": self.bytes,
            "hosts": [
                {"host": host, "error": None, "items": [asdict(item) for item in items]}
                for host, items in self.hosts.items()
            ]
            + [{"host": host, "error": str(error), "items": []} for host, error in self.errors.items()],
        }
