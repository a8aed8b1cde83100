"""The outcome of a preflight."""

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
    """The outcome of a preflight.

    ``findings``: the worst first. ``mesh``: None if no mesh was measured. ``network``: the part of the mesh that the
    record of a run holds. ``facts``: for the plan. ``unreachable``: the hosts that gave no answer at all; no other
    field says anything about them.
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
    age_s: float | None = None  # the age of a reused report; None: measured now

    @property
    def ok(self) -> bool:
        return not any(finding.severity is Severity.ERROR for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """Return 0; 3 if a check found an error; 4 if a host could not be reached."""
        if self.unreachable:
            return ConnectError.exit_code
        return 0 if self.ok else PreflightFailed.exit_code

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "cluster": self.cluster,
            "ok": self.ok,
            "hosts": list(self.hosts),
            "duration_s": round(self.duration_s, 3),
            "findings": [finding.to_json() for finding in self.findings],
        }


def sorted_findings(findings: Iterable[Finding], hosts: tuple[str, ...]) -> tuple[Finding, ...]:
    """Sort findings by severity (the worst first), then by check, then in the order of the hosts."""
    place = {host: index for index, host in enumerate(hosts)}

    def order(finding: Finding) -> tuple[int, str, int, int]:
        return (
            finding.severity.order,
            finding.check,
            place.get(finding.host or "", -1),
            place.get(finding.peer or "", -1),
        )

    return tuple(sorted(findings, key=order))


# --- a report kept on this machine, for reuse within a short time -----------------------------------------------------


def to_document(report: PreflightReport) -> dict[str, Any]:
    """Return the report as JSON, without the mesh."""
    document: dict[str, Any] = TypeAdapter(PreflightReport).dump_python(
        report, mode="json", by_alias=True, exclude={"mesh", "unreachable", "age_s"}
    )
    return document


def from_document(document: Mapping[str, Any]) -> PreflightReport:
    """Return the report that ``to_document`` turned into JSON.

    Raises:
        ValueError: the document is not such a report.
    """
    return TypeAdapter(PreflightReport).validate_python(document)
