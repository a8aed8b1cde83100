"""The oldest Pythons that are supported: ddpctl itself on the one, hosts with the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddpctl import __version__
from tests.conftest import MakeLab
from tests.e2e.programs import SLEEP
from tests.e2e.site import Site, assert_nothing_runs, wait_for_ranks
from tests.lab import oldest
from tests.lab.command import Ddpctl, Done
from tests.lab.disk import CHECKOUT

SOURCES = f"{CHECKOUT}/orchestrator:{CHECKOUT}/worker"

# Imports all of ddpctl, then shows the help of every command.
EVERYTHING = """\
import importlib, pkgutil, sys
assert "%d.%d" % sys.version_info[:2] == sys.argv[1], sys.version
import ddpctl
for module in pkgutil.walk_packages(ddpctl.__path__, "ddpctl."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
from ddpctl.cli.program import COMMANDS, run
for command in COMMANDS:
    assert run([command, "--help"]) == 0, command
"""


@pytest.fixture
def old_controller() -> Path:
    return there(oldest.controller(), "tests/setup/controller-interpreter")


@pytest.fixture
def old_worker() -> Path:
    return there(oldest.worker(), "tests/setup/worker-interpreter")


def there(python: Path, installer: str) -> Path:
    if not python.exists():
        pytest.skip(f"no {python}: {installer} makes it")
    return python


def test_ddpctl(make_lab: MakeLab, ddpctl: Ddpctl, tmp_path: Path, python213: str, old_controller: Path) -> None:
    site = Site(make_lab(1), ddpctl, tmp_path / "site", python213)

    def run(*args: str, program: str = "-m ddpctl", **where: Any) -> Done:
        where = {"env": {"PYTHONPATH": SOURCES}, "shell": f'exec {old_controller} {program} "$@"', **where}
        return site.start(*args, **where).wait(120).ok()

    (tmp_path / "everything.py").write_text(EVERYTHING)
    run(oldest.controller_version(), program=str(tmp_path / "everything.py"))
    assert run("--version").stdout.split() == ["ddpctl", __version__]
    assert "preflight" in run("--help").stdout
    job = site.job("job", SLEEP)
    assert "torch.distributed" in run("up", "--dry-run").stdout
    started = run("up", "-d", "--json").json()["run"]
    wait_for_ranks(site.lab, started)
    status = run("status", job, "--json").json()
    assert (status["run"], status["state"]) == (started, "running")
    kill = run("kill", job, "--json").json()
    assert [node["survivors"] for node in kill["nodes"]] == [[]]
    assert_nothing_runs(site.lab, within=0)
