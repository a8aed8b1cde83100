"""Whole machines: a healthy one has no finding, one with a fault has exactly that."""

from __future__ import annotations

import subprocess

import pytest

from ddpctl.checks.catalogue import CATALOGUE
from ddpctl.checks.gpu import use
from ddpctl.checks.judge import verdicts
from ddpctl.spec.finding import Finding, Severity
from tests.checks.machine import Machine, machines, over, read, view
from tests.checks.test_commands import assert_runs_as_it_is

ALL = machines()
TROUBLE = (Severity.ERROR, Severity.WARNING)


def name_of(machine: Machine) -> str:
    return f"{machine.name}-{machine.fault}" if machine.fault else machine.name


@pytest.fixture(params=ALL, ids=name_of)
def machine(request: pytest.FixtureRequest) -> Machine:
    made: Machine = request.param
    return made


@pytest.fixture
def findings(machine: Machine) -> tuple[Finding, ...]:
    return verdicts(CATALOGUE, machine.view)


def test_exactly_its_fault_is_found(machine: Machine, findings: tuple[Finding, ...]) -> None:
    named = {one[0] for one in machine.findings}
    found = [one for one in findings if one.severity in TROUBLE or one.severity.value in named]
    told = [(one.severity.value, one.check, one.host) for one in found]
    summary = "\n".join(f"{one.severity.value} {one.check} {one.host}: {one.message} $ {one.command}" for one in found)
    assert sorted(told, key=str) == sorted((one[:3] for one in machine.findings), key=str), summary
    for severity, check, host, words, *command in machine.findings:
        same = [one for one in found if (one.severity.value, one.check, one.host) == (severity, check, host)]
        assert any(words in one.message for one in same), summary
        assert all(any(part in (one.command or "") for one in same) for part in command), summary


def test_its_commands_are_shell_text(findings: tuple[Finding, ...]) -> None:
    own = [one for one in findings if one.command]
    for one in own:
        assert_runs_as_it_is(one)
    subprocess.run(["bash", "-n"], input="\n".join(str(one.command) for one in own), text=True, check=True)


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
        assert [use.devices(seen, target) for target in seen.targets] == [gpus, gpus]
        assert use.uses_gloo(seen) == (gpus == 0)
