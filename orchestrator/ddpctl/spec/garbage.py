"""What can be removed from the nodes, or was. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ddpctl.errors import DdpctlError, HostsFailed
from ddpctl_worker import contract


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
            raise HostsFailed(f"{len(self.errors)} hosts could not be cleaned", self.errors)

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
