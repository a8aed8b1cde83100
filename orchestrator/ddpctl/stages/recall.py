"""Remembers a clean preflight for a minute, so that `up` need not repeat it while the chosen ports stay free."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import asdict, replace

import ddpctl
from ddpctl.checks import host_slots
from ddpctl.errors import DdpctlError
from ddpctl.files.records import recent_preflight, save_preflight
from ddpctl.spec.preflight import PreflightReport, from_document, to_document
from ddpctl.stages.launch import Launch
from ddpctl.stages.limits import FREE_PORT_S, PREFLIGHT_FRESH_S
from ddpctl.transport.base import Fleet

_log = logging.getLogger(__name__)


def key_of(launch: Launch) -> str:
    """Return a hash of everything that a preflight depends on, so that only the same question finds the result."""
    job, imports = launch.job, launch.imports
    asked = {
        "ddpctl": ddpctl.__version__,
        "inventory": launch.inventory.model_dump(mode="json", exclude={"jobs", "file"}),
        "hosts": [host.model_dump(mode="json") for host in launch.hosts],
        "job": job.model_dump(mode="json") if job else None,
        "imports": asdict(imports) if imports is not None else None,
        "script": asdict(launch.script) if launch.script is not None else None,
        "nproc": launch.nproc,
    }
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()


def find_remembered(key: str) -> PreflightReport | None:
    """Return the clean report of the last PREFLIGHT_FRESH_S seconds, or ``None``; no host is contacted."""
    found = recent_preflight(key, PREFLIGHT_FRESH_S)
    if found is None:
        return None
    try:
        return replace(from_document(found[0]), age_s=found[1])
    except ValueError as error:
        _log.warning("a remembered preflight cannot be read and is not used: %r", error)
        return None


def still_holds(report: PreflightReport, master: str, fleet: Fleet) -> bool:
    """Return whether the ports of the report are still free on the master."""
    ports = [port for port in (report.facts.master_port, report.facts.gang_port) if port is not None]
    try:
        free = fleet.transport(master).call("free_port", {"exactly": ports}, timeout=FREE_PORT_S)["ports"]
    except DdpctlError:
        return False  # the full preflight reports the error
    return bool(free == ports)


def remember(key: str, report: PreflightReport) -> None:
    """Save a clean report for the next minute. A failure to write it is only logged.

    The holders of slots are left out: they change at any moment, and `up` asks for them itself.
    """
    if not report.exit_code:
        lasting = tuple(finding for finding in report.findings if finding.check != host_slots.ID)
        try:
            save_preflight(key, to_document(replace(report, findings=lasting)))
        except OSError as error:
            _log.warning("the preflight is not remembered: %s", error)
