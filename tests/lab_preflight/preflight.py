"""A preflight of a lab and its findings, in a form that a test compares.

`preflight` runs in the test's process, which saves half of the processor time of a preflight; `command`
runs the installed command, for the tests of its exit code and of its lines. The workers on the hosts are the same.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddpctl.files.inventory import load_inventory
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.preflight import PreflightReport
from ddpctl.stages.launch import launch_to_check
from ddpctl.stages.preflight import Options, run_preflight
from ddpctl.transport.fleet import open_fleet
from tests.lab import Host, Lab
from tests.lab.command import Ddpctl

PORT = 29500
RANGE = "32768-60999"
NETWORK = ("ssh", "port", "fabric", "mesh")  # the subjects that these tests are about
BUSY = "slow, not wrong"  # in an info about a slow shell or a slow look-up of a name, as on any busy machine
DEFAULTS: dict[str, Any] = {}  # of each inventory: conftest.py names the interpreter
JOB = {"train": {"script": "train.py", "code": None, "master_port": PORT}}


@dataclass(frozen=True)
class Seen:
    """The output of the installed command."""

    findings: tuple[Finding, ...]
    exit_code: int
    stderr: str


def preflight(
    lab: Lab, *, only: tuple[str, ...] = NETWORK, options: Options | None = None, **keys: Any
) -> PreflightReport:
    """The report on all hosts, for a job with a fixed master port unless ``jobs`` says something else.

    ``hosts``: inventory keys of single hosts; ``count``: so many of the lab's hosts; other keys are the inventory's.
    """
    return preflight_of(_inventory(lab, **keys), only, options)


def preflight_of(path: Path, only: tuple[str, ...], options: Options | None = None) -> PreflightReport:
    """The report on an inventory."""
    inventory = load_inventory(path)
    job = next(iter(inventory.jobs.values()), None)
    fleet = open_fleet(inventory)
    try:
        return run_preflight(
            launch_to_check(inventory, job), fleet, lambda event: None, options=options or Options(only=only)
        )
    finally:
        fleet.close()


def command(lab: Lab, *, only: tuple[str, ...] = NETWORK, **keys: Any) -> Seen:
    """The same by `ddpctl preflight`."""
    words = ["preflight", str(_inventory(lab, **keys)), "--json"]
    words += ["--only", ",".join(only)] if only else []
    folder = Path(tempfile.mkdtemp(prefix="preflight-", dir=lab.folder))
    done = Ddpctl(folder)(*words, home=lab.home("preflight"), timeout=240)
    assert done.stdout, done.stderr
    document = done.json()
    assert document["ok"] == (done.rc == 0)
    findings = tuple(Finding(**{**one, "severity": Severity(one["severity"])}) for one in document["findings"])
    return Seen(findings, done.rc, done.stderr)


def _inventory(lab: Lab, hosts: dict[str, dict[str, Any]] | None = None, count: int | None = None, **keys: Any) -> Path:
    ssh = {"ssh_config": str(lab.ssh_config), "known_hosts": str(lab.known_hosts)}
    entries = [{"name": h.name, "address": h.address, **(hosts or {}).get(h.name, {})} for h in lab.hosts[:count]]
    defaults = {**DEFAULTS, **keys.pop("defaults", {})}
    return lab.inventory(
        lab.folder / "inventory.yaml", **ssh, defaults=defaults, **{"hosts": entries, "jobs": JOB, **keys}
    )


def trouble(report: Seen | PreflightReport, *, speeds: bool = False) -> list[Finding]:
    """The errors and warnings. With ``speeds`` also slow links: between the lab's hosts the speed depends on how busy
    the machine is, so only a test that slows a link down expects them."""
    unsure = () if speeds else ("mesh.bandwidth", "mesh.latency")
    wrong = (Severity.ERROR, Severity.WARNING)
    return [finding for finding in report.findings if finding.severity in wrong and finding.check not in unsure]


def where(findings: list[Finding]) -> list[tuple[str, str, str | None, str | None]]:
    return [(finding.check, finding.severity.value, finding.host, finding.peer) for finding in findings]


def run_fix(finding: Finding, host: Host) -> None:
    """The command as it is printed, in a shell on the host that it is for."""
    assert finding.command
    host.run(finding.command)


def infos(report: Seen | PreflightReport) -> list[Finding]:
    quiet = [finding for finding in report.findings if finding.severity is Severity.INFO]
    return [finding for finding in quiet if BUSY not in finding.message]
