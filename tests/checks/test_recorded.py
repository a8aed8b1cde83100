"""Kernel logs and outputs of nvidia-smi that others published: the findings of all gpu.* checks on that host.

A file of ``recorded`` has the lines, and the right answer: the check, the severity, words of the messages and the fix.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddpctl.checks.catalogue import CATALOGUE
from ddpctl.checks.gpu.cuda import runs_on
from ddpctl.checks.judge import judge_checks
from ddpctl.spec.finding import Finding, Severity
from tests.checks.case import view_of

FILES = sorted((Path(__file__).parent / "recorded").glob("*.json"))
UPTIME = 200_000.0
BUS = "0000:11:00.0"
LOADED = {
    "gpus": [BUS],
    "switches": [],
    "modules": ["nvidia", "nvidia_uvm"],
    "version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15\n",
    "driver_gpus": [BUS],
    "nodes": ["/dev/nvidia0"],
    "minors": {},
    "distribution": ["debian"],
    "container": False,
    "wsl": False,
}
HEALTHY = (
    "index, uuid, name, driver_version, pci.bus_id, memory.total [MiB]\n"
    "0, GPU-1, NVIDIA H100 80GB HBM3, 550.54.15, 00000000:FF:00.0, 81559 MiB\n"
)


def findings_of(recorded: dict[str, Any]) -> list[Finding]:
    given = recorded["input"]
    if recorded["kind"] == "kernel_log":
        lines = given["dmesg"].splitlines()
        log = {"source": "/dev/kmsg", "lines": lines, "total": len(lines), "error": None, "uptime": UPTIME}
        answers = {"kernel_log": log, "nvidia_smi": smi(HEALTHY, 0), "nvidia_kernel": LOADED}
    else:
        kernel = {**LOADED, **(given.get("kernel") or {})}
        answers = {"nvidia_smi": smi(given["gpu"], given.get("code") or 0, given.get("L")), "nvidia_kernel": kernel}
    view = view_of({"targets": ["node0"], "answers": {"node0": answers}})
    checks = [check for check in CATALOGUE if check.id.startswith("gpu.")]
    return [found for found in judge_checks(checks, view) if found.severity not in (Severity.OK, Severity.UNKNOWN)]


def smi(text: str, code: int, devices: str | None = None) -> dict[str, Any]:
    nothing = {"code": 0, "stdout": "", "stderr": "", "timed_out": False, "seconds": 0.1}
    gpu = {**nothing, "stdout": text, "code": code}
    listed = {**nothing, "stdout": devices} if devices else None
    return {"gpu": gpu, "apps": nothing, "remapped": nothing, "list": listed, "processes": []}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_findings_are_right(path: Path) -> None:
    recorded = json.loads(path.read_text())
    right = recorded["right"]
    check = right.get("check", "gpu.xid" if recorded["kind"] == "kernel_log" else "gpu.driver")
    found = findings_of(recorded)
    own = [finding for finding in found if finding.check == check]
    messages = " ".join(finding.message for finding in own)
    assert len(own) == right.get("findings", right.get("count", len(own)))
    assert own or right.get("findings") == 0, found
    if "severity" in right:
        assert right["severity"] in {str(finding.severity.value) for finding in own}, own
    for words in right.get("says", ()):
        assert any(word in messages for word in words.split("|")), messages
    for words in right.get("not_says", ()):
        assert words not in " ".join(finding.message for finding in found)
    for words in right.get("fix", ()):
        assert words in " ".join(finding.fix or "" for finding in own), own


# The wheels of pytorch.org, as pytorch/pytorch's issue 172352 and pull request 158700 list them.
BUILDS = (
    "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90",  # cu126
    "sm_70 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120",  # cu128 of torch 2.8
    "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120",  # cu128 of torch 2.11
    "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120",  # cu130
)


@pytest.mark.parametrize(
    ("capability", "runs"),
    [("12.0", "0111"), ("12.1", "0111"), ("10.3", "0111"), ("7.0", "1100"), ("6.1", "1000"), ("8.9", "1111")],
)
def test_the_builds_that_run_on_a_gpu(capability: str, runs: str) -> None:
    assert "".join(str(int(runs_on(capability, build.split()))) for build in BUILDS) == runs
