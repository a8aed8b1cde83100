"""What a preflight found, as one value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from ddpctl.errors import ConnectError, PreflightFailed
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.mesh import Fabric, Mesh
from ddpctl.spec.network import Network
from ddpctl.spec.plan import Facts
from ddpctl_worker.wire.contract import SCHEMA


@dataclass(frozen=True)
class PreflightReport:
    """``findings`` worst first; ``mesh`` is None where no mesh was measured, and ``network`` what a run's
    record keeps of it; ``facts`` is what a plan needs to know.

    ``unreachable`` are the hosts that could not be asked at all: nothing else is said of them.
    """

    cluster: str
    hosts: tuple[str, ...]
    findings: tuple[Finding, ...]
    duration_s: float
    mesh: Mesh | None = None
    network: Network | None = None
    facts: Facts = field(default_factory=Facts)
    fabric: Mapping[str, Fabric] = field(default_factory=dict)
    open_ports: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    unreachable: tuple[str, ...] = ()
    age_s: float | None = None  # of a report of a moment ago; None: measured now

    @property
    def ok(self) -> bool:
        return not any(finding.severity is Severity.ERROR for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """0, 3 when a check found an error, 4 when a host could not be reached."""
        if self.unreachable:
            return ConnectError.exit_code
        return 0 if self.ok else PreflightFailed.exit_code

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """As the contract fixes it."""
        return {
            "schema": SCHEMA,
            "cluster": self.cluster,
            "ok": self.ok,
            "hosts": list(self.hosts),
            "duration_s": round(self.duration_s, 3),
            "findings": [finding.to_json() for finding in self.findings],
        }


def sorted_findings(findings: Iterable[Finding], hosts: tuple[str, ...]) -> tuple[Finding, ...]:
    """Worst first, then by check, then in the order of the hosts."""
    place = {host: index for index, host in enumerate(hosts)}

    def order(finding: Finding) -> tuple[int, str, int, int]:
        return (
            finding.severity.order,
            finding.check,
            place.get(finding.host or "", -1),
            place.get(finding.peer or "", -1),
        )

    return tuple(sorted(findings, key=order))


# --- for the minute in which it still counts ------------------------------------------------------------------------


def to_document(report: PreflightReport) -> dict[str, Any]:
    """Everything but the mesh, JSON-able."""
    document: dict[str, Any] = TypeAdapter(PreflightReport).dump_python(
        report, mode="json", exclude={"mesh", "unreachable", "age_s"}
    )
    return document


def from_document(document: Mapping[str, Any]) -> PreflightReport:
    """Back from ``to_document``. Raises ValueError for anything else."""
    return TypeAdapter(PreflightReport).validate_python(document)
