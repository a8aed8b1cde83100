"""The outcomes of ``ddpctl push`` and ``ddpctl gc``. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ddpctl.errors import DdpctlError, HostsFailed
from ddpctl.spec.bounds import Count, Number, Short
from ddpctl.spec.values import plural
from ddpctl_worker.wire import contract


@dataclass(frozen=True)
class Traffic:
    """The bytes of a push, summed over all nodes.

    ``needed``: all files that the nodes must have. ``reused``: the files that were there already.
    ``sent_by_controller`` and ``relayed``: the bytes on the wire, from this machine and from node to node.
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
    """The outcome of sending files: every host is in ``kill`` (files complete and verified) or in ``errors``."""

    traffic: Traffic = field(default_factory=Traffic)
    done: tuple[str, ...] = ()
    errors: Mapping[str, DdpctlError] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.errors


@dataclass(frozen=True)
class NodeEnvironment:
    """The environment of a node: its interpreter, the versions of its packages, and the time of the installation."""

    host: str
    python: str
    versions: Mapping[str, str] = field(default_factory=dict)
    env_hash: str | None = None  # None in existing mode
    install_s: float = 0.0


@dataclass(frozen=True)
class EnvironmentOutcome:
    """The outcome of ``provision``: every host of the job is in ``nodes`` or in ``errors``.

    ``lock``: platform -> pylock.
    """

    mode: str
    nodes: Mapping[str, NodeEnvironment] = field(default_factory=dict)
    errors: Mapping[str, DdpctlError] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    lock: Mapping[str, str] = field(default_factory=dict)

    def python(self, host: str) -> str | None:
        """Return the interpreter that replaces the inventory's in a launch on ``host``; ``None``: no replacement."""
        node = self.nodes.get(host)
        return node.python if node and node.env_hash else None


@dataclass(frozen=True)
class PushedNode:
    """A node after a push."""

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


def raise_for_hosts(errors: Mapping[str, DdpctlError | None], what: str) -> None:
    """Raise HostsFailed if a host did not get ``what``. ``errors``: of each host, ``None`` without an error."""
    failed = {host: error for host, error in errors.items() if error is not None}
    if failed:
        raise HostsFailed(f"{len(failed)} of {len(errors)} hosts did not get {what}", failed)


@dataclass(frozen=True)
class PushOutcome:
    """The outcome of a push: environment and code on every node; no process was started."""

    cluster: str
    duration_s: float
    traffic: Traffic
    nodes: tuple[PushedNode, ...]

    @property
    def ok(self) -> bool:
        return all(node.error is None for node in self.nodes)

    def raise_for_errors(self) -> None:
        """Raise an error unless every host got everything.

        Raises:
            HostsFailed: a host has an error.
        """
        raise_for_hosts({node.host: node.error for node in self.nodes}, "everything")

    def to_json(self) -> dict[str, Any]:
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
    """An item to remove from a node. ``bytes``: the space that this frees.

    ``kind``: run, environment, wheel, tool, data, file, cache, worker or part.
    """

    kind: Short
    name: Short
    bytes: Count
    age_s: Number


@dataclass(frozen=True)
class GcOutcome:
    """The outcome of a gc: every host is in ``hosts`` or in ``errors``. ``dry_run``: no item was removed."""

    cluster: str
    dry_run: bool
    hosts: Mapping[str, tuple[Garbage, ...]] = field(default_factory=dict)
    errors: Mapping[str, DdpctlError] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(item.bytes for items in self.hosts.values() for item in items)

    def raise_for_errors(self) -> None:
        """Raise an error unless every host was cleaned.

        Raises:
            HostsFailed: a host has an error.
        """
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
