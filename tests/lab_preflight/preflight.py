"""A preflight of a lab by the installed command, and what it found, in a form that a test compares."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddpctl.files.inventory import load_inventory
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.preflight import PreflightReport
from ddpctl.stages.launch import Launch
from ddpctl.stages.preflight import Options, run_preflight
from ddpctl.transport.fleet import open_fleet
from tests.lab import Host, Lab
from tests.lab.command import Ddpctl

PORT = 29500
RANGE = "32768-60999"
NETWORK = ("ssh", "port", "fabric", "mesh")  # the subjects that these tests are about
JOB = {"train": {"script": "train.py", "code": None, "master_port": PORT}}


@dataclass(frozen=True)
class Seen:
    """What the installed command told its user."""

    findings: tuple[Finding, ...]
    exit_code: int
    stderr: str


def preflight(lab: Lab, *, only: tuple[str, ...] = NETWORK, deep: bool = False, **keys: Any) -> Seen:
    """`ddpctl preflight` of all hosts, for a job with a fixed master port unless ``jobs`` says something else.

    ``hosts``: inventory keys of single hosts; other keys are those of the inventory.
    """
    words = ["preflight", str(_inventory(lab, **keys)), "--json"]
    words += ["--only", ",".join(only)] if only else []
    words += ["--deep"] if deep else []
    folder = Path(tempfile.mkdtemp(prefix="preflight-", dir=lab.folder))
    done = Ddpctl(folder)(*words, home=lab.home("preflight"), timeout=180)
    assert done.stdout, done.stderr
    document = done.json()
    assert document["ok"] == (done.rc == 0)
    return Seen(
        tuple(Finding(**{**one, "severity": Severity(one["severity"])}) for one in document["findings"]),
        done.rc,
        done.stderr,
    )


def measured(
    lab: Lab, *, only: tuple[str, ...] = NETWORK, options: Options | None = None, **keys: Any
) -> PreflightReport:
    """The same in this process: with what a plan takes from it, and with options that only the code has."""
    inventory = load_inventory(_inventory(lab, **keys))
    job = next(iter(inventory.jobs.values()), None)
    fleet = open_fleet(inventory)
    try:
        wishes = options or Options(only=only)
        launch = Launch(inventory, job, inventory.hosts)
        return run_preflight(launch, fleet, lambda event: None, options=wishes)
    finally:
        fleet.close()


def _inventory(lab: Lab, hosts: dict[str, dict[str, Any]] | None = None, **keys: Any) -> Path:
    ssh = {"ssh_config": str(lab.ssh_config), "known_hosts": str(lab.known_hosts)}
    entries = [{"name": h.name, "address": h.address, **(hosts or {}).get(h.name, {})} for h in lab]
    return lab.inventory(lab.folder / "inventory.yaml", **ssh, **{"hosts": entries, "jobs": JOB, **keys})


def trouble(report: Seen | PreflightReport) -> list[Finding]:
    """Whatever is not fine."""
    return [finding for finding in report.findings if finding.severity in (Severity.ERROR, Severity.WARNING)]


def where(findings: list[Finding]) -> list[tuple[str, str, str | None, str | None]]:
    return [(finding.check, finding.severity.value, finding.host, finding.peer) for finding in findings]


def run_fix(finding: Finding, host: Host) -> None:
    """The command as it is printed, in a shell on the host that it is for."""
    assert finding.command
    host.run(finding.command)


def infos(report: Seen | PreflightReport) -> list[Finding]:
    return [finding for finding in report.findings if finding.severity is Severity.INFO]
