"""The rehearsal on real hosts: it passes, it names the stuck rank, and it leaves no process."""

from __future__ import annotations

import time

import pytest

from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.preflight import PreflightReport
from ddpctl.stages import rehearse
from ddpctl.stages.preflight import Options
from tests.lab import Lab
from tests.lab_preflight.preflight import preflight, trouble, where

DEEP = Options(only=("ssh", "fabric", "mesh", "deep"), deep=True)
JOB = {"train": {"script": "train.py", "code": None}}


def rehearsal(report: PreflightReport) -> list[Finding]:
    return [finding for finding in report.findings if finding.check == "deep.rehearsal"]


def leftovers(lab: Lab) -> list[str]:
    """Processes and files that a rehearsal leaves; the workers themselves have a moment to end."""
    for _ in range(1200):
        found = [f"{host.name}: {process.argv}" for host in lab for process in host.processes()]
        if not found:
            break
        time.sleep(0.05)
    return found + [f"{h.name}: {n}" for h in lab if (n := h.run("ls /tmp | grep ddpctl-rehearsal || true").stdout)]


@pytest.mark.torch
def test_all_ranks_get_through(lab3: Lab, python213: str) -> None:
    report = preflight(lab3, options=DEEP, count=2, defaults={"python": python213, "slots": 2}, jobs={})
    assert where(trouble(report)) == []
    (found,) = rehearsal(report)
    assert found.severity is Severity.OK
    assert "4 ranks on 2 nodes" in found.message
    assert leftovers(lab3) == []


@pytest.mark.torch
@pytest.mark.full(
    covered_by="tests/stages/test_rehearsal.py::test_ranks_that_are_stuck_and_a_launcher_that_never_joined"
)
def test_rank_that_is_stuck_is_named(lab3: Lab, python213: str) -> None:
    """Its launcher starts it, and its interpreter never comes up: nothing that a check of one host alone would ask."""
    lab3[1].write("/root/slow/sitecustomize.py", "import os, time\nif 'RANK' in os.environ:\n    time.sleep(3600)\n")
    hosts = {"node1": {"env": {"PYTHONPATH": "/root/slow"}}}
    report = preflight(lab3, options=DEEP, defaults={"python": python213}, hosts=hosts, jobs=JOB)
    found = rehearsal(report)
    assert [(finding.severity, finding.host) for finding in found] == [(Severity.ERROR, "node1")]
    assert "2 ranks on node0,node2 waited for it" in found[0].message
    assert "never joined" not in found[0].message
    assert "rank 1 is at sitecustomize.py:3" in found[0].message
    assert report.exit_code == 3
    assert leftovers(lab3) == []


@pytest.mark.torch
@pytest.mark.full(
    covered_by="tests/stages/test_rehearsal.py::test_ranks_that_are_stuck_and_a_launcher_that_never_joined"
)
def test_launcher_that_is_stuck_is_named(lab3: Lab, python213: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launchers of the other nodes wait for it and start no rank that could give up: only the deadline ends the
    rehearsal.
    """
    monkeypatch.setattr(rehearse, "REHEARSAL_S", 100.0)
    lab3[1].write("/root/slow/torch/__init__.py", "import time\ntime.sleep(3600)\n")
    hosts = {"node1": {"env": {"PYTHONPATH": "/root/slow"}}}
    report = preflight(lab3, options=DEEP, defaults={"python": python213}, hosts=hosts, jobs=JOB)
    found = rehearsal(report)
    assert [(finding.severity, finding.host) for finding in found] == [(Severity.ERROR, "node1")]
    assert "never joined the others" in found[0].message
    assert leftovers(lab3) == []


def test_errors_before_it_spare_the_rehearsal(lab3: Lab) -> None:
    lab3[0].drop(port=29500)
    (found,) = rehearsal(preflight(lab3, options=DEEP))
    assert found.severity is Severity.SKIPPED
    assert "mesh.ports" in found.message
