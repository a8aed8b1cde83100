"""The oldest Pythons that are supported: ddpctl itself on the first, hosts with the second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddpctl import __version__
from tests.conftest import MakeLab
from tests.e2e.programs import SLEEP
from tests.e2e.site import Site, assert_nothing_runs, named, ranks, until, wait_for_ranks
from tests.lab import oldest
from tests.lab.command import Ddpctl, Done
from tests.lab.disk import CHECKOUT

SOURCES = f"{CHECKOUT}/orchestrator:{CHECKOUT}/worker"

# Imports all of ddpctl, shows the help of every command, and prints its Python version.
EVERYTHING = """\
import importlib, pkgutil, sys
import ddpctl
for module in pkgutil.walk_packages(ddpctl.__path__, "ddpctl."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
from ddpctl.cli.program import COMMANDS, run
for command in COMMANDS:
    assert run([command, "--help"]) == 0, command
print("%d.%d" % sys.version_info[:2])
"""
PACKAGES = 'import sysconfig; print(sysconfig.get_path("purelib"), end="")'


@pytest.fixture
def old_controller() -> Path:
    python, trouble = oldest.controller()
    if python is None:
        pytest.skip(trouble)
    return python


@pytest.fixture
def old_worker() -> Path:
    python = oldest.worker()
    if python is None:
        pytest.skip("no Python of the oldest version that nodes may have on PATH")
    return python


@pytest.mark.timeout(1200)  # its interpreter may have to be made first, and all of ddpctl compiled
def test_ddpctl(make_lab: MakeLab, ddpctl: Ddpctl, tmp_path: Path, stand_in: str, old_controller: Path) -> None:
    site = Site(make_lab(1), ddpctl, tmp_path / "site", stand_in)

    def run(*args: str, program: str = "-m ddpctl", **where: Any) -> Done:
        where = {"env": {"PYTHONPATH": SOURCES}, "shell": f'exec {old_controller} {program} "$@"', **where}
        return site.start(*args, **where).wait(120).ok()

    (tmp_path / "everything.py").write_text(EVERYTHING)
    told = run(program=str(tmp_path / "everything.py")).stdout
    assert f'requires-python = ">={told.split()[-1]}"' in (CHECKOUT / "pyproject.toml").read_text()
    assert run("--version").stdout.split() == ["ddpctl", __version__]
    assert "preflight" in run("--help").stdout
    job = site.job("job", SLEEP)
    assert "torch.distributed" in run("up", "--dry-run").stdout
    started = run("up", "-d", "--json").json()["run"]
    wait_for_ranks(site.lab, started)
    until(lambda: run("status", job, "--json").json()["state"] == "running", 30)
    assert run("status", job, "--json").json()["run"] == started
    kill = run("kill", job, "--json").json()
    assert [node["survivors"] for node in kill["nodes"]] == [[]]
    assert_nothing_runs(site.lab, within=0)


def test_a_host(make_lab: MakeLab, ddpctl: Ddpctl, tmp_path: Path, stand_in: str, old_worker: Path) -> None:
    """Its python has nothing but a virtual environment with torch, as a user makes it."""
    host = make_lab(1, expose=[old_worker.parents[1]])[0]
    packages = host.run([stand_in, "-c", PACKAGES]).stdout
    ours = host.run(f"{old_worker} -m venv --without-pip /srv/env; /srv/env/bin/python -c '{PACKAGES}'").stdout
    host.run(f"cp -r {packages}/torch* {ours}")
    site = Site(host.lab, ddpctl, tmp_path / "site", "/srv/env/bin/python")
    job = site.job("job", SLEEP, nproc_per_node=2)
    assert site("preflight", "--json").ok().json()["ok"] is True
    run = site.up(job)["run"]
    wait_for_ranks([host], run, 2)
    site.wait_for_output(job, "(sleeps.*){2}")
    watchers = [named(host, name) for name in ("ddpctl-guardian", "ddpctl-super")]
    for process in (*watchers, *ranks(host, run).values()):
        assert process is not None
        assert Path(host.run(["readlink", f"/proc/{process.pid}/exe"]).stdout.strip()) == old_worker
    kill = site("kill", job, "--json").ok().json()
    assert [node["survivors"] for node in kill["nodes"]] == [[]]
    assert_nothing_runs([host], within=0)
