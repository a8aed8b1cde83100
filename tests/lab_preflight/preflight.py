"""A preflight of a lab, as the command runs it, and what it found, in a form that a test compares."""

from __future__ import annotations

from typing import Any

from ddpctl import files
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.preflight import PreflightReport
from ddpctl.stages.preflight import Options, run_preflight
from ddpctl.transport.fleet import open_fleet
from tests.lab import Host, Lab

PORT = 29500
RANGE = "32768-60999"
NETWORK = ("ssh", "port", "fabric", "mesh")  # the subjects that these tests are about
JOB = {"train": {"script": "train.py", "code": None, "master_port": PORT}}


def preflight(
    lab: Lab,
    *,
    only: tuple[str, ...] = NETWORK,
    options: Options | None = None,
    hosts: dict[str, dict[str, Any]] | None = None,
    **keys: Any,
) -> PreflightReport:
    """Preflight of all hosts for a job with a fixed master port. ``hosts``: inventory keys of single hosts."""
    path = lab.folder / "inventory.yaml"
    ssh = {"ssh_config": str(lab.ssh_config), "known_hosts": str(lab.known_hosts)}
    entries = [{"name": h.name, "address": h.address, **(hosts or {}).get(h.name, {})} for h in lab]
    lab.inventory(path, **ssh, **{"hosts": entries, "jobs": JOB, **keys})
    inventory = files.load_inventory(path)
    job = next(iter(inventory.jobs.values()), None)
    fleet = open_fleet(inventory)
    try:
        wishes = options or Options(only=only)
        return run_preflight(inventory, inventory.hosts, job, fleet, lambda event: None, options=wishes)
    finally:
        fleet.close()


def trouble(report: PreflightReport) -> list[Finding]:
    """Whatever is not fine."""
    return [finding for finding in report.findings if finding.severity in (Severity.ERROR, Severity.WARNING)]


def where(findings: list[Finding]) -> list[tuple[str, str, str | None, str | None]]:
    return [(finding.check, finding.severity.value, finding.host, finding.peer) for finding in findings]


def run_fix(finding: Finding, host: Host) -> None:
    """The command as it is printed, in a shell on the host that it is for."""
    assert finding.fix
    host.run(finding.fix)


def infos(report: PreflightReport) -> list[Finding]:
    return [finding for finding in report.findings if finding.severity is Severity.INFO]
