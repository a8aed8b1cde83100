"""Every command of every recorded cluster is shell text that runs on its host as it is."""

from __future__ import annotations

import re
import subprocess

import pytest

from ddpctl.spec.finding import Finding
from tests.checks.case import findings_of, load
from tests.checks.test_cases import FILES, check_of

_PLACEHOLDER = re.compile(r"<[a-z]+>|\bHOST\b|\bUSER\b")
# Words that shells run and that only a person's sentence starts with.
_PROSE = re.compile(r"^(or|and|then|check|set|make|give|look|use|put|see|in) ", re.IGNORECASE)


@pytest.mark.slow  # a shell for each command
def test_every_command_passes_bash() -> None:
    found = [finding for path in FILES for finding in findings_of(check_of(path), load(path)) if finding.command]
    assert found, "no case has a command"
    for finding in found:
        assert_runs_as_it_is(finding)
    commands = "\n".join(sorted({str(finding.command) for finding in found}))
    for command in commands.splitlines():
        checked = subprocess.run(["bash", "-n"], input=command, capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, ""), command


def assert_runs_as_it_is(finding: Finding) -> None:
    """Errors that bash's grammar does not see: no ssh in it, nothing for a person to fill in, no sentence, one line."""
    command = finding.command or ""
    assert finding.host, f"{finding.check}: nobody knows where to run {command!r}"
    assert not re.search(r"\bssh (-|\w+@|\$|[a-z]+\d)", command), command
    assert not _PLACEHOLDER.search(command), command
    assert not _PROSE.match(command), command
    assert "\n" not in command
    assert "ddpctl " not in command, "ddpctl is typed on the controller: it belongs in the fix"
    assert "sudo sudo" not in command, command
