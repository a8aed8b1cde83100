"""Whole machines: a healthy machine has no finding, a machine with a fault has exactly the findings of this fault."""

from __future__ import annotations

import subprocess

import pytest

from ddpctl.checks.catalogue import CATALOGUE
from ddpctl.checks.gpu import in_use
from ddpctl.checks.judge import judge_checks
from ddpctl.spec.finding import Severity
from tests.checks.machine import NAMES, Machine, machines, over, read, view
from tests.checks.test_commands import assert_runs_as_it_is

TROUBLE = (Severity.ERROR, Severity.WARNING)


@pytest.mark.parametrize("name", NAMES)
def test_exactly_the_fault_of_each_state_is_found(name: str) -> None:
    faults = {}
    for machine in machines(name):
        try:
            assert_found_exactly(machine)
        except AssertionError as error:
            faults[machine.fault or "healthy"] = str(error)
    assert faults == {}


def assert_found_exactly(machine: Machine) -> None:
    named = {one[0] for one in machine.findings}
    findings = judge_checks(CATALOGUE, machine.view)
    found = [one for one in findings if one.severity in TROUBLE or one.severity.value in named]
    told = [(one.severity.value, one.check, one.host) for one in found]
    summary = "\n".join(f"{one.severity.value} {one.check} {one.host}: {one.message} $ {one.command}" for one in found)
    assert sorted(told, key=str) == sorted((one[:3] for one in machine.findings), key=str), summary
    for severity, check, host, words, *command in machine.findings:
        same = [one for one in found if (one.severity.value, one.check, one.host) == (severity, check, host)]
        assert any(words in one.message for one in same), summary
        assert all(any(part in (one.command or "") for one in same) for part in command), summary
    for one in findings:
        if one.command:
            assert_runs_as_it_is(one)


@pytest.mark.slow  # a shell for each state
def test_the_commands_of_each_state_are_shell_text() -> None:
    faults = {}
    for machine in (machine for name in NAMES for machine in machines(name)):
        commands = [one.command for one in judge_checks(CATALOGUE, machine.view) if one.command]
        checked = subprocess.run(["bash", "-n"], input="\n".join(commands), capture_output=True, text=True, check=False)
        if (checked.returncode, checked.stderr) != (0, ""):
            faults[f"{machine.name} {machine.fault}"] = checked.stderr
    assert faults == {}


@pytest.mark.parametrize(
    ("name", "gpus"),
    [
        ("linux", 0),
        ("cpu-rdma", 0),
        ("dgx-h100", 8),
        ("a100-mig", 1),
        ("a6000-and-k620", 1),
        ("gh200", 1),
        ("wsl2", 1),
        ("mi300x", 8),
        ("container-a100", 4),
    ],
)
def test_what_torch_sees_decides_on_processes_and_backend(name: str, gpus: int) -> None:
    for managed in (False, True):  # before the environment is there the driver is asked
        seen = view(over(read(name), {"want": {"managed": managed}}))
        assert [in_use.devices(seen, target) for target in seen.targets] == [gpus, gpus]
        assert in_use.uses_gloo(seen) == (gpus == 0)
